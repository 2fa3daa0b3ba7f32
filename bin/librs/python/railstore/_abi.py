"""railstore.h for ctypes. Everything else of the package goes through here."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import threading
from ctypes import POINTER, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_uint8, c_void_p
from typing import Any, Optional

from . import errors

ABI_VERSION = 1
"""What this package needs of the library at least."""

OK = 0
DEGRADED = 5
READ_FAIL_ON_DEGRADED = 1
PUT_IF_ABSENT = 1


class _Sized(ctypes.Structure):
    """A struct whose first field is its size. What is not given is zero, the default."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(size=ctypes.sizeof(type(self)), **fields)


class rs_error(_Sized):
    _fields_ = [
        ("size", c_uint32),
        ("status", c_int32),
        ("shard", c_int32),
        ("lane", c_int32),
        ("kind", c_char_p),
        ("layer", c_char_p),
        ("op", c_char_p),
        ("rail", c_char_p),
        ("device", c_char_p),
        ("message", c_char_p),
        ("hint", c_char_p),
        ("json", c_char_p),
    ]


class rs_session_options(_Sized):
    _fields_ = [
        ("size", c_uint32),
        ("flags", c_uint32),
        ("recipe", c_char_p),
        ("host", c_char_p),
        ("rails", c_char_p),
        ("environment", POINTER(c_char_p)),
        ("timeout_ms", c_int64),
        ("cancel", c_uint64),
    ]


class rs_call_options(_Sized):
    _fields_ = [
        ("size", c_uint32),
        ("flags", c_uint32),
        ("deadline_ms", c_int64),
        ("cancel", c_uint64),
    ]


class rs_read_options(_Sized):
    _fields_ = [
        ("size", c_uint32),
        ("flags", c_uint32),
        ("rails", c_char_p),
        ("offset", c_uint64),
        ("length", c_uint64),
        ("deadline_ms", c_int64),
        ("cancel", c_uint64),
        ("report", POINTER(c_void_p)),
    ]


class rs_put_options(_Sized):
    _fields_ = [
        ("size", c_uint32),
        ("flags", c_uint32),
        ("rails", c_char_p),
        ("if_generation", c_uint64),
        ("stripe_bytes", c_uint64),
        ("ttl_ms", c_int64),
        ("deadline_ms", c_int64),
        ("cancel", c_uint64),
        ("report", POINTER(c_void_p)),
    ]


class rs_leased(_Sized):
    _fields_ = [
        ("size", c_uint32),
        ("reserved", c_uint32),
        ("lease", c_uint64),
        ("data", c_void_p),
        ("length", c_uint64),
        ("generation", c_uint64),
    ]


class rs_read_item(_Sized):
    _fields_ = [
        ("size", c_uint32),
        ("flags", c_uint32),
        ("name", c_char_p),
        ("offset", c_uint64),
        ("length", c_uint64),
    ]


STRUCTS = (rs_error, rs_session_options, rs_call_options, rs_read_options, rs_put_options, rs_leased, rs_read_item)

_err = POINTER(rs_error)
_text = POINTER(c_void_p)
_call = POINTER(rs_call_options)
_read = POINTER(rs_read_options)

