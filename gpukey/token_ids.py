"""Token ids as the bytes that a block key hashes: n × u64, little-endian. Imports without torch."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from gpukey import _checks
from gpukey._checks import U63

WANTED = "a 1-D integer array or a sequence of integers, each 0 to 2^63 - 1, is needed"


def _compiled() -> Callable[[Sequence[Any]], bytes] | None:
    """The compiled encoder of sequences where it was built; GPUKEY_PURE_PYTHON=1 leaves it out. The bytes are the same."""
    if os.environ.get("GPUKEY_PURE_PYTHON") == "1":
        return None
    try:
        from gpukey import _chain
    except ImportError:
        return None
    return _chain.encode_ids


compiled_encode_ids = _compiled()


def encode_token_ids(token_ids: Any) -> bytes | memoryview:
    """8 bytes an id (a view, not a copy, where that is possible), from a list, tuple, range, numpy array, or whatever
    numpy reads as an array (a CPU tensor)."""
    if isinstance(token_ids, np.ndarray) or hasattr(token_ids, "__array__"):
        return _from_array(_checks.array("token_ids", token_ids, WANTED))
    if isinstance(token_ids, (str, bytes, bytearray, memoryview)) or not isinstance(token_ids, Sequence):
        raise TypeError(f"token_ids is a {type(token_ids).__name__}; {WANTED}")
    return _from_sequence(token_ids)


def _from_array(ids: npt.NDArray[Any]) -> bytes | memoryview:
    if ids.ndim != 1:
        raise ValueError(f"token_ids has {ids.ndim} dimensions; {WANTED}")
    if ids.dtype == object:
        return _from_sequence(ids.tolist())
    if ids.dtype.kind not in "iu":
        raise TypeError(f"token_ids has dtype {ids.dtype}; {WANTED}")
    if ids.size and (ids.min() < 0 or ids.max() > U63):
        _refuse(ids.tolist())
    return np.ascontiguousarray(ids, "<i8").view(np.uint8).data


def _from_sequence(token_ids: Sequence[Any]) -> bytes | memoryview:
    if len(token_ids) == 1 and type(token_ids[0]) is int and 0 <= token_ids[0] <= U63:
        return token_ids[0].to_bytes(8, "little")  # a decode step
    if compiled_encode_ids is not None:
        try:
            return compiled_encode_ids(token_ids)
        except (TypeError, ValueError):
            pass  # the path below names what is wrong as it always does
    try:
        packed = array("q", token_ids)
    except (TypeError, OverflowError):
        _refuse(token_ids)
    ids = np.frombuffer(packed, np.int64)
    if ids.size and ids.min() <= 1:
        # array() takes True for 1. Only ids of 0 and 1 can have been booleans, and they are rare.
        for i in np.flatnonzero(ids <= 1).tolist():
            if ids[i] < 0 or _is_boolean(token_ids[i]):
                _refuse(token_ids)
    return memoryview(packed).cast("B")


def _is_boolean(value: Any) -> bool:
    return isinstance(value, bool) or (type(value) is not int and "bool" in str(getattr(value, "dtype", "")))


def _refuse(token_ids: Sequence[Any]) -> NoReturn:
    """Name the first bad id; the fast path only knows that there is one."""
    for i, value in enumerate(token_ids):
        if _is_boolean(value) or not hasattr(value, "__index__"):
            raise TypeError(f"token_ids[{i}] is a {type(value).__name__}; {WANTED}")
        if not 0 <= value.__index__() <= U63:
            raise ValueError(f"token_ids[{i}] is {value}; {WANTED}")
    raise TypeError(f"token_ids is a {type(token_ids).__name__} whose values changed while it was read; {WANTED}")
