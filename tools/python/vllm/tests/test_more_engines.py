"""What needs engines of its own: pools, models, types, modes, restarts, ranks. Not in the CI set but for the first two.

Each test starts two or three engines (10 to 15 s on an idle machine, together).
"""

import pytest
from harness import EngineError, eventually, prompt

BLOCK = 128
full = pytest.mark.full


def wait(*engines):
    return [engine.ready() for engine in engines]


def test_loads_in_the_background(engines, models, regions, request):
    """Asynchronous loads: same answers, other requests go on, a failed one completes."""
    path = regions.path("async")
    alpha, beta = wait(
        engines(models["tiny"], extra=regions.extra("alpha", path)),
        engines(models["tiny"], extra=regions.extra("beta", path, maru_load_mode="async")),
    )
    many = [prompt(("async", n), 700 + n) for n in range(4)]
    right = alpha.generate(*many)
    fresh = prompt("fresh", 500)
    found = beta.generate(*many, fresh)
    assert [f["cached"] for f in found] == [640, 640, 640, 640, 0]
    repeat = alpha.generate(*many)
    assert [f["tokens"] for f in found[:4]] == [r["tokens"] for r in repeat] == [r["tokens"] for r in right]
    # One damaged, one gone, both in the background: recomputed, and the engine is not left waiting.
    beta.forget()
    beta.run(
        "right = worker.pools.load\n"
        "def load(digests, shard, *rest):\n"
        "    codes = right(digests, shard, *rest)\n"
        "    worker.pools.load = right\n"
        "    return [*codes[:3], 'damaged', *codes[4:]]\n"
        "worker.pools.load = load\n"
    )
    assert beta.generate(many[0])["tokens"] == right[0]["tokens"]
    beta.forget()
    beta.run(
        "def load(*a): raise RuntimeError('broken on purpose')\nworker.right = worker.pools.load\nworker.pools.load = load"
    )
    assert beta.generate(many[1])["tokens"] == right[1]["tokens"]
    beta.run("worker.pools.load = worker.right")
    counted = {
        k.split("=")[-1][:-1]: v for k, v in beta.metrics().items() if k.startswith("vllm:maru_load_failed_blocks")
    }
    assert counted == {"damaged": 2, "RuntimeError": 5}  # once: it is not offered again
    # A slow load: another request is answered meanwhile.
    beta.forget()
    order = beta.run(
        "import time\n"
        "right = worker.pools.load\n"
        "def load(*a):\n"
        "    time.sleep(3)\n"
        "    return right(*a)\n"
        "worker.pools.load = load\n"
        "from vllm import SamplingParams\n"
        "wish = SamplingParams(temperature=0, max_tokens=4, detokenize=False, ignore_eos=True)\n"
        f"llm.llm_engine.add_request('slow', {{'prompt_token_ids': {many[2]!r}}}, wish)\n"
        f"llm.llm_engine.add_request('quick', {{'prompt_token_ids': {prompt('quick', 300)!r}}}, wish)\n"
        "answer = []\n"
        "while llm.llm_engine.has_unfinished_requests():\n"
        "    answer += [o.request_id for o in llm.llm_engine.step() if o.finished]\n"
        "worker.pools.load = right\n"
    )
    assert [o.split("-")[0] for o in order] == ["quick", "slow"]


