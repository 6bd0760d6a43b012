"""What the connector counts, in vLLM's own statistics: in its log line, and on /metrics with the prefix `vllm:maru_`.

A payload is `{"counters": {key: number}, "gauges": {key: number}}`; a key is a name of the tables below, with `|label`
behind it where the table has a label. Labels are reasons, pools and counters' names: never a request or a block.
Counters are what was added since the last payload, so they add up over ranks and steps; gauges are the last value.
"""

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

COUNTERS = {
    "lookups": ("Lookups of a request's prefix.", None),
    "lookup_seconds": ("Time in lookups.", None),
    "lookup_blocks": ("Blocks asked for in lookups.", None),
    "lookup_hits": ("Blocks found in lookups (planned hits).", None),
    "bypassed": ("Requests that stay out of the shared cache, by reason.", "reason"),
    "loaded_blocks": ("Blocks loaded into the engine (real hits).", None),
    "loaded_bytes": ("Bytes loaded into the engine.", None),
    "load_seconds": ("Time in loads.", None),
    "load_failed_blocks": ("Blocks whose load failed and that the engine computes again, by reason.", "reason"),
    "stored_blocks": ("Blocks stored.", None),
    "stored_bytes": ("Bytes stored.", None),
    "store_seconds": ("Time in stores.", None),
    "store_skipped_blocks": ("Complete blocks that were not stored, by reason.", "reason"),
}
GAUGES = {
    "pool_state": ("Breaker of a pool: 0 closed, 1 full, 2 open.", "pool"),
    "pool_opened": ("How often the pool's breaker opened.", "pool"),
    "pool_capacity_bytes": ("Slots of the pool, in bytes.", "pool"),
    "pool_allocated_bytes": ("Slots in use, in bytes.", "pool"),
    "pool_ready_bytes": ("Blocks that can be loaded, in bytes.", "pool"),
    "session_counter": ("Maru's own counters of this engine's sessions, by name.", "counter"),
}
STATES = {"closed": 0, "full": 1, "open": 2}


def gauge_pools(tally, pools, who):
    """Breakers, usage and Maru's own counters, pool by pool."""
    for pool in pools.all:
        place = f"{pool.name}/{who}"
        tally.set("pool_state", STATES[pool.breaker.state], place)
        tally.set("pool_opened", pool.breaker.opened, place)
        usage = pool.call(lambda live: live.session.usage(), None)
        if usage is not None:
            for name in ("capacity_bytes", "allocated_bytes", "ready_bytes"):
                tally.set("pool_" + name, usage[name], place)
        for name, number in (pool.call(lambda live: live.session.counters(), None) or {}).items():
            if number:
                tally.set("session_counter", number, f"{place}/{name}")


class MaruStats(KVConnectorStats):
    def __init__(self, data=None):
        super().__init__(data=data or {})
        self.data.setdefault("counters", {})
        self.data.setdefault("gauges", {})

    def reset(self):
        self.data = {"counters": {}, "gauges": {}}

    def aggregate(self, other):
        for key, number in other.data.get("counters", {}).items():
            self.data["counters"][key] = self.data["counters"].get(key, 0) + number
        self.data["gauges"].update(other.data.get("gauges", {}))
        return self

    def reduce(self):
        short = {key: number for key, number in self.data["counters"].items() if number}
        states = {key: n for key, n in self.data["gauges"].items() if key.startswith("pool_state")}
        return {"maru_" + key: round(number, 6) for key, number in {**short, **states}.items()}

    def is_empty(self):
        return not any(self.data["counters"].values()) and not self.data["gauges"]


class MaruPromMetrics(KVConnectorPromMetrics):
    def __init__(self, vllm_config, metric_types, labelnames, per_engine_labelvalues):
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._families = {}
        for table, make in ((COUNTERS, self._counter_cls), (GAUGES, self._gauge_cls)):
            for name, (text, label) in table.items():
                labels = labelnames + ([label] if label else [])
                self._families[name] = make(name=f"vllm:maru_{name}", documentation=text, labelnames=labels)

    def _metric(self, key, engine):
        name, _, label = key.partition("|")
        family = self._families.get(name)
        if family is None:
            return None
        values = list(self.per_engine_labelvalues[engine]) + ([label] if label else [])
        return family.labels(*values)

    def observe(self, transfer_stats_data, engine_idx=0):
        for key, number in transfer_stats_data.get("counters", {}).items():
            metric = self._metric(key, engine_idx)
            if metric is not None and number > 0:
                metric.inc(number)
        for key, number in transfer_stats_data.get("gauges", {}).items():
            metric = self._metric(key, engine_idx)
            if metric is not None:
                metric.set(number)
