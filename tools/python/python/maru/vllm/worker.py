"""A worker's side: copies whole blocks between the engine's tensors and the regions.

* W1: *A block is published whole.* It is gathered after the last layer of the step, from all layers, and committed in
  one piece; the order in which layers called back does not matter. A step that ended in an exception, or in which some
  layer called back and another did not, publishes nothing.
* W2: *Every load ends.* A load that cannot be done, for whatever reason, is reported as failed blocks, and the request
  as finished. Of a request's blocks the ones before the first failure are kept; that one and those behind it are
  computed again (vLLM computes from the first failure on).
* W3: *Nothing that stands on a failed load is stored* (P4 in `plan.py`). With several ranks, all agree first: the
  others' layers saw the hidden states of the one whose load failed.
* W4: *Nobody waits.* What a pool cannot do at once is a failed load or a store that is left out.
"""

import logging
import queue
import sys
import threading
import time

from .identity import split
from .plan import StepReport
from .pools import STORED, THERE

log = logging.getLogger("vllm.maru")

STAGING_BYTES = 16 << 20


class WorkerSide:
    def __init__(self, pools, pages, stats, *, shard, asynchronous, verify="always", agree=None):
        self.pools = pools
        self.pages = pages
        self.stats = stats
        self.shard = shard
        self.verify = verify
        self.agree = agree
        """With several ranks: (did a load of mine fail) -> did one of anybody's."""
        self.staging = pages.staging(STAGING_BYTES)
        self.layers = frozenset(pages.layer_names)
        self.layers_seen = set()
        self.failed_blocks = set()
        self.failures = 0
        self.renewals = 0
        self.report = None
        self.told = 0
        self.jobs = self.done = None
        if asynchronous:
            self.jobs, self.done = queue.SimpleQueue(), queue.SimpleQueue()
            self.load_staging = pages.staging(STAGING_BYTES)
            self.thread = threading.Thread(target=self._load_jobs, name="maru-loads", daemon=True)
            self.thread.start()

    # Loads

    def start_loads(self, step):
        self._look_at_renewals(step)
        failed, here = False, False
        for span in step.loads:
            if span.asynchronous and self.jobs is not None and self.thread.is_alive():
                self.jobs.put(span)
                continue
            bad = self._load(span, self.staging)
            self.failed_blocks.update(bad)
            if span.asynchronous:
                self.done.put((span.request_id, []))
            else:
                here, failed = True, failed or bool(bad)
        if here and self.agree is not None:
            failed = self.agree(failed)
        if failed:
            self.failures += 1

    def _load_jobs(self):
        while (span := self.jobs.get()) is not None:
            bad = span.block_ids
            try:
                bad = self._load(span, self.load_staging)
            finally:
                self.done.put((span.request_id, bad))

    def _load(self, span, staging):
        """Loads what it can; returns the ids of the blocks that the engine must compute."""
        began, good = time.perf_counter(), 0
        digests, reason = split(span.digests), None
        try:
            while good < len(digests) and reason is None:
                part = digests[good : good + staging.count]
                codes = self.pools.load(part, self.shard, staging.buffers[: len(part)], self.verify)
                right = next((i for i, code in enumerate(codes) if code is not None), len(codes))
                if right:
                    self.pages.scatter(span.block_ids[good : good + right], staging)
                if right < len(part):
                    reason = codes[right]
                good += right
        except Exception as error:  # W2: whatever it is, the request goes on without these blocks
            log.exception("maru: load of %d blocks", len(digests))
            reason = type(error).__name__
        bad = span.block_ids[good:]
        self.stats.add("loaded_blocks", good)
        self.stats.add("loaded_bytes", good * self.pages.block_bytes)
        self.stats.add("load_seconds", time.perf_counter() - began)
        if bad:
            self.stats.add("load_failed_blocks", len(bad), reason)
            log.warning(
                "maru: %d of %d blocks not loaded (%s), the engine computes them", len(bad), len(digests), reason
            )
        return bad

    def take_loaded(self):
        """Ids of requests whose asynchronous load has ended, either way."""
        ended = set()
        while self.done is not None:
            try:
                request_id, bad = self.done.get_nowait()
            except queue.Empty:
                break
            ended.add(request_id)
            self.failed_blocks.update(bad)
        return ended

    def take_failed_blocks(self):
        failed, self.failed_blocks = self.failed_blocks, set()
        return failed

    # Stores

    def layer_done(self, name):
        self.layers_seen.add(name)

    def store_step(self, step):
        seen, self.layers_seen = self.layers_seen, set()
        if not step.stores:
            return
        why = None
        if sys.exc_info()[0] is not None:
            why = "forward_failed"  # vLLM calls in a `finally`: the blocks may hold half a step
        elif seen and not self.layers <= seen:
            why = "layers_missing"
        elif step.failures_seen != self.failures:
            why = "load_failed"
            self.report = self.report or StepReport()
            for span in step.stores:
                self.report.merge(StepReport(self.failures, {span.request_id: span.first}))
        if why is not None:
            self.stats.add("store_skipped_blocks", sum(len(span.block_ids) for span in step.stores), why)
            return
        for span in step.stores:
            try:
                self._store(span)
            except Exception:  # W4: a block that is not stored costs a later hit, not this request
                log.exception("maru: store of %d blocks", len(span.block_ids))
                self.stats.add("store_skipped_blocks", len(span.block_ids), "error")

    def _store(self, span):
        began = time.perf_counter()
        digests = split(span.digests)
        if not self.pools.may_store():
            self.stats.add("store_skipped_blocks", len(digests), "breaker")
            return
        there = self.pools.has(digests, self.shard)
        todo = [i for i, found in enumerate(there) if not found]
        for at in range(0, len(todo), self.staging.count):
            part = todo[at : at + self.staging.count]
            self.pages.gather([span.block_ids[i] for i in part], self.staging)
            codes = self.pools.store(
                [digests[i] for i in part],
                self.shard,
                self.staging.buffers[: len(part)],
                [span.first + i for i in part],
            )
            stored = sum(code in STORED for code in codes)
            self.stats.add("stored_blocks", stored)
            self.stats.add("stored_bytes", stored * self.pages.block_bytes)
            for code in codes:
                if code not in STORED and code not in THERE:
                    self.stats.add("store_skipped_blocks", label=code)
        self.stats.add("store_seconds", time.perf_counter() - began)

    def take_report(self):
        report, self.report = self.report, None
        if report is None and self.failures > self.told:
            report = StepReport(self.failures)
        if report is not None:
            self.told = self.failures
        return report

    def _look_at_renewals(self, step):
        if step.renew != self.renewals:
            self.renewals = step.renew
            self.pools.renew()

    def end(self):
        if self.jobs is not None:
            self.jobs.put(None)
            self.thread.join(timeout=10)