def test_a_full_pool_stops_stores_and_not_answers(engines, models, regions):
    """A pool of 12 blocks that makes no room: what is in it stays and hits, what is not in it is computed; nobody waits."""
    path = regions.path("full")
    (alpha,) = wait(engines(models["tiny"], extra=regions.extra("alpha", path, size=7 << 20, maru_evict="never")))
    kept = prompt("kept", 1000)
    right = alpha.generate(kept)
    for n in range(4):
        assert alpha.generate(prompt(("over", n), 900), max_tokens=2)["reason"] == "length"
    state = alpha.run("b = worker.pools.all[0].breaker; answer = [b.state, b.why, b.filled]")
    assert state == ["full", "no_space", 1]
    skipped = {k: v for k, v in alpha.metrics().items() if k.startswith("vllm:maru_store_skipped_blocks")}
    assert skipped["vllm:maru_store_skipped_blocks{reason=no_space}"] > 0

    # Gauges travel with the engine's steps, once a second.
    def gauge():
        alpha.generate(kept, max_tokens=1)
        return alpha.metrics()["vllm:maru_pool_state{pool=cpu/worker0}"]

    assert eventually(gauge, lambda n: n == 1, step=1) == 1
    alpha.forget()
    again = alpha.generate(kept)
    assert again["cached"] == 7 * BLOCK and again["tokens"] == right["tokens"]
    # Room again: the breaker closes by itself with the first store that goes through.
    alpha.run(
        "worker.pools.all[0].live.session.invalidate(worker.pools.all[0].live.namespace); worker.pools.renew(); scheduler.pools.renew()"
    )
    alpha.run("worker.pools.all[0].live.session.reclaim()")

    def store():
        alpha.generate(prompt(("room", store.n), 300), max_tokens=1)
        store.n += 1
        return alpha.run("answer = worker.pools.all[0].breaker.state")

    store.n = 0
    assert eventually(store, lambda s: s == "closed", seconds=15, step=0.5) == "closed"


@full
@pytest.mark.parametrize("order", [["cpu", "cxl"], ["cxl", "cpu"]])
def test_a_prefix_split_over_two_pools(engines, models, regions, order):
    cpu, cxl = regions.path("cpu"), regions.path("cxl")
    sizes = {order[0]: 3 << 20, order[1]: 64 << 20}
    extra = {
        "maru_storage_backend": "mixed", "maru_cpu_pool_size": sizes["cpu"], "maru_cxl_pool_size": sizes["cxl"],
        "maru_cpu_path": str(cpu), "maru_cxl_path": str(cxl), "maru_write_order": order, "maru_read_order": order[::-1],
        "maru_cache_namespace": "test",
    }  # fmt: skip
    alpha, beta = wait(
        *(engines(models["tiny"], extra={**extra, "maru_engine_id": name}) for name in ("alpha", "beta"))
    )
    ids = prompt("split", 10 * BLOCK + 7)
    alpha.generate(ids)
    counts = alpha.run("answer = {p.name: p.live.session.counters()['stored_blocks'] for p in worker.pools.all}")
    assert all(n > 1 for n in counts.values()), counts
    hit, repeat = beta.generate(ids), alpha.generate(ids)
    assert hit["cached"] == 10 * BLOCK
    assert (hit["tokens"], hit["logprobs"]) == (repeat["tokens"], repeat["logprobs"])
    assert alpha.blocks(ids)[:10] == beta.blocks(ids)[:10]
    loads = beta.run("answer = {p.name: p.live.session.counters()['loaded_blocks'] for p in worker.pools.all}")
    assert all(n > 1 for n in loads.values()), loads
    # One pool goes: its blocks are computed, the other's still hit.
    (cxl if order[0] == "cpu" else cpu).unlink()
    beta.forget()
    again = beta.generate(ids)
    assert again["tokens"] == repeat["tokens"]


@full
def test_models_and_types_never_meet(engines, models, regions):
    path = regions.path("both")
    one = engines(models["tiny"], extra=regions.extra("one", path, maru_slot_size="512K"))
    one.ready()
    ids = prompt("meet", 900)
    one.generate(ids, max_tokens=1)
    other, half = wait(
        engines(models["tiny-b"], extra=regions.extra("other", path)),
        engines(models["tiny"], extra=regions.extra("half", path), dtype="bfloat16"),
    )
    for engine in (other, half):
        assert engine.generate(ids, max_tokens=1)["cached"] == 0
        engine.forget()
        assert engine.generate(ids, max_tokens=1)["cached"] == 7 * BLOCK  # its own
    digests = [tuple(e.blocks(ids)) for e in (one, other, half)]
    assert len(set(digests)) == 3


