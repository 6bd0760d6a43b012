"""The paper's experiment on CPU engines: what a prefix costs that was computed before, here or in another engine.

    tools/python/vllm/bench                       what fits into half an hour on two cores
    tools/python/vllm/bench --sessions 20         the paper's count
    tools/python/vllm/bench --report stats.json   table and picture again, from the numbers of a run

Two servers as in production, one core each, a random model. A session is one prompt: server A computes it, then it is
asked again of the same server (`same`) and of the other one (`cross`), in an order that changes from session to session,
so that a ratio of the two arms is one of two requests a moment apart. What computes everything again costs the same
every time: T0, and T1's `cross`, have one session a repetition.

    T0  no reuse: neither prefix cache nor connector
    T1  the engine's own prefix cache
    T4  Maru, and no prefix cache of the engine, so that every hit comes out of the region

Every tier runs `--repetitions` times on fresh servers and a fresh region, in an order that changes. Controls, each of
which ends the run: a first request hits nothing (no prompt leaks into another); prompts that were never stored hit
nothing; exactly one worker has formatted the region and the other has attached. Hit rates are the engines' own counters
around each request. The last line on stdout is the numbers as JSON; they go to --out, and as a table and a picture into
`tools/python/README.md`.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import platform
import signal
import statistics
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import mkmodel  # noqa: E402
import report  # noqa: E402
from harness import prompt  # noqa: E402

TIERS = ("T0", "T1", "T4")
LENGTHS = (512, 2048, 4096, 8192)
BLOCK = 128
HITS = {"T0": (), "T1": ("vllm:prefix_cache_hits_total",), "T4": ("vllm:external_prefix_cache_hits_total",)}
PORTS = (18211, 18212)


def say(*words):
    print(*words, file=sys.stderr, flush=True)


class Tier:
    """Two servers of a tier, up and warm."""

    def __init__(self, tier, wish, run):
        from servers import Server

        self.tier, self.region = tier, pathlib.Path(f"/dev/shm/maru-bench-{os.getpid()}")
        self.region.unlink(missing_ok=True)
        self.lengths = wish.lengths

        def extra(name):
            return {
                "maru_storage_backend": "cpu", "maru_cpu_pool_size": wish.pool, "maru_cpu_path": str(self.region),
                "maru_engine_id": name, "maru_cache_namespace": "bench",
            }  # fmt: skip

        self.logs = [wish.scratch / f"{run}-{tier}-{name}.log" for name in "AB"]
        self.servers = [
            Server(wish.model, PORTS[n], n, self.logs[n], extra=extra(f"bench-{n}") if tier == "T4" else None,
                   prefix_caching=tier == "T1", scratch=wish.scratch)
            for n in (0, 1)
        ]  # fmt: skip
        try:
            for server in self.servers:
                server.ready()
            self.warm(run)
        except BaseException:
            self.end()
            raise

    def warm(self, run):
        """First touches, which a process pays once: of its kernels, of its KV cache (the longest prompt), of the other's blocks."""
        longest = max(2100, *self.lengths)
        with concurrent.futures.ThreadPoolExecutor(2) as both:
            list(both.map(lambda n: self.servers[n].ttft(prompt((run, self.tier, "warm", n), longest)), (0, 1)))
        for n, server in enumerate(self.servers):
            for other in (n, 1 - n):
                server.ttft(prompt((run, self.tier, "warm", other), longest if self.tier == "T4" else 600))

    def ask(self, server, ids):
        """(milliseconds, hit rate by the engine's own counters, milliseconds of that which the connector loaded)."""
        before = server.counters()
        took = server.ttft(ids)
        after = server.counters()

        def more(name):
            return after.get(name, 0) - before.get(name, 0)

        return took * 1000, sum(map(more, HITS[self.tier])) / len(ids), more("vllm:maru_load_seconds_total") * 1000

    def check_fresh(self):
        """Control 3."""
        if self.tier == "T4":
            opened = [
                line
                for log in self.logs
                for line in open(log, errors="replace")
                if "maru: pool" in line and "/worker" in line
            ]
            outcomes = sorted("formatted" if " formatted " in line else "attached" for line in opened)
            if outcomes != ["attached", "formatted"]:
                raise SystemExit(f"control: found {outcomes}, wanted one formatted and one attached; logs {self.logs}")
            return outcomes
        return None

    def check_no_false_hits(self, run, count):
        """Control 2."""
        hits = 0
        for n in range(count):
            for server in self.servers:
                hits += self.ask(server, prompt((run, self.tier, "never", n, server.port), 700))[1]
        if hits:
            raise SystemExit(f"control: found hits for prompts that were never stored in {self.tier}, wanted none")
        return count * 2

    def end(self):
        for server in self.servers:
            server.end()
        self.region.unlink(missing_ok=True)


