"""RailStore from Python: objects over several RDMA rails at once, and tables.

    import railstore

    with railstore.Session("recipes/two-rail.cue") as s:
        s.put("kv/layer0", data)
        with s.read("kv/layer0") as lease:      # registered memory, no copy
            use(lease.view)
        n = s.read_into("kv/layer0", buffer)    # untouched unless all of it was verified

It needs librailstore.so and nothing but the standard library. docs/c-abi.md of the
repository has the rules.
"""

from ._abi import ABI_VERSION, library_path, load, version
from .errors import (
    CancelledError,
    ClosedError,
    ConflictError,
    DeadlineError,
    DegradedError,
    Error,
    ExistsError,
    FailedError,
    IntegrityError,
    LeasedError,
    NoTableError,
    NotFoundError,
    NotReadyError,
    ShapeError,
    TooSmallError,
    UsageError,
)
from .call import Cancel
from .lease import Lease
from .session import Session
from .table import Table

__all__ = [
    "ABI_VERSION",
    "Cancel",
    "CancelledError",
    "ClosedError",
    "ConflictError",
    "DeadlineError",
    "DegradedError",
    "Error",
    "ExistsError",
    "FailedError",
    "IntegrityError",
    "Lease",
    "LeasedError",
    "NoTableError",
    "NotFoundError",
    "NotReadyError",
    "Session",
    "ShapeError",
    "Table",
    "TooSmallError",
    "UsageError",
    "library_path",
    "load",
    "version",
]
