"""`MaruConnector`: vLLM's connector interface (`KVConnectorBase_V1`), each call handed to one side.

The scheduler's connector attaches header-only at once: the worker's was made before it and has formatted the regions.
The worker's opens its regions when vLLM registers its tensors, for only then the bytes of a block are certain.
"""

import atexit
import logging
import os
from dataclasses import dataclass

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorWorkerMetadata,
)
from vllm.v1.metrics.cache_hit_source import CacheHitSource

import maru

from . import fingerprint, seed, selftest, settings, stats, support
from .pages import Pages
from .plan import StepPlan, StepReport
from .pools import Keeper, Pool, Pools
from .scheduler import SchedulerSide
from .tally import Tally
from .worker import WorkerSide

log = logging.getLogger("vllm.maru")
CARD_EVERY_BEATS = 30


@dataclass
class MaruMetadata(KVConnectorMetadata):
    step: StepPlan


@dataclass
class MaruWorkerMeta(KVConnectorWorkerMetadata):
    report: StepReport

    def aggregate(self, other):
        return MaruWorkerMeta(self.report.merge(other.report))


@dataclass
class MaruHandshake(KVConnectorHandshakeMetadata):
    """What a worker looks for; the scheduler must look for the same."""

    fields: dict
    block_bytes: int


