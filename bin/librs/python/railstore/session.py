"""A process's connection to the shards of a deployment."""

from __future__ import annotations

import ctypes
import json
import os
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

from . import _abi, errors
from .call import Buffer, Cancel, check, encode, interruptible, milliseconds, names, part, readable, writable
from .lease import Lease
from .table import Table

Rails = Union[None, str, Iterable[str]]
Name = Union[str, Tuple[str, int, int]]


class Session:
    """Connects to a deployment that is up. All methods may be called from any thread.

    recipe is the deployment's file; without it RS_CONFIG of the environment names it. RS_MR_*
    of the environment change rails and limits. Times are seconds; None is no limit.
    """

    def __init__(
        self,
        recipe: Union[None, str, "os.PathLike[str]"] = None,
        *,
        host: Optional[str] = None,
        rails: Rails = None,
        environment: Optional[Mapping[str, str]] = None,
        timeout: Optional[float] = 30.0,
        cancel: Optional[Cancel] = None,
    ) -> None:
        self._handle = 0
        environ = ["%s=%s" % kv for kv in (os.environ if environment is None else environment).items()]
        strings = (ctypes.c_char_p * (len(environ) + 1))(*[s.encode("utf-8", "surrogateescape") for s in environ], None)
        o = _abi.rs_session_options(
            recipe=None if recipe is None else os.fsencode(recipe),
            host=encode(host),
            rails=names(rails),
            environment=ctypes.cast(strings, ctypes.POINTER(ctypes.c_char_p)),
            timeout_ms=milliseconds(timeout),
        )
        h = ctypes.c_uint64()

        def call(c: int) -> None:
            o.cancel = c
            check(_abi.load().rs_session_open, ctypes.byref(o), ctypes.byref(h))

        try:
            interruptible(cancel, call)
        except BaseException:
            self._handle = h.value  # it was open just before Ctrl-C, or is 0
            self.close()
            raise
        self._handle = h.value

    def _live(self) -> int:
        if not self._handle:
            raise errors.ClosedError("the session is closed", kind="closed")
        return self._handle

    def close(self) -> None:
        """Ends the calls under way and closes. A LeasedError tells of leases that are held; they stay
        readable, and the session is closed all the same. A second call does nothing."""
        h, self._handle = self._handle, 0
        if h:
            check(_abi.load().rs_session_close, h)

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        try:
            self.close()
        except errors.Error:
            if kind is None:
                raise

    # Objects

    def read_into(
        self,
        name: str,
        buffer: Buffer,
        *,
        offset: int = 0,
        length: int = 0,
        rails: Rails = None,
        timeout: Optional[float] = None,
        cancel: Optional[Cancel] = None,
        fail_on_degraded: bool = False,
    ) -> int:
        """Reads an object, or length bytes (0: to the end) of it from offset on, into a writable buffer, and
        returns how many bytes that are. The buffer is untouched unless all of it was verified."""
        o = _read(offset, length, rails, timeout, fail_on_degraded)
        memory, size = writable(buffer)
        got = ctypes.c_size_t()

        def call(c: int) -> None:
            o.cancel = c
            check(_abi.load().rs_read_into, self._live(), encode(name), memory, size, ctypes.byref(got), ctypes.byref(o))

        interruptible(cancel, call)
        return got.value

    def read(
        self,
        name: str,
        *,
        offset: int = 0,
        length: int = 0,
        rails: Rails = None,
        timeout: Optional[float] = None,
        cancel: Optional[Cancel] = None,
    ) -> Lease:
        """Reads into registered memory of the session, without a copy."""
        o = _read(offset, length, rails, timeout, False)
        leased, report = _abi.rs_leased(), ctypes.c_void_p()
        o.report = ctypes.pointer(report)

        def call(c: int) -> None:
            o.cancel = c
            check(_abi.load().rs_read, self._live(), encode(name), ctypes.byref(o), ctypes.byref(leased))

        try:
            interruptible(cancel, call)
        except BaseException:
            if leased.lease:  # it came just before Ctrl-C
                Lease(leased, {}).release()
            raise
        return Lease(leased, json.loads(_abi.take_text(report)))

    def read_batch(
        self,
        items: Sequence[Name],
        *,
        together: int = 0,
        rails: Rails = None,
        timeout: Optional[float] = None,
        cancel: Optional[Cancel] = None,
    ) -> List[Union[Lease, errors.Error]]:
        """Reads several objects, at most together (0: all) at once. An item is a name, or (name, offset, length).
        The result has for each its lease or its error: one that fails takes no other with it."""
        n = len(items)
        wanted, leased, failed = (_abi.rs_read_item * n)(), (_abi.rs_leased * n)(), (_abi.rs_error * n)()
        for i, item in enumerate(items):
            name, offset, length = (item, 0, 0) if isinstance(item, str) else item
            offset, length = part(offset, length)
            wanted[i] = _abi.rs_read_item(name=encode(name), offset=offset, length=length)
            leased[i], failed[i] = _abi.rs_leased(), _abi.rs_error(shard=-1, lane=-1)
        report = ctypes.c_void_p()
        o = _abi.rs_read_options(rails=names(rails), deadline_ms=milliseconds(timeout), report=ctypes.pointer(report))
        whole: List[errors.Error] = []

        def call(c: int) -> None:
            o.cancel = c
            err = _abi.rs_error()
            status = _abi.load().rs_read_batch(self._live(), wanted, n, together, ctypes.byref(o), leased, failed, ctypes.byref(err))
            if status != _abi.OK:
                whole.append(_abi.error_of(err))

        def results() -> Iterator[Union[Lease, errors.Error]]:
            reports = json.loads(_abi.take_text(report)) or [None] * n
            for i in range(n):
                if leased[i].lease:
                    yield Lease(leased[i], reports[i] or {})
                else:
                    yield _abi.error_of(failed[i])

        try:
            interruptible(cancel, call)
        except BaseException:
            for i in range(n):
                if leased[i].lease:
                    Lease(leased[i], {}).release()
            raise
        if whole and not any(leased[i].lease or failed[i].status for i in range(n)):
            raise whole[0]  # it is about the call, not about an item
        return list(results())

    def put(
        self,
        name: str,
        data: Buffer,
        *,
        if_absent: bool = False,
        if_generation: int = 0,
        stripe_bytes: int = 0,
        ttl: Optional[float] = None,
        rails: Rails = None,
        timeout: Optional[float] = None,
        cancel: Optional[Cancel] = None,
    ) -> Dict[str, Any]:
        """Stores memory as an object, all of it and durable, or leaves what was there; returns what it did."""
        memory, size = readable(data)
        report = ctypes.c_void_p()
        o = _abi.rs_put_options(
            flags=_abi.PUT_IF_ABSENT if if_absent else 0,
            rails=names(rails),
            if_generation=if_generation,
            stripe_bytes=stripe_bytes,
            ttl_ms=milliseconds(ttl),
            deadline_ms=milliseconds(timeout),
            report=ctypes.pointer(report),
        )

        def call(c: int) -> None:
            o.cancel = c
            check(_abi.load().rs_put, self._live(), encode(name), memory, size, ctypes.byref(o))

        interruptible(cancel, call)
        return json.loads(_abi.take_text(report))

    def remove(self, name: str, *, generation: int = 0, timeout: Optional[float] = None) -> Dict[str, Any]:
        """Removes an object; generation, if not 0, is the one that it must be."""
        return self._json(_abi.load().rs_remove, encode(name), generation, timeout=timeout)

    def stat(self, name: str, *, timeout: Optional[float] = None) -> Dict[str, Any]:
        """An object's descriptor and placement."""
        return self._json(_abi.load().rs_stat, encode(name), timeout=timeout)

    def list(self, prefix: str = "", *, timeout: Optional[float] = None) -> Iterator[Dict[str, Any]]:
        """The objects whose names begin with prefix (NAMESPACE[/PREFIX]), in the order of their names."""
        after = ""
        while True:
            page = self._json(_abi.load().rs_list, encode(prefix), encode(after), 0, timeout=timeout)
            yield from page["objects"]
            if not page["more"]:
                return
            after = page["after"]

    def _json(self, function: Any, *args: Any, timeout: Optional[float]) -> Any:
        text = ctypes.c_void_p()
        o = _abi.rs_call_options(deadline_ms=milliseconds(timeout))
        check(function, self._live(), *args, ctypes.byref(o), ctypes.byref(text))
        return json.loads(_abi.take_text(text))

    # What is and what was

    def plan(self, name: str, *, offset: int = 0, length: int = 0, rails: Rails = None, timeout: Optional[float] = None) -> Dict[str, Any]:
        """Which bytes a read would take over which rail. Nothing is read."""
        text = ctypes.c_void_p()
        o = _read(offset, length, rails, timeout, False)
        check(_abi.load().rs_plan, self._live(), encode(name), ctypes.byref(o), ctypes.byref(text))
        return json.loads(_abi.take_text(text))

    def rails(self) -> List[Dict[str, Any]]:
        """Every rail with what it did since the session was opened, and its state."""
        return self._tell(_abi.load().rs_rails)

    def report(self) -> Optional[Dict[str, Any]]:
        """What the session's last read that succeeded did, of any thread. A lease has its own."""
        return self._tell(_abi.load().rs_last_report)

    def describe(self) -> Dict[str, Any]:
        """The deployment, its digest, the host, the client's name, its rails and shards."""
        return self._tell(_abi.load().rs_session_describe)

    def _tell(self, function: Any) -> Any:
        text = ctypes.c_void_p()
        check(function, self._live(), ctypes.byref(text))
        return json.loads(_abi.take_text(text))

    # Tables

    def table(self, name: str, *, timeout: Optional[float] = None) -> Table:
        """A table that is there."""
        t = self._json(_abi.load().rs_table_describe, encode(name), timeout=timeout)
        return Table(self, name, t["dim"], t["optimizer"])


def _read(offset: int, length: int, rails: Rails, timeout: Optional[float], strict: bool) -> _abi.rs_read_options:
    offset, length = part(offset, length)
    return _abi.rs_read_options(
        flags=_abi.READ_FAIL_ON_DEGRADED if strict else 0,
        rails=names(rails),
        offset=offset,
        length=length,
        deadline_ms=milliseconds(timeout),
    )
