"""Argument checks that several modules share. An error names the argument, what came and what was wanted."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np
import numpy.typing as npt

U32 = (1 << 32) - 1
U63 = (1 << 63) - 1


def integer(name: str, value: Any, least: int = 0, most: int = U63) -> int:
    """`value` as a Python int: an int or a numpy integer scalar, no boolean, `least` to `most`."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} is a {type(value).__name__}; an integer is needed")
    number = int(value)
    if not least <= number <= most:
        raise ValueError(f"{name} is {number}; {least} to {most} is needed")
    return number


def text(name: str, value: Any) -> str:
    """`value` as a plain str that UTF-8 can encode. The value is never in the message: it may be a salt."""
    if not isinstance(value, str):
        raise TypeError(f"{name} is a {type(value).__name__}; text (str) is needed")
    utf8(name, value)
    return str.__str__(value)


def utf8(name: str, value: str) -> bytes:
    """Strict UTF-8 of `value`, not normalised."""
    try:
        return str.encode(value, "utf-8", "strict")
    except UnicodeEncodeError as error:
        place = error.start
    # Raised outside the handler: a chained UnicodeEncodeError would carry the text.
    raise ValueError(f"{name} has a lone surrogate at character {place}; text that UTF-8 can encode is needed")


def raw_bytes(name: str, value: Any, wanted: str = "bytes are") -> bytes:
    """`value` as immutable bytes: bytes, bytearray or memoryview."""
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise TypeError(f"{name} is a {type(value).__name__}; {wanted} needed")
    return bytes(value)


def array(name: str, value: Any, wanted: str) -> npt.NDArray[Any]:
    """`value` as numpy reads it; TypeError where it cannot (a tensor on a device, one that requires grad)."""
    try:
        return np.asarray(value)
    except (RuntimeError, TypeError, ValueError) as error:
        kind = type(value).__name__
        raise TypeError(f"{name} is a {kind} that numpy cannot read ({error}); {wanted}") from error
