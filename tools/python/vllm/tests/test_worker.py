"""A worker's side with real tensors and doubtful pools: every load ends, and nothing wrong is stored."""

import hashlib

import pytest
import torch
from harness import eventually
from maru.vllm.identity import split
from maru.vllm.pages import Pages
from maru.vllm.plan import Span, StepPlan
from maru.vllm.scheduler import SchedulerSide
from maru.vllm.tally import Tally
from maru.vllm.worker import WorkerSide

BLOCKS, LAYERS = 12, 3


class Memory:
    """Pools that keep blocks in a dict and do as they are told."""

    def __init__(self):
        self.blocks, self.fails, self.room = {}, {}, True

    def may_store(self):
        return self.room

    def has(self, digests, shard):
        return [(d, shard) in self.blocks for d in digests]

    def load(self, digests, shard, buffers, verify="always"):
        codes = []
        for digest, buffer in zip(digests, buffers):
            why = self.fails.get(digest) or (None if (digest, shard) in self.blocks else "absent")
            if isinstance(why, Exception):
                raise why
            if why is None:
                buffer[:] = self.blocks[digest, shard]
            codes.append(why)
        return codes

    def store(self, digests, shard, buffers, depths):
        self.blocks.update({(d, shard): bytes(b) for d, b in zip(digests, buffers)})
        return ["stored"] * len(digests)

    def renew(self):
        self.renewed = True


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def made(request):
    caches = {f"l{i}": torch.randint(0, 1000, (BLOCKS, 2, 4, 8), dtype=torch.int32) for i in range(LAYERS)}
    pages = Pages(caches, list(caches), BLOCKS)
    worker = WorkerSide(Memory(), pages, Tally(), shard=0, asynchronous=request.param)
    worker.caches = caches
    worker.background = request.param
    yield worker
    worker.end()


def digests(*numbers):
    return b"".join(hashlib.sha256(bytes([n])).digest() for n in numbers)


def stores(first, numbers, ids, request="r", **more):
    return StepPlan(stores=[Span(request, first, digests(*numbers), ids)], **more)


def load(worker, numbers, ids, request="r"):
    """(ended requests, failed blocks) of one load."""
    worker.start_loads(StepPlan(loads=[Span(request, 0, digests(*numbers), ids, worker.background)]))
    if worker.background:
        return eventually(worker.take_loaded), worker.take_failed_blocks()
    return None, worker.take_failed_blocks()


def content(worker, block):
    return b"".join(cache[block].numpy().tobytes() for cache in worker.caches.values())


def test_out_and_back(made):
    wanted = [content(made, block) for block in (3, 4, 9)]
    made.store_step(stores(0, (1, 2, 3), [3, 4, 9]))
    for cache in made.caches.values():
        cache.zero_()
    ended, failed = load(made, (1, 2, 3), [5, 1, 2])
    assert failed == set() and ended in (None, {"r"})
    assert [content(made, block) for block in (5, 1, 2)] == wanted
    assert content(made, 0) == bytes(len(wanted[0]))


@pytest.mark.parametrize("why", ["absent", "damaged", RuntimeError("on purpose")])
def test_from_the_first_failure_on_the_engine_computes(made, why):
    made.store_step(stores(0, (1, 2, 3, 4), [3, 4, 5, 6]))
    made.pools.fails[digests(3)] = why
    untouched = content(made, 9), content(made, 10)
    ended, failed = load(made, (1, 2, 3, 4), [7, 8, 9, 10])
    assert ended in (None, {"r"})
    if isinstance(why, Exception):
        assert failed == {7, 8, 9, 10}  # the whole batch: nothing of it was brought in
    else:
        assert failed == {9, 10} and content(made, 7) == content(made, 3)
    assert (content(made, 9), content(made, 10)) == untouched


def test_small_staging_means_more_batches_and_the_same_bytes(made):
    made.staging = made.pages.staging(made.pages.block_bytes * 2)
    made.load_staging = made.pages.staging(made.pages.block_bytes * 2)
    wanted = [content(made, block) for block in range(1, 6)]
    made.store_step(stores(0, (1, 2, 3, 4, 5), [1, 2, 3, 4, 5]))
    made.pools.fails[digests(5)] = "vanished"
    for cache in made.caches.values():
        cache.zero_()
    _, failed = load(made, (1, 2, 3, 4, 5), [6, 7, 8, 9, 10])
    assert failed == {10} and [content(made, block) for block in range(6, 10)] == wanted[:4]


def test_a_background_thread_that_is_gone_is_done_without(made):
    if not made.background:
        return
    made.store_step(stores(0, (1,), [3]))
    made.end()
    assert load(made, (1,), [4]) == ({"r"}, set())


def test_blocks_that_are_there_are_not_gathered(made):
    made.store_step(stores(0, (1, 2), [3, 4]))
    gathered = []
    gather = made.pages.gather
    made.pages.gather = lambda ids, staging: (gathered.append(ids), gather(ids, staging))
    made.store_step(stores(0, (1, 2, 3), [3, 4, 5]))
    assert gathered == [[5]]


