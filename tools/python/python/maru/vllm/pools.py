"""The regions of one side of one engine, in their orders, each behind its breaker.

A pool is a region, a session in it, and the engine's namespace there. What a pool answers is passed on as reason codes;
what it cannot answer moves its breaker and is answered as a miss or a refusal at once. No call here waits: opening a
region again, registering a namespace anew and heartbeats are done by one thread in the background (`Keeper`).

* *Lookups* walk the pools in the read order, each going on where the run of the others ended, so a prefix may lie in
  several pools.
* *Loads* ask the pools in the read order, each for what the others did not have.
* *Stores* skip what some pool has; the rest goes to the pools in the write order, the next one getting what the one
  before refused for want of room.
"""

import logging
import threading
import time

import maru

from .breaker import SPACE, Breaker

log = logging.getLogger("vllm.maru")

# Answers that mean that the bytes are (or are about to be) there.
STORED = frozenset({"stored", "already_stored"})
THERE = frozenset({"present", "being_written", "contended", "superseded"})


# All pages of a region are reserved when it is made: seconds to minutes for a large one.
START_WAIT_S = 600.0


class PoolError(ValueError):
    """A pool that this engine cannot use: named at start."""


class Live:
    """What a pool has while it is in use. Replaced as a whole, so whoever holds one has things that belong together."""

    def __init__(self, region, session, namespace):
        self.region, self.session, self.namespace = region, session, namespace

    def objects(self, digests, shard):
        return [maru.ObjectId(self.namespace, digest, shard, 0) for digest in digests]


