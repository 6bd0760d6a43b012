"""Counts between two payloads of statistics; safe to add to from any thread."""

import threading


class Tally:
    def __init__(self):
        self._lock = threading.Lock()
        self._counters, self._gauges = {}, {}

    def add(self, name, number=1, label=None):
        key = name if label is None else f"{name}|{label}"
        with self._lock:
            self._counters[key] = self._counters.get(key, 0) + number

    def set(self, name, number, label=None):
        key = name if label is None else f"{name}|{label}"
        with self._lock:
            self._gauges[key] = number

    def take(self):
        """The payload since the last one; `None` if nothing happened."""
        with self._lock:
            counters, gauges = self._counters, self._gauges
            self._counters, self._gauges = {}, {}
        counters = {key: number for key, number in counters.items() if number}
        return {"counters": counters, "gauges": gauges} if counters or gauges else None
