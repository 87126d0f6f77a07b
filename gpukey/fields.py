"""Typed fields (docs/spec.md, "Fields"): True, 1, 1.0, "1" and b"1" are five values, and no two sets of fields spell
the same bytes."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from gpukey._checks import raw_bytes, text, utf8
from gpukey.secret import lp

FieldValue = bytes | str | int | bool | float
I64 = 1 << 63


def plain(name: str, value: Any) -> FieldValue:
    """`value` as an exact bytes, str, int, bool or float; a numpy scalar counts as its Python value, an array is
    refused."""
    if isinstance(value, np.generic) and not isinstance(value, np.void):
        value = value.item()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return raw_bytes(name, value)
    if isinstance(value, str):
        return text(name, value)
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        if not -I64 <= value < I64:
            raise ValueError(f"{name} is {int(value)}; an integer of 64 bits with its sign is needed")
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{name} is {float(value)}; a finite number is needed")
        return float(value) + 0.0  # -0.0 + 0.0 is 0.0
    raise TypeError(f"{name} is a {type(value).__name__}; bytes, str, int, bool or float is needed")


def encode_field(name: str, value: FieldValue) -> bytes:
    """lp(name) ‖ u8 type ‖ lp(value), of a value that `plain` returned."""
    if isinstance(value, bytes):
        kind, raw = 0, value
    elif isinstance(value, str):
        kind, raw = 1, value.encode("utf-8")
    elif isinstance(value, bool):
        kind, raw = 3, bytes([value])
    elif isinstance(value, int):
        kind, raw = 2, struct.pack("<q", value)
    else:
        kind, raw = 4, struct.pack("<d", value)
    return lp(utf8("field name", name)) + bytes([kind]) + lp(raw)


def encode_fields(fields: Mapping[str, FieldValue]) -> bytes:
    """All fields, sorted by name as bytes."""
    return b"".join(
        encode_field(name, fields[name]) for name in sorted(fields, key=lambda name: utf8("field name", name))
    )
