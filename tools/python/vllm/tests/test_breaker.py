"""A breaker's states, with a clock of its own."""

from maru.vllm.breaker import CLOSED, FULL, OPEN, Breaker


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def breaker():
    clock = Clock()
    return Breaker("cpu", clock=clock), clock


def test_a_full_pool_is_still_read_and_is_tried_again_after_a_pause():
    b, clock = breaker()
    b.refused("no_space")
    assert (b.state, b.may_ask(), b.may_store(), b.filled) == (FULL, True, False, 1)
    clock.now += 0.5
    assert b.may_store()
    b.refused("no_space")  # still full: the pause is longer
    clock.now += 0.6
    assert not b.may_store()
    clock.now += 0.5
    assert b.may_store() and b.filled == 1
    b.stored()
    assert (b.state, b.pause_s) == (CLOSED, 0.0)


def test_a_pool_that_is_gone_is_not_asked_until_it_was_opened_again():
    b, clock = breaker()
    b.failed("replaced")
    assert (b.state, b.may_ask(), b.may_store(), b.may_reopen()) == (OPEN, False, False, False)
    b.stored()  # a call that was under way does not close it
    assert b.state == OPEN
    clock.now += 0.5
    assert b.may_reopen()
    b.reopened()
    assert (b.state, b.opened, b.why) == (CLOSED, 1, "")


def test_pauses_grow_to_a_limit():
    b, clock = breaker()
    pauses = []
    for _ in range(8):
        b.failed("open")
        pauses.append(b.retry_at - clock.now)
        clock.now = b.retry_at
    assert pauses[:3] == [0.5, 1.0, 2.0] and max(pauses) == pauses[-1] == 5.0 and b.opened == 1


def test_changes_are_told_once():
    b, _ = breaker()
    b.refused("no_space")
    b.failed("lost")
    assert b.take_changes() == [(FULL, "no_space"), (OPEN, "lost")]
    assert b.take_changes() == []