def test_a_step_that_failed_publishes_nothing(made):
    try:
        raise RuntimeError("the forward, on purpose")
    except RuntimeError:
        made.store_step(stores(0, (1,), [3]))  # as vLLM does, from a `finally`
    assert made.pools.blocks == {}
    assert made.stats.take()["counters"] == {"store_skipped_blocks|forward_failed": 1}


def test_a_layer_that_did_not_call_back_keeps_the_block_in(made):
    for order in (["l1", "l0"], ["l2"], ["l0", "l1"]):
        for name in order:
            made.layer_done(name)
        made.store_step(stores(0, (1,), [3]))
        assert made.pools.blocks == {}
    for name in ("l2", "l0", "l1"):  # any order
        made.layer_done(name)
    made.store_step(stores(0, (1,), [3]))
    assert len(made.pools.blocks) == 1


def test_nothing_that_stands_on_a_failed_load_is_stored():
    """With the scheduler's side: dropped in the step at hand and in the ones planned before it knew, stored afterwards."""
    caches = {"l0": torch.zeros((BLOCKS, 4), dtype=torch.int32)}
    memory = Memory()
    worker = WorkerSide(memory, Pages(caches, ["l0"], BLOCKS), Tally(), shard=0, asynchronous=False)

    class Request:
        request_id, num_tokens, num_prompt_tokens, prompt_token_ids = "r", 5 * 16, 5 * 16, [1]
        prompt_embeds = lora_request = None
        mm_features, resumable = [], False
        block_hashes = split(digests(1, 2, 3, 4, 5))

    class Bystander(Request):
        request_id = "s"
        block_hashes = split(digests(11, 12, 13, 14, 15))

    class Lookup:
        def probe(self, found, shards):
            return 2 if found.startswith(digests(1)) else 0

    scheduler = SchedulerSide(
        Lookup(), Tally(), block_tokens=16, hashes_per_block=1, shards=[0], asynchronous=False, store_generated=True
    )
    assert scheduler.matched_tokens(Request, 0) == (32, False)
    ids = [1, 2, 3, 4, 5]
    scheduler.allocated(Request, ids, 32)
    assert scheduler.matched_tokens(Bystander, 0) == (0, False)
    # `r` loads 0 and 1 and computes 2; `s`, in the same step, computes its first.
    first = scheduler.plan_step({"r": 32, "s": 0}, {"r": 16, "s": 16}, lambda r: ids)
    ahead = scheduler.plan_step({"r": 48}, {"r": 16}, lambda r: ids)  # planned before the first has ended
    assert [(s.request_id, s.first) for s in first.stores + ahead.stores] == [("r", 2), ("s", 0), ("r", 3)]
    for step in (first, ahead):
        worker.start_loads(step)
        worker.store_step(step)
        report = worker.take_report()
        scheduler.loads_failed(worker.take_failed_blocks())
        scheduler.reported(report)
    assert memory.blocks == {}
    # vLLM computes from block 0 on; all of it is stored, each block once.
    again = scheduler.plan_step({"r": 0, "s": 16}, {"r": 80, "s": 16}, lambda r: ids)
    assert [(s.request_id, s.first, len(s.block_ids)) for s in again.stores] == [("r", 0, 5), ("s", 0, 2)]
    worker.store_step(again)
    assert len(memory.blocks) == 7 and worker.take_report() is None
    assert scheduler.matched_tokens(Request, 0) == (0, False)  # what failed is not offered again


def test_ranks_agree_on_a_failure():
    """The other rank's load was fine; its blocks were computed with the failed one's hidden states."""
    caches = {"l0": torch.zeros((BLOCKS, 4), dtype=torch.int32)}
    memory = Memory()
    asked = []
    worker = WorkerSide(
        memory,
        Pages(caches, ["l0"], BLOCKS),
        Tally(),
        shard=1,
        asynchronous=False,
        agree=lambda mine: asked.append(mine) or True,
    )
    memory.blocks[digests(1), 1] = bytes(16)
    step = StepPlan(loads=[Span("r", 0, digests(1), [1])], stores=[Span("r", 1, digests(2), [2])])
    worker.start_loads(step)
    worker.store_step(step)
    assert asked == [False] and list(memory.blocks) == [(digests(1), 1)]
    assert worker.take_report().dropped == {"r": 1}


def test_a_namespace_renewed_by_the_scheduler_is_renewed_here(made):
    made.start_loads(StepPlan(renew=1))
    assert made.pools.renewed


def test_no_room_anywhere_is_a_skip(made):
    made.pools.room = False
    made.store_step(stores(0, (1, 2), [3, 4]))
    assert made.stats.take()["counters"] == {"store_skipped_blocks|breaker": 2}
