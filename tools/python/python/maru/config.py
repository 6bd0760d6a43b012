"""Configuration of a store by the keys of the tiers RFC, as they stand in ``kv_connector_extra_config``.

    >>> config = from_mapping({
    ...     "maru_storage_backend": "mixed",
    ...     "maru_cpu_pool_size": "8GiB", "maru_cxl_pool_size": "32GiB", "maru_cxl_path": "/dev/dax0.0",
    ...     "maru_write_order": ["cpu", "cxl"], "maru_read_order": ["cpu", "cxl"],
    ...     "maru_engine_id": "inference-a", "maru_cache_namespace": "a09a35458c702b33eeacc393d103063234e8bc28",
    ... })
    >>> store = config.open("worker", slot_bytes=448 << 10)

Everything that can be wrong is refused here, by name, before anything is opened. The table of keys is in the README of
``tools/python``; it is checked against ``KEYS`` by a test.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from ._maru import Store
from .errors import AttachError, ConfigError

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(?:([KMGTP])(i|iB)?|B)?\s*", re.IGNORECASE)
_MAX_SIZE = (1 << 63) - 1

#: Every key, and what it means in a line.
KEYS: dict[str, str] = {
    "maru_storage_backend": "cpu, cxl, mixed (both), or auto (mixed where a CXL device is named, else cpu)",
    "maru_cpu_pool_size": "bytes of the CPU pool, such as 8GiB",
    "maru_cxl_pool_size": "bytes of the CXL pool; unsaid: the whole device",
    "maru_pool_size": "the older name of maru_cxl_pool_size; with backend cxl only",
    "maru_cpu_path": "file of the CPU pool, on a memory file system",
    "maru_cxl_path": "device or file of the CXL pool; unsaid: what CXL_DAX_DEVICE names",
    "maru_cpu_scope": "host (engines of this host share it) or process (this process alone)",
    "maru_write_order": "pools in the order in which stores are tried",
    "maru_read_order": "pools in the order in which reads are tried",
    "maru_engine_id": "name of this engine; its scheduler and workers say the same, other engines another one",
    "maru_cache_namespace": "the exact weights: a commit or digest, never a name that can move",
    "maru_tenant": "whose blocks these are; nothing is shared between tenants",
    "maru_evict": "when_full (the last pool of the write order makes room) or never (a full store skips)",
    "maru_slot_size": "bytes of a slot in a new pool; unsaid: the engine's block",
    "maru_prefault": "whether all pages are made present at start",
    "maru_lock_file": "file for life locks, where containers reach a device through device nodes of their own",
}

_BACKENDS = {"cpu": ("cpu",), "cxl": ("cxl",), "mixed": ("cpu", "cxl")}


def parse_size(name: str, value: Any) -> int:
    """A number of bytes from ``8589934592``, ``"8G"``, ``"8GiB"``, ``"1.5 TiB"``: units are powers of 1024."""
    wanted = "bytes, such as 8589934592 or \"8GiB\" (K, M, G, T, also KiB and so on, are powers of 1024)"
    number: Decimal | int | None = None
    if isinstance(value, int) and not isinstance(value, bool):
        number = value
    elif isinstance(value, float) and value.is_integer():
        number = int(value)
    elif isinstance(value, str) and (match := _SIZE.fullmatch(value)):
        number = Decimal(match[1]) * _UNITS[(match[2] or "").upper()]
    if number is None or number != int(number):
        raise _wrong(name, value, wanted)
    if not 0 < number <= _MAX_SIZE:
        raise _wrong(name, value, f"1 to {_MAX_SIZE} bytes")
    return int(number)


@dataclass(frozen=True)
class StoreConfig:
    """What ``from_mapping`` made of the keys. Sizes are bytes, ``pools`` the names that the backend has."""

    backend: str
    pools: tuple[str, ...]
    engine_id: str
    cache_namespace: str
    tenant: str
    write_order: tuple[str, ...]
    read_order: tuple[str, ...]
    cpu_pool_size: int | None
    cxl_pool_size: int | None
    cpu_path: str
    cxl_path: str | None
    cpu_scope: str
    evict: str
    slot_size: int | None
    prefault: bool
    lock_file: str | None
    #: Keys that the caller knows (``also_known``), as they were said.
    extra: Mapping[str, Any] = field(default_factory=dict)

    def store_options(
        self, role: str = "worker", *, slot_bytes: int | None = None, mode: str = "full", format: str = "if_absent"
    ) -> dict[str, Any]:
        """The argument of ``Store.open``. ``slot_bytes`` is the engine's block, for pools that are made."""
        slot_bytes = self.slot_size or slot_bytes
        pools = []
        for name in self.pools:
            cpu = name == "cpu"
            last = name == self.write_order[-1]
            pool: dict[str, Any] = {
                "name": name,
                "medium": name,
                "path": self.cpu_path if cpu else self.cxl_path,
                "size": self.cpu_pool_size if cpu else self.cxl_pool_size,
                "slot_bytes": slot_bytes,
                "mode": mode,
                "format": format,
                "evict": "when_full" if last and self.evict == "when_full" else "never",
                "prefault": self.prefault,
            }
            if cpu:
                pool["scope"] = self.cpu_scope
            else:
                pool["lock_file"] = self.lock_file
            pools.append({key: value for key, value in pool.items() if value is not None})
        return {
            "engine": self.engine_id,
            "role": role,
            "pools": pools,
            "write_order": list(self.write_order),
            "read_order": list(self.read_order),
        }

    def open(
        self,
        role: str = "worker",
        *,
        slot_bytes: int | None = None,
        mode: str = "full",
        format: str = "if_absent",
        alone: bool = False,
    ) -> Store:
        """Opens the pools and joins them.

        With ``alone``, another live session of this engine id and role in one of the pools is a refusal: of two that
        come at once, the one with the higher epoch goes.
        """
        store = Store.open(self.store_options(role, slot_bytes=slot_bytes, mode=mode, format=format))
        if alone:
            try:
                for name in self.pools:
                    self._refuse_second(store, name, role)
            except BaseException:
                store.close()
                raise
        return store

    def _refuse_second(self, store: Store, pool: str, role: str) -> None:
        sessions = store.sessions(pool)
        mine = store.session_index(pool)
        epoch = next((session["epoch"] for session in sessions if session["index"] == mine), None)
        for session in sessions:
            same = session["engine"] == self.engine_id and session["role"] == role and session["index"] != mine
            if same and session["alive"] and (epoch is None or session["epoch"] < epoch):
                raise AttachError(
                    f"maru_engine_id: {self.engine_id!r} is in use by a live {role} (pool {pool}, session "
                    f"{session['index']}, pid {session['pid']}), wanted a name for each engine",
                    code="engine_id",
                )

    def namespace_fields(self, **fields: str | int) -> dict[str, str | int]:
        """The namespace's fields: tenant and revision from the configuration, the rest from the engine."""
        return {"tenant": self.tenant, "revision": self.cache_namespace, **fields}


