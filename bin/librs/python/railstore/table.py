"""Tables of float32 rows by 64-bit keys."""

from __future__ import annotations

import ctypes
from array import array
from typing import TYPE_CHECKING, Any, Iterable, Optional, Tuple, Union

from . import _abi
from .call import Buffer, Cancel, check, encode, milliseconds, readable, writable

if TYPE_CHECKING:
    from .session import Session


def _items(code: str, values: Union[Buffer, Iterable[Any]]) -> Any:
    """Values as a buffer of the items that the library takes; lists are converted."""
    size = array(code).itemsize
    try:
        view = memoryview(values)  # type: ignore[arg-type]
    except TypeError:
        return array(code, values)  # type: ignore[arg-type]
    kinds = "QLN" if code == "Q" else "f"
    if view.format.lstrip("@=<") not in kinds or view.itemsize != size:
        raise TypeError("want items of %d bytes and the format %s, these are %d and %s" % (size, kinds, view.itemsize, view.format))
    return view


class Table:
    """A table. Session.table makes one.

    Keys are 64-bit unsigned numbers, rows dim float32 each, one after the other: lists, or
    buffers of such items (array, numpy arrays), which are not copied. Calls may come from
    any thread.
    """

    def __init__(self, session: "Session", name: str, dim: int, optimizer: str) -> None:
        self._session = session
        self._name = encode(name)
        self.name = name
        self.dim = dim
        self.optimizer = optimizer

    def get(self, keys: Any, *, timeout: Optional[float] = None, cancel: Optional[Cancel] = None) -> Tuple["array[float]", bytearray]:
        """The rows of keys, and for each key 1 if it has one; else its row is zeros."""
        keys = _items("Q", keys)
        rows = array("f", bytes(4 * self.dim * len(keys)))
        found = bytearray(len(keys))
        self.get_into(keys, rows, found, timeout=timeout, cancel=cancel)
        return rows, found

    def get_into(
        self, keys: Any, rows: Buffer, found: Optional[Buffer] = None, *, timeout: Optional[float] = None, cancel: Optional[Cancel] = None
    ) -> None:
        """get into memory of the caller's. After an error it may hold anything."""
        k, size = readable(_items("Q", keys))
        out, length = writable(_items("f", rows))
        bits = None
        if found is not None:
            bits, n = writable(found)
            if n != size // 8:
                raise ValueError("found has %d bytes for %d keys" % (n, size // 8))
            bits = ctypes.cast(bits, ctypes.POINTER(ctypes.c_uint8)) if n else None
        o = _options(timeout, cancel)
        check(_abi.load().rs_table_get, self._session._live(), self._name, k, size // 8, out, length // 4, bits, ctypes.byref(o))

    def put(self, keys: Any, rows: Any, *, timeout: Optional[float] = None, cancel: Optional[Cancel] = None) -> None:
        """Gives keys their rows. Of a key that comes twice the last counts."""
        self._write(_abi.load().rs_table_put, keys, rows, timeout, cancel)

    def update(self, keys: Any, gradients: Any, *, timeout: Optional[float] = None, cancel: Optional[Cancel] = None) -> None:
        """Moves rows by gradients, as the table's optimizer says; each is applied once."""
        self._write(_abi.load().rs_table_update, keys, gradients, timeout, cancel)

    def _write(self, function: Any, keys: Any, rows: Any, timeout: Optional[float], cancel: Optional[Cancel]) -> None:
        k, size = readable(_items("Q", keys))
        r, length = readable(_items("f", rows))
        o = _options(timeout, cancel)
        check(function, self._session._live(), self._name, k, size // 8, r, length // 4, ctypes.byref(o))


def _options(timeout: Optional[float], cancel: Optional[Cancel]) -> _abi.rs_call_options:
    return _abi.rs_call_options(deadline_ms=milliseconds(timeout), cancel=cancel._handle if cancel else 0)