def measure(wish, keep):
    """`keep(rows, controls, repetitions)` is called after each tier, so that a long run can be looked into."""
    rows, controls = [], {"leak_rate_max": 0.0, "never_stored": 0, "regions": []}
    for repetition in range(wish.repetitions):
        order = [wish.tiers[(n + repetition) % len(wish.tiers)] for n in range(len(wish.tiers))]
        for tier in order:
            began = time.monotonic()
            up = Tier(tier, wish, f"r{repetition}")
            say(f"repetition {repetition} {tier}: up in {time.monotonic() - began:.0f} s")
            try:
                controls["regions"].append(up.check_fresh()) if tier == "T4" else None
                controls["never_stored"] += up.check_no_false_hits(f"r{repetition}", wish.never)
                for session in range(1 if tier == "T0" else wish.sessions):
                    for length in wish.lengths:
                        rows += one_session(up, repetition, session, length, controls)
            finally:
                up.end()
            keep(rows, controls, repetition + 1)


def one_session(up, repetition, session, length, controls):
    """The rows of one session."""
    ids = prompt((repetition, up.tier, session, length), length)
    first, leak, _ = up.ask(up.servers[0], ids)
    controls["leak_rate_max"] = max(controls["leak_rate_max"], leak)
    if leak > 0.05:
        raise SystemExit(f"control: found a hit rate of {leak:.3f} for a first request, wanted at most 0.05")
    arms = {"same": up.servers[0], "cross": up.servers[1]}
    if up.tier == "T1" and session > 0:
        del arms["cross"]
    rows = []
    for arm in sorted(arms, reverse=(repetition + session) % 2 == 0):
        again, rate, load = up.ask(arms[arm], ids)
        rows.append({"repetition": repetition, "tier": up.tier, "arm": arm, "tokens": length, "session": session,
                     "first_ms": first, "second_ms": again, "hit_rate": rate, "load_ms": load})  # fmt: skip
    words = ", ".join(f"{row['arm']} {row['second_ms']:.0f} ms (hit rate {row['hit_rate']:.3f})" for row in rows)
    say(f"  {length:5} tokens: {first:6.0f} ms, again {words}")
    return rows