def from_mapping(
    mapping: Mapping[str, Any], *, also_known: Iterable[str] = (), environ: Mapping[str, str] | None = None
) -> StoreConfig:
    """Reads the keys; refuses, by name, what is missing, unknown or cannot be.

    ``also_known`` are keys of the caller's own; they are kept in ``extra``.
    """
    environ = os.environ if environ is None else environ
    own = set(also_known)
    for key in mapping:
        if key not in KEYS and key not in own:
            raise _unknown(str(key), [*KEYS, *sorted(own)])
    said = {key: value for key, value in mapping.items() if key in KEYS and value is not None}

    cxl_path = _text(said, "maru_cxl_path", None)
    device = cxl_path or environ.get("CXL_DAX_DEVICE")
    backend = _word(said, "maru_storage_backend", ("cpu", "cxl", "mixed", "auto"), "auto")
    if backend == "auto":
        backend = "mixed" if device else "cpu"
    pools = _BACKENDS[backend]

    cxl_size = _size(said, "maru_cxl_pool_size")
    if "maru_pool_size" in said:
        if backend != "cxl":
            instead = " and ".join(f"maru_{pool}_pool_size" for pool in pools)
            raise ConfigError(
                f"maru_pool_size is {said['maru_pool_size']!r} with maru_storage_backend {backend}: it means the CXL "
                f"pool alone, and says nothing about which of several pools is meant; wanted {instead}",
                field="maru_pool_size", found=repr(said["maru_pool_size"]), wanted=instead,
            )
        if cxl_size is not None:
            raise _wrong("maru_pool_size", said["maru_pool_size"], "nothing beside maru_cxl_pool_size, which is the same")
        cxl_size = _size(said, "maru_pool_size")
    cpu_size = _size(said, "maru_cpu_pool_size")
    if "cpu" in pools and cpu_size is None:
        raise _missing("maru_cpu_pool_size", f"the size of the CPU pool (maru_storage_backend is {backend})", '"8GiB"')
    for pool, keys in (
        ("cpu", ("maru_cpu_pool_size", "maru_cpu_path", "maru_cpu_scope")),
        ("cxl", ("maru_cxl_pool_size", "maru_cxl_path", "maru_lock_file")),
    ):
        for key in keys:
            if pool not in pools and key in said:
                raise _wrong(key, said[key], f"nothing: maru_storage_backend {backend} has no {pool} pool")
    if "cxl" in pools and not device:
        raise _missing("maru_cxl_path", "the CXL device, here or in CXL_DAX_DEVICE", '"/dev/dax0.0"')

    engine_id = _text(said, "maru_engine_id", None)
    if engine_id is None:
        raise _missing("maru_engine_id", "a name for this engine", '"inference-a"')
    cache_namespace = _text(said, "maru_cache_namespace", None)
    if cache_namespace is None:
        example = '"a09a35458c702b33eeacc393d103063234e8bc28"'
        raise _missing("maru_cache_namespace", "the exact weights (a commit or digest, not a branch)", example)
    write_order = _order(said, "maru_write_order", pools)
    read_order = _order(said, "maru_read_order", pools)
    for pool in pools:
        if pool not in write_order and pool not in read_order:
            raise _wrong("maru_read_order", list(read_order), f"pool {pool} in one of the two orders at least")
    return StoreConfig(
        backend=backend,
        pools=pools,
        engine_id=engine_id,
        cache_namespace=cache_namespace,
        tenant=_text(said, "maru_tenant", "default") or "default",
        write_order=write_order,
        read_order=read_order,
        cpu_pool_size=cpu_size,
        cxl_pool_size=cxl_size,
        cpu_path=_text(said, "maru_cpu_path", "/dev/shm/maru") or "/dev/shm/maru",
        cxl_path=cxl_path,
        cpu_scope=_word(said, "maru_cpu_scope", ("host", "process"), "host"),
        evict=_word(said, "maru_evict", ("when_full", "never"), "when_full"),
        slot_size=_size(said, "maru_slot_size"),
        prefault=_flag(said, "maru_prefault"),
        lock_file=_text(said, "maru_lock_file", None),
        extra={key: value for key, value in mapping.items() if key in own and key not in KEYS},
    )


