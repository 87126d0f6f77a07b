"""The golden vectors of rows and spans (tests/vectors.json), by the PTX that Triton made."""

from __future__ import annotations

import numpy as np
import pytest
import vectors
from ptx import Memory
from triton_emulated import launcher


def _run(function: str, key: str, data: bytes, count: int, size: int) -> bytes:
    """`count` rows in `data`; spans: one span of them all."""
    on, memory, out = launcher("sm_90"), Memory(), np.zeros(size, np.uint8)
    at = memory.map(np.frombuffer(data, np.uint8).copy()) if data else 256
    key_at = memory.map(np.frombuffer(bytes.fromhex(key), np.uint8).copy())
    out_at = memory.map(out, access="w")
    if function == "rows":
        on.rows(memory, at, 1, len(data), len(data), key_at, out_at, size)
    else:
        bounds = memory.map(np.array([0, count], np.int64))
        on.fold(memory, at, count, bounds, 1, 8, key_at, out_at, size)
    return out.tobytes()


@pytest.mark.parametrize("case", vectors.load()["rows"], ids=lambda c: f"{c['dtype']}-{c['hidden']}-{c['digest_size']}")
def test_rows(case):
    got = _run("rows", case["row_key"], vectors.data(case["row"]), 1, case["digest_size"])
    assert got.hex() == case["fingerprint"]


@pytest.mark.parametrize("case", vectors.load()["spans"], ids=lambda c: f"{c['num_rows']}-{c['digest_size']}")
def test_spans(case):
    got = _run("fold", case["span_key"], vectors.data(case["fingerprints"]), case["num_rows"], case["digest_size"])
    assert got.hex() == case["span"]