# name: (result, arguments)
FUNCTIONS = {
    "rs_abi_version": (c_uint32, []),
    "rs_version": (c_char_p, []),
    "rs_free": (None, [c_void_p]),
    "rs_error_clear": (None, [_err]),
    "rs_cancel_new": (c_int, [POINTER(c_uint64), _err]),
    "rs_cancel_fire": (c_int, [c_uint64, _err]),
    "rs_cancel_free": (c_int, [c_uint64, _err]),
    "rs_session_open": (c_int, [POINTER(rs_session_options), POINTER(c_uint64), _err]),
    "rs_session_close": (c_int, [c_uint64, _err]),
    "rs_session_describe": (c_int, [c_uint64, _text, _err]),
    "rs_plan": (c_int, [c_uint64, c_char_p, _read, _text, _err]),
    "rs_read_into": (c_int, [c_uint64, c_char_p, c_void_p, c_size_t, POINTER(c_size_t), _read, _err]),
    "rs_read": (c_int, [c_uint64, c_char_p, _read, POINTER(rs_leased), _err]),
    "rs_lease_release": (c_int, [c_uint64, _err]),
    "rs_read_batch": (c_int, [c_uint64, POINTER(rs_read_item), c_size_t, c_size_t, _read, POINTER(rs_leased), _err, _err]),
    "rs_put": (c_int, [c_uint64, c_char_p, c_void_p, c_size_t, POINTER(rs_put_options), _err]),
    "rs_remove": (c_int, [c_uint64, c_char_p, c_uint64, _call, _text, _err]),
    "rs_stat": (c_int, [c_uint64, c_char_p, _call, _text, _err]),
    "rs_list": (c_int, [c_uint64, c_char_p, c_char_p, c_uint32, _call, _text, _err]),
    "rs_rails": (c_int, [c_uint64, _text, _err]),
    "rs_last_report": (c_int, [c_uint64, _text, _err]),
    "rs_table_describe": (c_int, [c_uint64, c_char_p, _call, _text, _err]),
    "rs_table_get": (c_int, [c_uint64, c_char_p, c_void_p, c_size_t, c_void_p, c_size_t, POINTER(c_uint8), _call, _err]),
    "rs_table_put": (c_int, [c_uint64, c_char_p, c_void_p, c_size_t, c_void_p, c_size_t, _call, _err]),
    "rs_table_update": (c_int, [c_uint64, c_char_p, c_void_p, c_size_t, c_void_p, c_size_t, _call, _err]),
}

NAME = "librailstore.so"
_lock = threading.Lock()
_lib: Optional[ctypes.CDLL] = None


def library_path() -> str:
    """Where the library is: RAILSTORE_LIB, beside this package, or where the system looks."""
    given = os.environ.get("RAILSTORE_LIB")
    if given:
        return given
    here = os.path.join(os.path.dirname(os.path.abspath(__file__)), NAME)
    if os.path.exists(here):
        return here
    return ctypes.util.find_library("railstore") or NAME


def load(path: Optional[str] = None) -> ctypes.CDLL:
    """The library, loaded at the first call; path says which one it is to be."""
    global _lib
    with _lock:
        if _lib is not None:
            return _lib
        path = path or library_path()
        try:
            lib = ctypes.CDLL(path)
            for name, (result, arguments) in FUNCTIONS.items():
                f = getattr(lib, name)
                f.restype, f.argtypes = result, arguments
        except (OSError, AttributeError) as e:
            raise ImportError(
                "%s: %s; build it with make librs, and set RAILSTORE_LIB or put it beside the package" % (path, e)
            ) from e
        if lib.rs_abi_version() < ABI_VERSION:
            raise ImportError("%s has ABI version %d, this package needs %d" % (path, lib.rs_abi_version(), ABI_VERSION))
        _lib = lib
        return lib


def version() -> str:
    """The library's version."""
    return load().rs_version().decode()


def take_text(p: c_void_p) -> str:
    """A text of the library's, which is freed."""
    if not p.value:
        return "null"
    try:
        return ctypes.string_at(p.value).decode("utf-8")
    finally:
        load().rs_free(p)


def error_of(e: rs_error) -> errors.Error:
    """An rs_error as an exception; the struct is cleared."""

    def text(b: Optional[bytes]) -> str:
        return (b or b"").decode("utf-8", "replace")

    out = errors.make(
        e.status,
        text(e.message),
        text(e.kind),
        layer=text(e.layer),
        op=text(e.op),
        shard=e.shard,
        lane=e.lane,
        rail=text(e.rail),
        device=text(e.device),
        hint=text(e.hint),
    )
    load().rs_error_clear(ctypes.byref(e))
    return out
