"""Loads tests/vectors.json: golden vectors of every definition in docs/spec.md, for whatever computes one of them.

Bytes are written as hex, a pattern as {"pattern": length, "offset": o}: byte i = (i + o) mod 251. A field is [type,
value].
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

PATH = Path(__file__).parent.parent / "vectors.json"
KEY = b"whats the Elvish word for friend"


def pattern(length, offset=0):
    """`length` bytes, byte i = (i + offset) mod 251: the input of BLAKE3's own vectors at offset 0."""
    cycle = bytes((i + offset) % 251 for i in range(251))
    return (cycle * (length // 251 + 1))[:length]


def data(value):
    """The bytes that a vector writes as hex or as a pattern."""
    return bytes.fromhex(value) if isinstance(value, str) else pattern(value["pattern"], value["offset"])


def rows(value, size):
    """The same, cut into rows of `size` bytes."""
    raw = data(value)
    return [raw[i : i + size] for i in range(0, len(raw), size)]


def fields(value):
    """Typed fields as Python values."""
    read = {"bytes": bytes.fromhex, "text": str, "integer": int, "boolean": bool, "float": float}
    return {name: read[kind](raw) for name, (kind, raw) in value.items()}


@cache
def load():
    """The whole file: a dict from the name of a definition to its list of vectors."""
    return json.loads(PATH.read_text(encoding="utf-8"))