def _wrong(key: str, found: Any, wanted: str) -> ConfigError:
    return ConfigError(f"{key} is {found!r}, wanted {wanted}", field=key, found=repr(found), wanted=wanted)


def _missing(key: str, wanted: str, example: str) -> ConfigError:
    message = f'{key} is missing, wanted {wanted}; for example "{key}": {example}'
    return ConfigError(message, field=key, found="missing", wanted=wanted)


def _unknown(key: str, known: Sequence[str]) -> ConfigError:
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.0)[0]
    message = f"{key} is no key of Maru, did you mean {near}? The keys are: {', '.join(known)}"
    return ConfigError(message, field=key, found=key, wanted=near)


def _text(said: Mapping[str, Any], key: str, default: str | None) -> str | None:
    value = said.get(key, default)
    if value is not None and (not isinstance(value, (str, os.PathLike)) or not os.fspath(value)):
        raise _wrong(key, value, "a text that is not empty")
    return None if value is None else str(os.fspath(value))


def _word(said: Mapping[str, Any], key: str, known: Sequence[str], default: str) -> str:
    value = said.get(key, default)
    if value not in known:
        raise _wrong(key, value, f"one of {', '.join(known)}")
    return str(value)


def _flag(said: Mapping[str, Any], key: str) -> bool:
    value = said.get(key, False)
    if not isinstance(value, bool):
        raise _wrong(key, value, "true or false")
    return value


def _size(said: Mapping[str, Any], key: str) -> int | None:
    return parse_size(key, said[key]) if key in said else None


def _order(said: Mapping[str, Any], key: str, pools: tuple[str, ...]) -> tuple[str, ...]:
    value = said.get(key)
    if value is None:
        return pools
    wanted = f"a list of some of {', '.join(pools)}, each once"
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence) or not value:
        raise _wrong(key, value, wanted)
    for name in value:
        if name not in pools or list(value).count(name) > 1:
            raise _wrong(key, value, wanted)
    return tuple(value)
