"""Objects in registered memory."""

from __future__ import annotations

import ctypes
import gc
import weakref
from typing import Any, Dict, Optional

from . import _abi
from .call import check


def _give_back(handle: int) -> None:
    check(_abi.load().rs_lease_release, handle)


class Lease:
    """A whole object, or the part that was asked for: complete, verified, and not copied.

    view is the memory, read-only. release, or the end of the with block, gives it back.
    When something still uses it then (a slice of view, an array that numpy made of it) that
    is a BufferError, as it is of an mmap, and the memory stays until the last of them is
    gone. So nothing ever reads memory that was given back.
    """

    def __init__(self, leased: _abi.rs_leased, report: Dict[str, Any]) -> None:
        self.generation: int = leased.generation
        self.report = report
        # Whoever looks at the memory refers to this array, so its end is that of the last of them.
        array = (ctypes.c_ubyte * leased.length).from_address(leased.data) if leased.length else (ctypes.c_ubyte * 0)()
        self._last = weakref.finalize(array, _give_back, leased.lease)
        self._last.atexit = False
        self._view: Optional[memoryview] = memoryview(array).cast("B").toreadonly()
        self._length: int = leased.length

    @property
    def view(self) -> memoryview:
        if self._view is None:
            raise ValueError("the lease was released")
        return self._view

    def __len__(self) -> int:
        return self._length

    def __buffer__(self, flags: int) -> memoryview:  # for Python 3.12 and later
        return memoryview(self.view)

    def tobytes(self) -> bytes:
        return self.view.tobytes()

    def numpy(self, dtype: Any = "uint8") -> Any:
        """The memory as a numpy array, which holds it."""
        import numpy

        return numpy.frombuffer(self.view, dtype=dtype)

    def release(self) -> None:
        """Gives the memory back. A second call does nothing."""
        if self._view is not None:
            self._view.release()  # a BufferError if an array was made of it
            self._view = None
        if self._last.alive:
            gc.collect()  # what only refers to itself uses nothing
        if self._last.alive:
            raise BufferError("views of the lease are still used; its memory is given back with the last of them")

    def __enter__(self) -> "Lease":
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        try:
            self.release()
        except BufferError:
            if kind is None:  # else there is something more important to tell
                raise