@full
def test_a_rolling_restart_never_empties_the_cache(engines, models, regions):
    path = regions.path("rolling")
    alpha, beta = wait(*(engines(models["tiny"], extra=regions.extra(name, path)) for name in ("alpha", "beta")))
    ids = prompt("rolling", 1500)
    right = alpha.generate(ids)
    for name, old in (("alpha", alpha), ("beta", beta)):
        old.end()
        (new,) = wait(engines(models["tiny"], extra=regions.extra(name, path)))
        hit = new.generate(ids)
        assert hit["cached"] == 11 * BLOCK and hit["tokens"] == right["tokens"]
    # And with nobody there in between.
    new.kill()
    for engine in (alpha, beta):
        assert engine.process.poll() is not None


@full
def test_a_seed_that_differs_or_is_unset_stops_the_start(engines, models, regions):
    path = regions.path("seed")
    wait(engines(models["tiny"], extra=regions.extra("alpha", path)))
    other = engines(models["tiny"], extra=regions.extra("beta", path), environ={"PYTHONHASHSEED": "1"})
    unset = engines(models["tiny"], extra=regions.extra("gamma", path), environ={"PYTHONHASHSEED": None})
    with pytest.raises(EngineError, match="PYTHONHASHSEED: found '1' here, wanted '0'"):
        other.ready()
    with pytest.raises(EngineError, match="PYTHONHASHSEED: found unset"):
        unset.ready()


@full
def test_preemptions_and_evictions_in_a_small_engine(engines, models, regions):
    """24 usable blocks, prompts that need more: every answer is that of an engine without Maru, first and from the region."""
    path = regions.path("small")
    alpha, beta, plain = wait(
        engines(models["tiny"], extra=regions.extra("alpha", path), num_gpu_blocks_override=25, max_model_len=3000),
        engines(models["tiny"], extra=regions.extra("beta", path)),
        engines(models["tiny"]),
    )
    many = [prompt(("small", n), 1010 + n) for n in range(6)]  # eight blocks each: three fit, and none may grow
    wanted = [answer["tokens"] for answer in plain.generate(*many, max_tokens=150)]
    assert [answer["tokens"] for answer in alpha.generate(*many, max_tokens=150)] == wanted
    assert alpha.metrics()["vllm:num_preemptions"] > 0
    found = beta.generate(*many, max_tokens=150)
    assert [answer["tokens"] for answer in found] == wanted
    assert all(answer["cached"] >= 7 * BLOCK for answer in found)
    # The small engine again: its own cache has forgotten most of it.
    again = alpha.generate(*many, max_tokens=150)
    assert [answer["tokens"] for answer in again] == wanted and all(answer["cached"] >= 7 * BLOCK for answer in again)


@full
def test_two_ranks_have_a_shard_each(engines, models, regions):
    """Tensor parallelism of 2: one object a rank; a hit needs both; an engine of one rank never meets them."""
    path = regions.path("ranks")
    (alpha,) = wait(engines(models["tiny"], extra=regions.extra("alpha", path), tensor_parallel_size=2))
    ids = prompt("ranks", 900)
    right = alpha.generate(ids)
    assert alpha.forget()
    again = alpha.generate(ids)
    assert again["cached"] == 7 * BLOCK and again["tokens"] == right["tokens"]
    runs = alpha.run(
        "from vllm import SamplingParams\n"
        "from vllm.v1.request import Request\n"
        f"r = Request('x', {ids!r}, SamplingParams(max_tokens=1), None, block_hasher=driver.core.request_block_hasher)\n"
        "digests = b''.join(r.block_hashes)\n"
        "answer = [scheduler.pools.probe(digests, [shard]) for shard in (0, 1, 2)]\n"
    )
    assert runs == [7, 7, 0]
    metrics = alpha.metrics()
    assert metrics["vllm:maru_pool_state{pool=cpu/worker0}"] == metrics["vllm:maru_pool_state{pool=cpu/worker1}"] == 0
