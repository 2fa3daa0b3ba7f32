"""What can go wrong, by the classes that callers act on.

The classes right below Error are the statuses of the C interface, which are the exit
codes of the command rs; those below them are the kinds that programs ask for most.
"""

from __future__ import annotations

from typing import Any, Dict, Type


class Error(Exception):
    """A call that failed. Every failure of the library is one of these."""

    status = 1

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.message = message
        self.status: int = fields.get("status", self.status)
        self.kind: str = fields.get("kind", "usage")
        """One stable word: not_found, too_small, checksum, ..."""
        self.layer: str = fields.get("layer", "usage")
        """Where it was found: usage, config, control, wait, integrity, ..."""
        self.op: str = fields.get("op", "")
        self.shard: int = fields.get("shard", -1)
        self.lane: int = fields.get("lane", -1)
        self.rail: str = fields.get("rail", "")
        self.device: str = fields.get("device", "")
        self.hint: str = fields.get("hint", "")

    def __str__(self) -> str:
        where = [self.op] if self.op else []
        place = []
        if self.shard >= 0:
            place.append("shard %d" % self.shard)
        if self.lane >= 0:
            place.append("lane %d" % self.lane)
        if self.rail:
            place.append("rail " + self.rail)
        if place:
            where.append(" ".join(place))
        text = ": ".join(where + [self.message]) + " (%s)" % self.kind
        return text + ("; " + self.hint if self.hint else "")


class FailedError(Error):
    """The operation failed."""


class UsageError(Error):
    """An argument, the recipe or the environment."""

    status = 2


class NotReadyError(Error):
    """Not running, not ready, or the time is over."""

    status = 3


class IntegrityError(Error):
    """What was read is not what was stored. Nothing was handed over."""

    status = 4


class DegradedError(Error):
    """Complete and verified, but not as planned; only with fail_on_degraded."""

    status = 5


class CancelledError(Error):
    """Cancelled, or the session was closed meanwhile."""

    status = 130


class NotFoundError(FailedError):
    """There is no such object."""


class ExistsError(FailedError):
    """The object is there already."""


class ConflictError(FailedError):
    """Another writer was faster, or the object is another generation."""


class LeasedError(FailedError):
    """The session was closed while leases were held. They stay readable."""


class NoTableError(FailedError):
    """There is no such table."""


class TooSmallError(UsageError):
    """The buffer is too small. It was not touched."""


class ShapeError(UsageError):
    """Keys and rows do not fit together, or do not fit the table."""


class ClosedError(UsageError):
    """The session, or what else was to be used, is closed."""


class DeadlineError(NotReadyError, TimeoutError):
    """Not done within the deadline."""


_BY_STATUS: Dict[int, Type[Error]] = {
    c.status: c for c in (FailedError, UsageError, NotReadyError, IntegrityError, DegradedError, CancelledError)
}
_BY_KIND: Dict[str, Type[Error]] = {
    "not_found": NotFoundError,
    "exists": ExistsError,
    "conflict": ConflictError,
    "leased": LeasedError,
    "no_table": NoTableError,
    "too_small": TooSmallError,
    "shape": ShapeError,
    "closed": ClosedError,
    "deadline": DeadlineError,
}


def make(status: int, message: str, kind: str, **fields: Any) -> Error:
    """The error for what the library said."""
    general = _BY_STATUS.get(status, FailedError)
    special = _BY_KIND.get(kind, general)
    # The class of the status is part of the interface, so a kind only refines it.
    c = special if issubclass(special, general) else general
    return c(message, status=status, kind=kind, **fields)
