"""The exceptions of Maru, one class for each thing a caller can do about it.

Every error has ``code``, a short word for logs and metrics. Messages name the field, the value found and the value
wanted. A miss is not an error, and neither is losing a race: those are answers.
"""

from __future__ import annotations

from typing import Any


class MaruError(Exception):
    """Any error of this package."""

    code: str = "error"

    def __init__(self, message: str = "", **facts: Any) -> None:
        super().__init__(message)
        for name, value in facts.items():
            setattr(self, name, value)


class ArgumentError(MaruError, ValueError):
    """An argument that cannot be. ``field``, ``found`` and ``wanted`` say which and why."""

    code = "argument"
    field: str = ""
    found: str = ""
    wanted: str = ""


class OpenError(MaruError):
    """A region could not be opened, or not be made."""


class AttachError(MaruError):
    """A session could not be made."""


class CallError(MaruError):
    """A call on a session could not be tried."""


class Fenced(CallError):
    """The session was shut out by another process."""

    code = "fenced"


class OtherProcess(CallError):
    """The handle belongs to the process that this one was forked from. Open the region again here."""

    code = "other_process"


class Replaced(CallError):
    """Another region has taken this one's place."""

    code = "replaced"


class Resized(CallError):
    """The backing changed its size under the mapping."""

    code = "resized"


class Lost(CallError):
    """The memory of the region faulted."""

    code = "lost"


class NoPayload(CallError):
    """The region is open header-only, and the call needs payload."""

    code = "no_payload"


class LoadError(MaruError):
    """A load returned no bytes: ``code`` is expired, invalidated, damaged or length."""


class WriteError(MaruError):
    """A piece was not written: ``code`` is out_of_bounds, superseded, ended or viewed."""


class StillHeld(MaruError):
    """The session cannot be closed: leases, reservations or running calls of it are left."""

    code = "still_held"
    leases: int = 0
    reservations: int = 0


class NamespaceError(MaruError):
    """A namespace could not be registered."""


class ConfigError(MaruError, ValueError):
    """A configuration that cannot be. ``field``, ``found`` and ``wanted`` say which and why."""

    code = "config"
    field: str = ""
    found: str = ""
    wanted: str = ""