class Pool:
    def __init__(self, config, *, header_only, engine, fields, block_bytes, breaker=None):
        self.name = config.name
        self.config = config
        self.header_only = header_only
        self.engine = engine
        self.fields = fields
        self.block_bytes = block_bytes
        self.breaker = breaker or Breaker(config.name)
        self.live = None
        self.stale = False
        """The namespace was invalidated; the keeper registers it anew."""
        self.told = ""
        """The last error that was logged; the same one is not logged every second."""

    def open(self):
        """Opens region, session and namespace; raises what went wrong."""
        wish = dict(self.config.region)
        path = wish.pop("path", None)
        if self.header_only:
            wish = {key: wish[key] for key in ("offset", "length", "lock_file") if key in wish}
            region = maru.Region.open(path, mode="header_only", format="never", **wish)
        else:
            wish.setdefault("slot_bytes", -(-self.block_bytes // 64) * 64)
            region = maru.Region.open(path, mode="full", format="if_absent", **wish)
        if region.slot_bytes < self.block_bytes:
            raise PoolError(
                f"pool {self.name} ({path}): found slots of {region.slot_bytes} bytes, wanted at least "
                f"{self.block_bytes}, a block of this model: give it a region of its own, or make the region with "
                "larger slots (maru_slot_size)"
            )
        session = region.session(self.engine, role="scheduler" if self.header_only else "worker", **self.config.session)
        self.live = Live(region, session, session.namespace(self.fields))
        self.stale = False
        log.info("maru: pool %s: region %s %s for %s", self.name, region.region_id.hex(), region.outcome, self.engine)

    def call(self, what, otherwise):
        """`what(live)`, or `otherwise` if the pool cannot be asked."""
        live = self.live
        if live is None or not self.breaker.may_ask():
            return otherwise
        try:
            return what(live)
        except (maru.Fenced, maru.Replaced, maru.Resized, maru.Lost, maru.OtherProcess) as error:
            if self.live is live:  # else it has been opened again meanwhile
                self.breaker.failed(error.code)
        except maru.MaruError as error:
            if str(error) != self.told:
                self.told = str(error)
                log.warning("maru: pool %s: %s", self.name, error)
        return otherwise

    def reopen(self):
        """Called by the keeper only."""
        old, self.live = self.live, None
        if old is not None:
            try:
                old.session.close()
            except maru.MaruError:
                pass  # it ends with its last lease
        try:
            self.open()
        except (maru.MaruError, PoolError, OSError) as error:
            self.breaker.failed(getattr(error, "code", "open"))
            return False
        self.breaker.reopened()
        return True

    def renew(self):
        """Registers the namespace anew if it was invalidated, by whomever. A lookup cannot tell that from a miss."""
        self.call(self._renew, None)

    def _renew(self, live):
        self.stale = False
        namespace = live.session.namespace(self.fields)
        if namespace.digest != live.namespace.digest:
            self.live = Live(live.region, live.session, namespace)

    def probe(self, digests, shard):
        return self.call(lambda live: live.session.probe_prefixes(live.namespace, digests, shard, 0), 0)

    def has(self, digests, shard):
        none = [False] * len(digests)
        return self.call(lambda live: [live.session.probe(o) is not None for o in live.objects(digests, shard)], none)

    def load(self, digests, shard, buffers, verify):
        codes = self.call(
            lambda live: live.session.load_into(live.objects(digests, shard), buffers, verify=verify), None
        )
        if codes is None:
            return [self.breaker.why or "failed"] * len(digests)
        if "invalidated" in codes:
            self.stale = True
        return codes

    def store(self, digests, shard, buffers, depths):
        if not self.breaker.may_store():
            return ["breaker_" + self.breaker.state] * len(digests)
        codes = self.call(
            lambda live: live.session.store_from(live.objects(digests, shard), buffers, depths=depths),
            ["failed"] * len(digests),
        )
        if "invalidated" in codes:
            self.stale = True
        if "fenced" in codes:
            self.breaker.failed("fenced")
        elif any(code in STORED for code in codes):
            self.breaker.stored()
        elif codes and all(code in SPACE for code in codes):
            self.breaker.refused(codes[0])
        return codes


class Pools:
    def __init__(self, pools, write_order, read_order):
        by_name = {pool.name: pool for pool in pools}
        self.all = pools
        self.writers = [by_name[name] for name in write_order]
        self.readers = [by_name[name] for name in read_order]

    def open(self):
        """At start only: waits for an engine that is making a large region at this moment."""
        deadline = time.monotonic() + START_WAIT_S
        for pool in self.all:
            while True:
                try:
                    pool.open()
                    break
                except maru.OpenError as error:
                    if error.code != "format_incomplete" or time.monotonic() >= deadline:
                        raise
                    log.info("maru: pool %s: %s, waiting", pool.name, error)

    def probe(self, digests, shards):
        """How many leading blocks are there, for every shard."""
        return min(self._run(digests, shard) for shard in shards)

    def _run(self, digests, shard):
        run, last = 0, -1
        while run > last and run * 32 < len(digests):
            last = run
            for pool in self.readers:
                run += pool.probe(digests[run * 32 :] if run else digests, shard)
            if len(self.readers) == 1:
                break
        return run

    def has(self, digests, shard):
        there = [False] * len(digests)
        for pool in self.all:
            ask = [i for i, found in enumerate(there) if not found]
            if not ask:
                break
            for i, found in zip(ask, pool.has([digests[i] for i in ask], shard)):
                there[i] = found
        return there

    def load(self, digests, shard, buffers, verify="always"):
        """`None` for each block whose bytes are in its buffer, else why not."""
        codes = ["absent"] * len(digests)
        ask = list(range(len(digests)))
        for pool in self.readers:
            found = pool.load([digests[i] for i in ask], shard, [buffers[i] for i in ask], verify)
            for i, code in zip(ask, found):
                # The first telling reason stays.
                codes[i] = code if code is None or codes[i] == "absent" else codes[i]
            ask = [i for i in ask if codes[i] is not None]
            if not ask:
                break
        return codes

    def may_store(self):
        return any(pool.breaker.may_store() and pool.live is not None for pool in self.writers)

    def store(self, digests, shard, buffers, depths):
        codes = ["no_pool"] * len(digests)
        ask = list(range(len(digests)))
        for pool in self.writers:
            answers = pool.store([digests[i] for i in ask], shard, [buffers[i] for i in ask], [depths[i] for i in ask])
            for i, code in zip(ask, answers):
                codes[i] = code
            ask = [i for i in ask if codes[i] not in STORED and codes[i] not in THERE]
            if not ask:
                break
        return codes

    def retire(self, digest, shard):
        for pool in self.all:
            pool.call(lambda live: live.session.retire(*live.objects([digest], shard)), None)

    def renew(self):
        for pool in self.all:
            pool.renew()

    def invalidate(self):
        """No block of this engine's namespace is found any more, by anybody. False if some pool could not be asked."""
        done = [pool.call(lambda live: (live.session.invalidate(live.namespace), True)[1], False) for pool in self.all]
        self.renew()
        return all(done)

    def close(self):
        for pool in self.all:
            live, pool.live = pool.live, None
            if live is not None:
                try:
                    live.session.close()
                except maru.MaruError as error:
                    log.info("maru: pool %s: %s", pool.name, error)


class Keeper(threading.Thread):
    """Beats, reopens, renews: everything that may take a moment, away from every request."""

    BEAT_S = 1.0
    LOOK_S = 0.1

    def __init__(self, pools, each_beat=None):
        super().__init__(name="maru-keeper", daemon=True)
        self.pools = pools
        self.each_beat = each_beat
        self.ended = threading.Event()

    def run(self):
        looks = 0
        while not self.ended.wait(self.LOOK_S):
            looks += 1
            try:
                self.look(beat=looks % round(self.BEAT_S / self.LOOK_S) == 0)
            except Exception:  # the keeper outlives whatever it meets
                log.exception("maru: keeper")

    def look(self, beat):
        for pool in self.pools.all:
            if pool.breaker.may_reopen():
                pool.reopen()
            if beat:
                pool.call(lambda live: live.session.heartbeat(), None)
            if pool.stale or beat:
                pool.renew()
            for state, why in pool.breaker.take_changes():
                log.warning("maru: pool %s is %s%s", pool.name, state, f" ({why})" if why else " again")
        if beat and self.each_beat is not None:
            self.each_beat()

    def end(self):
        self.ended.set()
        if self.is_alive():
            self.join(timeout=10)
