"""KV-cache blocks of LLM engines, shared between processes through memory that describes itself.

    >>> import maru
    >>> region = maru.Region.open("/dev/shm/kv", format="if_absent", size=1 << 30, slot_bytes=448 << 10)
    >>> session = region.session("engine-a")
    >>> space = session.namespace({"tenant": "search", "model": "m", ...})
    >>> block = maru.ObjectId(space, digest)
    >>> session.store_from([block], [data])
    ['stored']
    >>> session.probe(block)
    458752

See the README of ``tools/python`` for all calls, the errors and the configuration.
"""

from ._maru import Lease, Miss, Namespace, ObjectId, Region, Reservation, Reserve, Session, Store, __version__, catch_faults
from .errors import (
    ArgumentError,
    AttachError,
    CallError,
    ConfigError,
    Fenced,
    LoadError,
    Lost,
    MaruError,
    NamespaceError,
    NoPayload,
    OpenError,
    OtherProcess,
    Replaced,
    Resized,
    StillHeld,
    WriteError,
)

__all__ = [
    "ArgumentError",
    "AttachError",
    "CallError",
    "ConfigError",
    "Fenced",
    "Lease",
    "LoadError",
    "Lost",
    "MaruError",
    "Miss",
    "Namespace",
    "NamespaceError",
    "NoPayload",
    "ObjectId",
    "OpenError",
    "OtherProcess",
    "Region",
    "Replaced",
    "Reservation",
    "Reserve",
    "Resized",
    "Session",
    "StillHeld",
    "Store",
    "WriteError",
    "__version__",
    "catch_faults",
]
