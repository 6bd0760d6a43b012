"""The scheduler's side: asks which leading blocks are there, and says what each step loads and stores.

It maps the header of each region and nothing else. Nothing that it knows of a region is kept: each lookup asks anew,
and what a load finds is decided by the load. It keeps one small record for each request that runs, and drops it when
that ends.

A request whose load failed at a block is not offered that block again. Else a request whose first block cannot be
loaded (the header says that it is there, the worker's pool is out) would be looked up and parked for ever.
"""

import logging
import time

from .identity import Digests, bypass
from .plan import RequestPlan, Span, StepPlan, loadable

log = logging.getLogger("vllm.maru")


class Tracked:
    def __init__(self, request, block_tokens, hashes_per_block):
        self.request = request
        self.plan = RequestPlan(request.request_id, block_tokens)
        self.digests = Digests(hashes_per_block)
        self.bypass = bypass(request)
        self.loading = None
        """The last load: its blocks stay the request's own until the load has ended."""
        self.offer = None
        """Blocks that may still be offered, once a load failed."""


class SchedulerSide:
    def __init__(
        self,
        pools,
        stats,
        *,
        block_tokens,
        hashes_per_block,
        shards,
        asynchronous,
        store_generated,
        load=True,
        store=True,
    ):
        self.pools = pools
        self.stats = stats
        self.block_tokens = block_tokens
        self.hashes_per_block = hashes_per_block
        self.shards = shards
        self.asynchronous = asynchronous
        self.store_generated = store_generated
        self.load, self.store = load, store
        self.tracked = {}
        self.next = StepPlan()
        self.failures_seen = 0
        self.renewals = 0

    def _track(self, request):
        tracked = self.tracked.get(request.request_id)
        if tracked is None or tracked.request is not request:
            tracked = Tracked(request, self.block_tokens, self.hashes_per_block)
            self.tracked[request.request_id] = tracked
            if tracked.bypass:
                self.stats.add("bypassed", label=tracked.bypass)
        return tracked

    def matched_tokens(self, request, local_tokens):
        tracked = self._track(request)
        if tracked.bypass or not self.load:
            return 0, False
        began = time.perf_counter()
        count = tracked.digests.count(request.block_hashes)
        found = self.pools.probe(tracked.digests.span(0, count), self.shards) if count else 0
        if tracked.offer is not None:
            found = min(found, tracked.offer)
        tracked.plan.looked_up(local_tokens, found)
        tokens = loadable(found, local_tokens, request.num_tokens, self.block_tokens)
        self.stats.add("lookup_seconds", time.perf_counter() - began)
        self.stats.add("lookups")
        self.stats.add("lookup_blocks", count)
        self.stats.add("lookup_hits", found)
        return tokens, self.asynchronous and tokens > 0

    def allocated(self, request, block_ids, tokens):
        """The engine has made room for `tokens` that we said could be loaded."""
        if tokens <= 0:
            return
        tracked = self._track(request)
        first, last = tracked.plan.load(tokens)
        digests = tracked.digests.span(first, last)
        span = Span(request.request_id, first, digests, list(block_ids[first:last]), self.asynchronous)
        self.next.loads.append(span)
        tracked.loading = span

    def plan_step(self, starts, scheduled, block_ids_of):
        """`starts`: request id to computed tokens before the step; `scheduled`: request id to tokens of the step."""
        step, self.next = self.next, StepPlan()
        step.failures_seen, step.renew = self.failures_seen, self.renewals
        for request_id, tokens in scheduled.items():
            tracked = self.tracked.get(request_id)
            if tracked is None or tracked.bypass or not self.store:
                continue
            start = starts[request_id]
            count = tracked.digests.count(tracked.request.block_hashes)
            if not self.store_generated:
                count = min(count, tracked.request.num_prompt_tokens // self.block_tokens)
            first, last = tracked.plan.store(start, start + tokens, count)
            if last > first:
                ids = block_ids_of(request_id)
                step.stores.append(Span(request_id, first, tracked.digests.span(first, last), list(ids[first:last])))
        return step

    def loads_failed(self, block_ids):
        """Blocks that workers could not load."""
        for tracked in self.tracked.values():
            span = tracked.loading
            if span is not None and not block_ids.isdisjoint(span.block_ids):
                bad = next(i for i, block in enumerate(span.block_ids) if block in block_ids)
                tracked.offer = min(span.first + bad, tracked.offer if tracked.offer is not None else span.first + bad)

    def reported(self, report):
        """A worker dropped stores because a load had failed."""
        self.failures_seen = max(self.failures_seen, report.failures)
        for request_id, first in report.dropped.items():
            tracked = self.tracked.get(request_id)
            if tracked is not None:
                tracked.plan.go_back(first)

    def finished(self, request_id):
        self.tracked.pop(request_id, None)

    def invalidate(self):
        """vLLM's weights changed: nothing stored before may be found again."""
        done = self.pools.invalidate()
        self.renewals += 1
        return done
