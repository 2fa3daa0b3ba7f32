"""Calls of the library: their time, their cancel, and what is passed to them."""

from __future__ import annotations

import ctypes
import threading
from typing import Any, Callable, Iterable, List, Optional, Tuple, Union

from . import _abi

Buffer = Union[bytes, bytearray, memoryview, Any]


class Cancel:
    """Ends calls from another thread: those under way that were given it, and those to come."""

    def __init__(self) -> None:
        h = ctypes.c_uint64()
        check(_abi.load().rs_cancel_new, ctypes.byref(h))
        self._handle = h.value

    def fire(self) -> None:
        check(_abi.load().rs_cancel_fire, self._handle)

    def close(self) -> None:
        h, self._handle = self._handle, 0
        if h:
            check(_abi.load().rs_cancel_free, h)

    def __enter__(self) -> "Cancel":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", 0):
            self.close()


def check(function: Callable[..., int], *args: Any) -> None:
    """Calls a function whose last argument is an rs_error, and raises what it says."""
    err = _abi.rs_error()
    if function(*args, ctypes.byref(err)) != _abi.OK:
        raise _abi.error_of(err)


def interruptible(cancel: Optional[Cancel], f: Callable[[int], None]) -> None:
    """Calls f with the handle of a cancel, which is fired at Ctrl-C.

    Python runs its signal handlers in the main thread, between two of its instructions.
    So a long call from there is made by another thread, and the main thread waits for it.
    """
    if threading.current_thread() is not threading.main_thread():
        f(cancel._handle if cancel else 0)
        return
    own = cancel or Cancel()
    guard, done = threading.Lock(), threading.Event()
    begun, revoked = False, False
    failed: List[BaseException] = []

    def run() -> None:
        nonlocal begun
        with guard:
            if revoked:
                return
            begun = True
        try:
            f(own._handle)
        except BaseException as e:  # it is raised below, in the thread that called
            failed.append(e)
        done.set()

    def settle() -> None:
        nonlocal revoked
        while True:
            try:
                own.fire()
                with guard:
                    revoked = True  # what has not begun does not begin any more
                if begun:
                    done.wait()
                return
            except KeyboardInterrupt:
                pass  # the call uses memory of the caller's until it has returned, which it does soon

    try:
        # Ctrl-C may come anywhere in here, also before the thread has begun.
        threading.Thread(target=run, name="railstore call", daemon=True).start()
        done.wait()
    except BaseException:
        settle()
        raise
    finally:
        if cancel is None:
            own.close()
    if failed:
        raise failed[0]


def milliseconds(seconds: Optional[float]) -> int:
    """A time of the caller's, at least 1 ms; None is 0, which is none."""
    if seconds is None:
        return 0
    if seconds <= 0:
        raise ValueError("%r seconds: want a time above 0, or None" % (seconds,))
    return max(1, int(seconds * 1000))


def part(offset: int, length: int) -> Tuple[int, int]:
    """A part of an object. ctypes would make huge numbers of those below 0."""
    if offset < 0 or length < 0:
        raise ValueError("offset %r, length %r: want numbers from 0 on" % (offset, length))
    return offset, length


def encode(text: Optional[str]) -> Optional[bytes]:
    if text is None:
        return None
    b = text.encode("utf-8")
    if b"\0" in b:
        raise ValueError("a NUL in %r" % (text,))
    return b


def names(rails: Union[None, str, Iterable[str]]) -> Optional[bytes]:
    """Rails as the library takes them: names with commas between them."""
    return encode(rails if rails is None or isinstance(rails, str) else ",".join(rails))


def writable(buffer: Buffer) -> Tuple[Any, int]:
    """The address of memory that is written to, and its length. Hold the first for as long."""
    view = memoryview(buffer)
    if view.readonly or not view.c_contiguous:
        raise TypeError("want a writable, contiguous buffer")
    if view.nbytes == 0:
        return None, 0
    return (ctypes.c_ubyte * view.nbytes).from_buffer(view.cast("B")), view.nbytes


def readable(buffer: Buffer) -> Tuple[Any, int]:
    """The same of memory that is read. What is read-only and not bytes is copied."""
    if isinstance(buffer, bytes):
        return ctypes.cast(ctypes.c_char_p(buffer), ctypes.c_void_p), len(buffer)
    view = memoryview(buffer)
    if view.nbytes == 0:
        return None, 0
    if view.readonly or not view.c_contiguous:
        data = view.tobytes()
        held = ctypes.create_string_buffer(data, len(data))
        return held, len(data)
    return (ctypes.c_ubyte * view.nbytes).from_buffer(view.cast("B")), view.nbytes
