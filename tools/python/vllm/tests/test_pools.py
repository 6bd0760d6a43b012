"""Pools on real regions, without an engine: orders, failures, recovery, the seed card."""

import hashlib
import os

import maru
import pytest
from maru.vllm import seed
from maru.vllm.pools import Keeper, Pool, PoolError, Pools
from maru.vllm.settings import PoolSettings

BLOCK = 4096
FIELDS = {
    "tenant": "t", "model": "m", "revision": "r", "adapter": "none", "dtype": "d", "quantization": "none", "geometry": "g",
    "storage_format": "s", "block_tokens": "16", "parallel": "tp=1", "hash_algorithm": "h", "hash_seed": "0",
}  # fmt: skip


def digests(*numbers):
    return [hashlib.sha256(bytes([n])).digest() for n in numbers]


def data(n):
    return bytearray([n]) * BLOCK


class Side:
    """Two pools as a worker has them, or one."""

    def __init__(self, regions, names=("cpu",), *, sizes=(1 << 20, 1 << 20), paths=None, write=None, read=None, engine="e", fields=FIELDS,
                 evict="never", block=BLOCK, header_only=False):  # fmt: skip
        self.paths = paths or [regions.path(name) for name in names]
        made = [
            Pool(
                PoolSettings(name, {"path": str(path), "size": size}, {"evict": evict}),
                header_only=header_only,
                engine=engine,
                fields=fields,
                block_bytes=block,
            )  # fmt: skip
            for name, path, size in zip(names, self.paths, sizes)
        ]
        self.pools = Pools(made, write or names, read or names)
        self.pools.open()
        self.all = made

    def store(self, *numbers):
        return self.pools.store(digests(*numbers), 0, [data(n) for n in numbers], list(numbers))

    def load(self, *numbers):
        buffers = [bytearray(BLOCK) for _ in numbers]
        codes = self.pools.load(digests(*numbers), 0, buffers)
        assert all(b == data(n) for n, b, code in zip(numbers, buffers, codes) if code is None)
        return codes


def keep(side, until, looks=200):
    keeper = Keeper(side.pools)
    for _ in range(looks):
        keeper.look(beat=True)
        if until():
            return True
        keeper.ended.wait(0.02)
    return False


def test_round_trip_and_miss(regions):
    side = Side(regions)
    assert side.store(1, 2, 3) == ["stored"] * 3
    assert side.store(2, 4) == ["present", "stored"]
    assert side.load(1, 9, 3) == [None, "absent", None]
    assert side.pools.has(digests(1, 9, 3), 0) == [True, False, True]
    assert side.pools.probe(b"".join(digests(1, 2, 3, 4, 9, 1)), [0]) == 4


def test_a_hit_needs_every_shard(regions):
    side = Side(regions)
    side.store(1, 2)
    assert side.pools.store(digests(1), 1, [data(7)], [0]) == ["stored"]
    both = b"".join(digests(1, 2))
    assert [side.pools.probe(both, shards) for shards in ([0], [1], [0, 1], [0, 1, 2])] == [2, 1, 1, 0]


def test_what_one_pool_refuses_goes_to_the_next_and_a_prefix_may_lie_in_both(regions):
    side = Side(regions, ("cpu", "cxl"), sizes=(64 << 10, 1 << 20))
    slots = side.all[0].live.region.slots
    numbers = range(1, slots + 20)
    assert side.store(*numbers) == ["stored"] * len(numbers)
    usage = [pool.live.session.usage()["slots"]["ready"] for pool in side.all]
    assert usage == [slots, 19]
    assert side.load(*numbers) == [None] * len(numbers)
    assert side.pools.probe(b"".join(digests(*numbers, 250)), [0]) == len(numbers)
    # Interleaved: every other block in the other pool.
    other = Side(regions, ("cpu", "cxl"))
    for n in range(1, 9):
        other.all[n % 2].store(digests(n), 0, [data(n)], [n])
    assert other.pools.probe(b"".join(digests(*range(1, 10))), [0]) == 8
    assert other.load(*range(1, 9)) == [None] * 8


def test_a_full_pool_is_left_alone_for_a_while(regions):
    side = Side(regions, sizes=(64 << 10,))
    slots = side.all[0].live.region.slots
    assert side.store(*range(slots)) == ["stored"] * slots
    assert side.store(200) == ["no_space"] and side.store(201) == ["breaker_full"]
    assert not side.pools.may_store() and side.load(0) == [None]
    breaker = side.all[0].breaker
    side.pools.retire(digests(0)[0], 0)
    breaker.retry_at = 0
    assert side.store(200) == ["stored"] and breaker.state == "closed"


