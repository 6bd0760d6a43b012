"""Chunked prefill, suffixes, preemption and failed loads, as numbers: no engine, no region."""

import itertools
import random

from maru.vllm.plan import RequestPlan, StepReport, loadable

BLOCK = 128


def steps(plan, start, cuts, tokens, hashed=None):
    """Runs the steps that end at `cuts`; returns the stored ranges."""
    stored = []
    for end in [*cuts, tokens]:
        first, last = plan.store(start, end, (hashed or tokens) // BLOCK)
        stored.extend(range(first, last))
        start = end
    return stored


def test_every_full_block_is_stored_once_for_any_split():
    source = random.Random(7)
    for _ in range(300):
        tokens = source.randint(1, 2000)
        cuts = sorted(source.sample(range(1, tokens), min(source.randint(0, 9), tokens - 1)))
        plan = RequestPlan("r", BLOCK)
        plan.looked_up(0, 0)
        assert steps(plan, 0, cuts, tokens) == list(range(tokens // BLOCK))


def test_the_suffix_behind_a_hit_is_stored_and_the_hit_is_not():
    plan = RequestPlan("r", BLOCK)
    plan.looked_up(0, 4)
    assert steps(plan, 4 * BLOCK, [6 * BLOCK + 5], 8 * BLOCK + 1) == [4, 5, 6, 7]


def test_blocks_the_engine_has_and_the_region_lost_are_stored_again():
    plan = RequestPlan("r", BLOCK)
    plan.looked_up(6 * BLOCK, 2)  # the engine's own cache has six, the region two
    assert steps(plan, 6 * BLOCK, [], 7 * BLOCK + 3) == [2, 3, 4, 5, 6]


def test_a_failed_load_goes_back_to_its_first_block():
    plan = RequestPlan("r", BLOCK)
    plan.looked_up(0, 6)
    assert plan.store(6 * BLOCK, 7 * BLOCK, 7) == (6, 7)
    # Block 2 failed: vLLM computes from there.
    assert plan.store(2 * BLOCK, 7 * BLOCK, 7) == (2, 7)


def test_positions_that_run_ahead_have_no_digest_and_are_not_stored():
    plan = RequestPlan("r", BLOCK)
    plan.looked_up(0, 0)
    assert plan.store(0, 3 * BLOCK, 2) == (0, 2)
    assert plan.store(3 * BLOCK, 3 * BLOCK + 1, 3) == (2, 3)


def test_one_token_is_always_left():
    for blocks, extra in itertools.product(range(1, 5), (0, 1, 127)):
        tokens = blocks * BLOCK + extra
        got = loadable(found_blocks=9, local_tokens=0, request_tokens=tokens, block_tokens=BLOCK)
        assert got % BLOCK == 0 and tokens - BLOCK <= got + (extra or BLOCK) and got < tokens
    assert loadable(4, 0, 4 * BLOCK, BLOCK) == 3 * BLOCK


def test_only_what_is_longer_than_the_local_hit_is_loaded():
    assert loadable(4, 5 * BLOCK, 9 * BLOCK, BLOCK) == 0
    assert loadable(6, 5 * BLOCK, 9 * BLOCK, BLOCK) == BLOCK
    assert loadable(6, 5 * BLOCK + 1, 9 * BLOCK, BLOCK) == 0  # a local hit within a block is vLLM's


def test_the_blocks_of_a_load():
    plan = RequestPlan("r", BLOCK)
    plan.looked_up(2 * BLOCK, 7)
    assert plan.load(5 * BLOCK) == (2, 7)


def test_reports_of_ranks_are_joined():
    one = StepReport(1, {"a": 4, "b": 2})
    assert one.merge(StepReport(2, {"a": 3})) is one
    assert (one.failures, one.dropped) == (2, {"a": 3, "b": 2})
