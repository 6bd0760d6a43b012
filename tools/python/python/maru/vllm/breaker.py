"""One breaker a pool: what has failed is left alone for a while, and tried again without anybody waiting for it.

States of a breaker, and what is asked of the pool in each:

* `closed`: everything.
* `full`: loads and lookups; no stores until the pause is over, then one batch of stores tries. Every refusal after a
  pause doubles it, a store that goes through ends it.
* `open`: nothing. The pool is gone for this process (file replaced or lost, session fenced, cannot be opened). Whoever
  keeps the pool opens it again in the background, at `retry_at` and at growing distances, and says `reopened()`.

A breaker holds no lock: it is read and moved by the thread that makes the calls and by the one that beats and reopens,
and each move is one assignment of a state that is right by itself.
"""

import time
from dataclasses import dataclass, field

CLOSED, FULL, OPEN = "closed", "full", "open"

# Refusals that are a matter of the pool and last for a while; others ("contended", "too_large") are a block's.
SPACE = frozenset({"no_space", "over_budget", "session_limit"})


@dataclass
class Breaker:
    name: str
    first_pause_s: float = 0.5
    longest_pause_s: float = 5.0
    clock: "callable" = time.monotonic
    state: str = CLOSED
    why: str = ""
    retry_at: float = 0.0
    pause_s: float = 0.0
    opened: int = 0
    """How many times it left `closed` for `open`."""
    filled: int = 0
    """How many times it left `closed` for `full`."""
    changes: list = field(default_factory=list)
    """Transitions that nobody has told yet: (state, why)."""

    def may_ask(self):
        return self.state != OPEN

    def may_store(self):
        return self.state == CLOSED or (self.state == FULL and self.clock() >= self.retry_at)

    def may_reopen(self):
        return self.state == OPEN and self.clock() >= self.retry_at

    def failed(self, why):
        """The pool is gone for this process."""
        self._pause()
        if self.state != OPEN:
            self.opened += 1
            self._move(OPEN, why)
        self.why = why

    def refused(self, why):
        """A store found no room."""
        if self.state == OPEN:
            return
        self._pause()
        if self.state != FULL:
            self.filled += 1
            self._move(FULL, why)
        self.why = why

    def stored(self):
        """A store went through."""
        if self.state == FULL:
            self._close()

    def reopened(self):
        if self.state == OPEN:
            self._close()

    def take_changes(self):
        told, self.changes = self.changes, []
        return told

    def _pause(self):
        longer = self.pause_s * 2 if self.pause_s else self.first_pause_s
        self.pause_s = min(longer, self.longest_pause_s)
        self.retry_at = self.clock() + self.pause_s

    def _close(self):
        self.pause_s = 0.0
        self._move(CLOSED, "")

    def _move(self, state, why):
        self.state, self.why = state, why
        self.changes.append((state, why))