@pytest.mark.parametrize("how", ["unlinked", "replaced", "cut", "fenced"])
def test_a_pool_that_fails_answers_at_once_and_comes_back(regions, how):
    side = Side(regions)
    side.store(1)
    path, live = side.paths[0], side.all[0].live
    if how == "fenced":
        other = Side(regions, paths=side.paths, engine="other")
        assert other.all[0].live.session.fence(live.session.index, live.session.epoch)
    elif how == "cut":
        os.truncate(path, 512 << 10)
    else:
        path.unlink()
        if how == "replaced":
            Side(regions, paths=side.paths, engine="other").store(5)
    Keeper(side.pools).look(beat=True)  # the heartbeat sees it, if no call has
    assert side.all[0].breaker.state == "open" and not side.pools.may_store()
    assert side.load(1)[0] is not None and side.store(2)[0].startswith("breaker_")
    assert side.pools.probe(b"".join(digests(1)), [0]) == 0
    if how == "cut":
        path.unlink()
    assert keep(side, lambda: side.all[0].breaker.state == "closed")
    assert side.store(3) == ["stored"] and side.load(3) == [None]
    assert side.load(1) == ([None] if how == "fenced" else ["absent"])
    assert side.load(5) == ([None] if how == "replaced" else ["absent"])


def test_one_pool_that_fails_costs_its_own_blocks_only(regions):
    side = Side(regions, ("cpu", "cxl"))
    side.all[0].store(digests(1), 0, [data(1)], [0])
    side.all[1].store(digests(2), 0, [data(2)], [0])
    side.paths[0].unlink()
    Keeper(side.pools).look(beat=True)
    assert [p.breaker.state for p in side.all] == ["open", "closed"]
    codes = side.load(1, 2)
    assert codes[0] is not None and codes[1] is None
    assert side.store(3) == ["stored"]


def test_an_invalidated_namespace_is_registered_anew(regions):
    side = Side(regions)
    side.store(1)
    other = Side(regions, paths=side.paths, engine="other", header_only=True)
    assert other.pools.probe(b"".join(digests(1)), [0]) == 1
    assert other.pools.invalidate()
    assert other.pools.probe(b"".join(digests(1)), [0]) == 0
    asks = Side(regions, paths=side.paths, engine="asks", header_only=True)
    again = Side(regions, paths=side.paths, engine="again", header_only=True)
    assert again.pools.invalidate()  # `asks` only looks up, so no call tells it
    assert side.load(1) == ["invalidated"]
    assert keep(side, lambda: not side.all[0].stale, looks=5)
    assert side.store(1) == ["stored"]
    for looks in (other, asks):
        Keeper(looks.pools).look(beat=True)
        assert looks.pools.probe(b"".join(digests(1)), [0]) == 1


def test_a_scheduler_maps_no_payload(regions):
    side = Side(regions)
    side.store(1)
    asks = Side(regions, paths=side.paths, engine="asks", header_only=True)
    assert asks.all[0].live.region.mode == "header_only"
    assert asks.pools.probe(b"".join(digests(1)), [0]) == 1
    with pytest.raises(maru.NoPayload):
        asks.all[0].live.session.load_into(asks.all[0].live.objects(digests(1), 0), [bytearray(BLOCK)])


def test_slots_that_are_too_small_are_refused_with_both_numbers(regions):
    side = Side(regions)
    with pytest.raises(PoolError, match="found slots of 4096 bytes, wanted at least 8192"):
        Side(regions, paths=side.paths, block=8192)


def test_a_scheduler_without_a_region_does_not_start(regions):
    with pytest.raises(maru.OpenError):
        Side(regions, header_only=True)


def test_the_seed_card(regions):
    one = Side(regions)
    seed.leave_card(one.pools, FIELDS)
    seed.leave_card(one.pools, FIELDS)
    same = Side(regions, paths=one.paths, engine="same")
    seed.leave_card(same.pools, FIELDS)
    with pytest.raises(seed.SeedError, match="PYTHONHASHSEED: found '7' here, wanted '0'"):
        seed.leave_card(same.pools, {**FIELDS, "hash_seed": "7"})
    # Another cache namespace is another matter.
    seed.leave_card(same.pools, {**FIELDS, "hash_seed": "7", "revision": "other"})


def test_a_start_waits_for_whoever_makes_the_region(regions, monkeypatch):
    side = Side(regions)
    pool, right, asked = side.all[0], side.all[0].open, []

    def busy():
        asked.append(1)
        if len(asked) < 3:
            raise maru.OpenError("another process is formatting it", code="format_incomplete")
        right()

    monkeypatch.setattr(pool, "open", busy)
    side.pools.open()
    assert len(asked) == 3
    asked.clear()
    monkeypatch.setattr("maru.vllm.pools.START_WAIT_S", 0.0)
    with pytest.raises(maru.OpenError):
        side.pools.open()


def test_a_region_cut_to_nothing_is_a_lost_pool(regions):
    """In a process of its own: without the fault handler it would die."""
    import subprocess
    import sys

    code = (
        "import os, sys; sys.path.insert(0, sys.argv[1]); import maru; maru.catch_faults()\n"
        "from test_pools import *\n"
        "class Regions:\n"
        "    def path(self, name): return __import__('pathlib').Path(sys.argv[2])\n"
        "side = Side(Regions()); side.store(1)\n"
        "os.truncate(sys.argv[2], 0)\n"
        "Keeper(side.pools).look(beat=True)\n"
        "print(side.all[0].breaker.state, side.load(1)[0] is not None)\n"
    )
    path = regions.path("nothing")
    run = subprocess.run(
        [sys.executable, "-c", code, os.path.dirname(__file__), str(path)], capture_output=True, text=True, timeout=60
    )
    assert run.stdout.split() == ["open", "True"], (run.returncode, run.stderr[-500:])
