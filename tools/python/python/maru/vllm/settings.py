"""`kv_connector_extra_config`: the keys of the store (`maru.config`) and three of this connector's own."""

from dataclasses import dataclass

from maru import ConfigError, config

KEYS = {
    "maru_load_mode": "sync: loads are done before the step that needs them; async: in the background, others go on",
    "maru_store_generated": "whether blocks of generated tokens are stored too (true), or prompts alone",
    "maru_verify": "always: each loaded block's checksum is verified; never: only that it is the block asked for",
}


@dataclass(frozen=True)
class PoolSettings:
    name: str
    region: dict
    """Options of `Region.open`."""
    session: dict
    """Options of `Region.session`."""


@dataclass(frozen=True)
class Settings:
    engine_id: str
    tenant: str
    cache_namespace: str
    pools: tuple
    write_order: tuple
    read_order: tuple
    asynchronous: bool
    store_generated: bool
    verify: str


def _one_of(extra, key, known, default):
    value = extra.get(key, default)
    if value not in known:
        wanted = " or ".join(map(repr, known))
        raise ConfigError(f"{key} is {value!r}, wanted {wanted}", field=key, found=repr(value), wanted=wanted)
    return value


def _pool(options):
    options = dict(options)
    name, evict = options.pop("name"), options.pop("evict")
    for role in ("mode", "format"):  # each side has its own
        options.pop(role)
    return PoolSettings(name, options, {"evict": evict})


def read(extra, data_parallel_rank=0):
    store = config.from_mapping(extra, also_known=KEYS)
    if store.cpu_scope == "process":
        wanted = "host (vLLM's scheduler is another process than its workers)"
        raise ConfigError(
            f"maru_cpu_scope is 'process', wanted {wanted}", field="maru_cpu_scope", found="'process'", wanted=wanted
        )
    generated = store.extra.get("maru_store_generated", True)
    if not isinstance(generated, bool):
        raise ConfigError(
            f"maru_store_generated is {generated!r}, wanted true or false",
            field="maru_store_generated", found=repr(generated), wanted="true or false",
        )  # fmt: skip
    return Settings(
        engine_id=store.engine_id if data_parallel_rank == 0 else f"{store.engine_id}/dp{data_parallel_rank}",
        tenant=store.tenant,
        cache_namespace=store.cache_namespace,
        pools=tuple(_pool(options) for options in store.store_options()["pools"]),
        write_order=store.write_order,
        read_order=store.read_order,
        asynchronous=_one_of(store.extra, "maru_load_mode", ("sync", "async"), "sync") == "async",
        store_generated=generated,
        verify=_one_of(store.extra, "maru_verify", ("always", "never"), "always"),
    )