class MaruConnector(KVConnectorBase_V1):
    _cache_hit_source = CacheHitSource.HOST

    @property
    def requires_kv_delivery(self):
        return False  # a cache: a store that is left out is a later miss

    def __init__(self, vllm_config, role, kv_cache_config):
        super().__init__(vllm_config, role, kv_cache_config)
        self.hashes_per_block = support.check_config(vllm_config, kv_cache_config)
        self.settings = settings.read(
            vllm_config.kv_transfer_config.kv_connector_extra_config, vllm_config.parallel_config.data_parallel_rank
        )
        self.fields, self.geometry = fingerprint.of_engine(
            vllm_config,
            kv_cache_config,
            tenant=self.settings.tenant,
            vouched=self.settings.cache_namespace,
            seed=seed.from_environment(),
        )
        maru.catch_faults()  # a region that is cut or lost under the mapping is a lost pool, not the engine's end
        self.tally = Tally()
        self.beats = 0
        self.keeper = self.pools = self.worker = self.scheduler = None
        if role == KVConnectorRole.SCHEDULER:
            self._start_scheduler()

    def _open_pools(self, who, *, header_only):
        self.who = who
        pools = [
            Pool(
                pool,
                header_only=header_only,
                engine=f"{self.settings.engine_id}/{who}",
                fields=self.fields,
                block_bytes=self.geometry.block_bytes,
            )
            for pool in self.settings.pools
        ]
        self.pools = Pools(pools, self.settings.write_order, self.settings.read_order)
        self.pools.open()

    def _keep(self):
        self.keeper = Keeper(self.pools, self._beat)
        self.keeper_pid = os.getpid()
        self.keeper.start()
        # An engine that ends in an orderly way leaves its place at once; one that is killed leaves it to its finder.
        atexit.register(self.shutdown)

    def _beat(self):
        """Once a second, in the keeper's thread: accounts of a large region take milliseconds to count."""
        stats.gauge_pools(self.tally, self.pools, self.who)
        self.beats += 1
        if self.worker is not None and self.beats % CARD_EVERY_BEATS == 0:
            try:
                seed.leave_card(self.pools, self.fields)  # it may have been evicted
            except seed.SeedError as error:
                log.error("maru: %s", error)

    # The worker's side

    def register_kv_caches(self, kv_caches):
        from vllm.distributed.parallel_state import get_tp_group

        group = self._kv_cache_config.kv_cache_groups[0]
        rank, size = get_tp_group().rank_in_group, get_tp_group().world_size
        pages = Pages(kv_caches, group.layer_names, self._kv_cache_config.num_blocks)
        if pages.block_bytes != self.geometry.block_bytes:
            raise selftest.SelfTestError(
                f"KV tensors: found {pages.block_bytes} bytes a block, "
                f"wanted {self.geometry.block_bytes} as the configuration says"
            )
        self._open_pools(f"worker{rank}", header_only=False)
        seed.leave_card(self.pools, self.fields)
        layers = self._vllm_config.compilation_config.static_forward_context
        selftest.run(pages, self.pools, kv_caches, layers, shard=rank, block_tokens=self.geometry.block_tokens)
        self.worker = WorkerSide(
            self.pools,
            pages,
            self.tally,
            shard=rank,
            asynchronous=self.settings.asynchronous,
            verify=self.settings.verify,
            agree=_agree if size > 1 else None,
        )
        self._keep()
        log.info("maru: %s: %d bytes a block, %s", self.who, pages.block_bytes, self.fields)

    def _step(self):
        return self._get_connector_metadata().step

    def start_load_kv(self, forward_context, **kwargs):
        self.worker.start_loads(self._step())

    def wait_for_layer_load(self, layer_name):
        return  # loads that feed a step are done before it begins

    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **kwargs):
        self.worker.layer_done(layer_name)

    def wait_for_save(self):
        self.worker.store_step(self._step())

    def get_finished(self, finished_req_ids):
        return None, self.worker.take_loaded() or None

    def get_block_ids_with_load_errors(self):
        return self.worker.take_failed_blocks()

    def build_connector_worker_meta(self):
        report = self.worker.take_report()
        return None if report is None else MaruWorkerMeta(report)

    def get_handshake_metadata(self):
        return MaruHandshake(self.fields, self.geometry.block_bytes)

    # The scheduler's side

    def _start_scheduler(self):
        self._open_pools("scheduler", header_only=True)
        self.scheduler = SchedulerSide(
            self.pools,
            self.tally,
            block_tokens=self.geometry.block_tokens,
            hashes_per_block=self.hashes_per_block,
            shards=range(self._vllm_config.parallel_config.tensor_parallel_size),
            asynchronous=self.settings.asynchronous,
            store_generated=self.settings.store_generated,
        )
        self._keep()

    def set_xfer_handshake_metadata(self, metadata):
        for rank, theirs in metadata.items():
            for name in self.fields:
                if theirs.fields.get(name) != self.fields[name]:
                    raise ValueError(
                        f"{name}: found {theirs.fields.get(name)!r} in worker {rank}, "
                        f"wanted {self.fields[name]!r} as in its scheduler"
                    )

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        try:
            return self.scheduler.matched_tokens(request, num_computed_tokens)
        except Exception:  # a lookup that fails is a miss; an exception here would end the engine
            log.exception("maru: lookup of %s", request.request_id)
            return 0, False

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        if num_external_tokens > 0:
            self.scheduler.allocated(request, blocks.get_block_ids()[0], num_external_tokens)

    def build_connector_meta(self, scheduler_output):
        starts = {new.req_id: new.num_computed_tokens for new in scheduler_output.scheduled_new_reqs}
        cached = scheduler_output.scheduled_cached_reqs
        starts.update(zip(cached.req_ids, cached.num_computed_tokens))
        state = scheduler_output.kv_connector_block_state
        return MaruMetadata(
            self.scheduler.plan_step(starts, scheduler_output.num_scheduled_tokens, lambda r: state.get_block_ids(r)[0])
        )

    def update_connector_output(self, connector_output):
        if connector_output.invalid_block_ids:
            self.scheduler.loads_failed(connector_output.invalid_block_ids)
        meta = connector_output.kv_connector_worker_meta
        if meta is not None:
            self.scheduler.reported(meta.report)

    def request_finished(self, request, block_ids):
        self.scheduler.finished(request.request_id)
        return False, None  # stores are done in their step: nothing holds the blocks

    def reset_cache(self):
        return self.scheduler.invalidate()

    # Both

    def get_kv_connector_stats(self):
        payload = self.tally.take()
        return None if payload is None else stats.MaruStats(data=payload)

    @classmethod
    def build_kv_connector_stats(cls, data=None):
        return stats.MaruStats(data=data)

    @classmethod
    def build_prom_metrics(cls, vllm_config, metric_types, labelnames, per_engine_labelvalues):
        return stats.MaruPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def shutdown(self):
        atexit.unregister(self.shutdown)
        if self.keeper is not None and self.keeper_pid == os.getpid():
            self.keeper.end()
            if self.worker is not None:
                self.worker.end()
            self.pools.close()
            self.keeper = None


def _agree(failed):
    """Whether the loads of any rank failed. All ranks come here in the same steps, since they have the same plan."""
    import torch
    from vllm.distributed.parallel_state import get_tp_group

    flag = torch.tensor([int(failed)])
    torch.distributed.all_reduce(flag, op=torch.distributed.ReduceOp.MAX, group=get_tp_group().cpu_group)
    return bool(flag.item())