def lookup_micros():
    """The scheduler's lookup of 8,192 tokens in a region that has them all: median of 1,000."""
    import hashlib
    from types import SimpleNamespace

    import maru
    from maru.vllm.pools import Pool, Pools
    from maru.vllm.scheduler import SchedulerSide
    from maru.vllm.settings import PoolSettings
    from maru.vllm.tally import Tally

    path = f"/dev/shm/maru-bench-lookup-{os.getpid()}"
    names = (
        "tenant model revision adapter dtype quantization geometry storage_format parallel hash_algorithm hash_seed"
    ).split()
    fields = {**{name: "bench" for name in names}, "block_tokens": str(BLOCK)}
    hashes = [hashlib.sha256(bytes([n])).digest() for n in range(8192 // BLOCK)]
    try:
        pools = [
            Pool(PoolSettings("cpu", {"path": path, "size": 64 << 20}, {"evict": "never"}), header_only=header_only, engine="bench",
                 fields=fields, block_bytes=64 << 10)
            for header_only in (False, True)
        ]  # fmt: skip
        for pool in pools:
            pool.open()
        stored = pools[0].store(hashes, 0, [bytes(64 << 10)] * len(hashes), range(len(hashes)))
        assert stored == ["stored"] * len(hashes), (stored, maru.__version__)
        side = SchedulerSide(Pools(pools[1:], ["cpu"], ["cpu"]), Tally(), block_tokens=BLOCK, hashes_per_block=1, shards=[0],
                             asynchronous=False, store_generated=True)  # fmt: skip
        took = []
        for n in range(1000):
            request = SimpleNamespace(request_id=str(n), block_hashes=hashes, num_tokens=8193, prompt_embeds=None, mm_features=[],
                                      prompt_token_ids=[1], lora_request=None, resumable=False)  # fmt: skip
            began = time.perf_counter()
            found = side.matched_tokens(request, 0)
            took.append(time.perf_counter() - began)
            assert found == (8192, False), found
            side.finished(request.request_id)
        return statistics.median(took) * 1e6
    finally:
        pathlib.Path(path).unlink(missing_ok=True)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--sessions", type=int, default=4, help="prompts a length and repetition (the paper: 20; default 4)"
    )
    parser.add_argument(
        "--repetitions", type=int, default=3, help="each on fresh servers and a fresh region (default 3)"
    )
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, help="tokens of a prompt")
    parser.add_argument("--tiers", choices=TIERS, nargs="+", default=TIERS, help="only these, to look into something")
    parser.add_argument("--never", type=int, default=3, help="never-stored prompts a server and repetition (control 2)")
    parser.add_argument("--size", choices=mkmodel.SIZES, default="small", help="the random model")
    parser.add_argument("--pool", default="2GiB", help="size of the region")
    parser.add_argument(
        "--scratch",
        type=pathlib.Path,
        default=pathlib.Path(os.environ.get("MARU_VLLM_SCRATCH", tempfile.gettempdir() + "/maru-vllm")),
    )
    parser.add_argument(
        "--out", type=pathlib.Path, default=None, help="file for the numbers (default: stats.json in the scratch folder)"
    )
    parser.add_argument("--report", type=pathlib.Path, help="no run: table and picture from this file")
    parser.add_argument("--no-readme", action="store_true", help="leave the README as it is")
    return parser.parse_args()


def stop(*_):
    raise SystemExit("stopped")  # so that servers end, also where SIGINT is ignored


def main():
    signal.signal(signal.SIGTERM, stop)
    wish = arguments()
    if wish.report:
        stats = json.loads(wish.report.read_text())
    else:
        wish.scratch.mkdir(parents=True, exist_ok=True)
        wish.model = mkmodel.make(wish.scratch / f"m-{wish.size}", wish.size)
        began, load, lookup = time.time(), os.getloadavg()[0], lookup_micros()
        out = wish.out or wish.scratch / "stats.json"
        stats = {}

        def keep(rows, controls, repetitions):
            stats.update({
                "rows": rows, "controls": controls, "lookup_us": lookup, "model": wish.size, "sessions": wish.sessions,
                "repetitions": repetitions, "cores": os.cpu_count(), "processor": platform.processor() or platform.machine(),
                "load_before": load, "load_after": os.getloadavg()[0], "seconds": time.time() - began,
                "date": time.strftime("%Y-%m-%d", time.gmtime(began)),
            })  # fmt: skip
            out.write_text(json.dumps(stats, indent=1))

        measure(wish, keep)
        say(f"numbers in {out}")
    if not wish.report and set(wish.tiers) != set(TIERS):
        print(json.dumps(stats))
        return
    say(report.table(stats))
    if not wish.no_readme:
        report.write(stats, HERE.parent / "README.md", HERE / "bench.svg")
    print(json.dumps(report.summary(stats)))


if __name__ == "__main__":
    main()
