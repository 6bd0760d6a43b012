"""What is loaded and stored in a step, for any split of a prefill. No vLLM, no torch: numbers in, plan out.

Everything is counted in blocks of one request, from 0. For each request the scheduler keeps one number, `next_store`:
blocks below it are in the region (found there, or handed to the workers). A step that ends at token `end` completes the
blocks up to `end // block_tokens`; those that have a digest and are not below `next_store` are stored in that step,
whatever the steps before were. So a prompt may be cut anywhere, a suffix behind a hit is stored, blocks of the engine's
own cache that the region has lost are stored again, and generated tokens are stored when they fill a block.

* P1: *Only confirmed tokens.* A digest exists only for tokens that the request really has; positions that run ahead
  (asynchronous scheduling) have none, so they are not stored.
* P2: *Going back.* If a step computes below `next_store` (preempted, or a load failed), `next_store` goes back with it.
* P3: *One token left.* A load never covers the last token of a request: its hidden state is what the next token is made
  of.
* P4: *Nothing on a doubtful ground.* A failed load that feeds the step at hand leaves the blocks behind it computed
  from bytes that were never there. The workers drop all stores of that step and of every step planned before the
  scheduler knew (`StepPlan.failures_seen` is behind the worker's own count), and report which; `next_store` goes back
  to them.
"""

from dataclasses import dataclass, field


@dataclass
class Span:
    """Blocks `first`.. of a request: their digests in one buffer, and where they lie in the engine."""

    request_id: str
    first: int
    digests: bytes
    block_ids: list
    asynchronous: bool = False


@dataclass
class StepPlan:
    """From the scheduler to the workers, by pickle: what this step is to do."""

    loads: list = field(default_factory=list)
    stores: list = field(default_factory=list)
    failures_seen: int = 0
    renew: int = 0
    """How many times the namespace was invalidated from here; workers register it anew when it grows."""


@dataclass
class StepReport:
    """From a worker to the scheduler: stores that were dropped because of P4."""

    failures: int = 0
    dropped: dict = field(default_factory=dict)
    """Request id to the first block that was not stored."""

    def merge(self, other):
        self.failures = max(self.failures, other.failures)
        for request_id, first in other.dropped.items():
            self.dropped[request_id] = min(first, self.dropped.get(request_id, first))
        return self


def loadable(found_blocks, local_tokens, request_tokens, block_tokens):
    """How many tokens to load behind `local_tokens`, of a run of `found_blocks`, with P3."""
    end = min(found_blocks * block_tokens, (request_tokens - 1) // block_tokens * block_tokens)
    # A local hit that ends within a block is vLLM's affair; loads begin at block ends only.
    if local_tokens % block_tokens:
        return 0
    return max(0, end - local_tokens)


@dataclass
class RequestPlan:
    """One request in the scheduler."""

    request_id: str
    block_tokens: int
    next_store: int = 0
    local_tokens: int = 0
    """What the engine had itself when it was last looked up."""
    found: int = 0

    def looked_up(self, local_tokens, found_blocks):
        self.local_tokens = local_tokens
        self.found = found_blocks
        # What is not in the region is stored, also if an earlier life of the request stored it.
        self.next_store = found_blocks

    def load(self, tokens):
        """Blocks to load for `tokens` behind the local hit: (first, last)."""
        first = self.local_tokens // self.block_tokens
        return first, first + tokens // self.block_tokens

    def store(self, start, end, digest_count):
        """Blocks to store in a step that computes tokens `start`..`end`: (first, last), empty if equal."""
        self.next_store = min(self.next_store, start // self.block_tokens)
        last = min(end // self.block_tokens, digest_count)
        first = self.next_store
        if last <= first:
            return first, first
        self.next_store = last
        return first, last

    def go_back(self, block):
        self.next_store = min(self.next_store, block)
