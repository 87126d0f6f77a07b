"""fold_spans as Triton compiled it: spans of any length, and hostile cu_seqlens that may give wrong digests but never a
read outside the fingerprints."""

from __future__ import annotations

import numpy as np
import pytest
from ptx import Memory
from ptx.hash_checks import HOSTILE, HOSTILE_64, SPANS, check_fold
from triton_emulated import TritonLauncher, launcher

TILE = 32 * 64  # rows of 16 bytes


@pytest.fixture(params=["sm_80", "sm_90"])
def on(request: pytest.FixtureRequest) -> TritonLauncher:
    return launcher(request.param)


@pytest.mark.parametrize("length", [*SPANS[:-2], TILE, TILE + 1, 3 * TILE + 5, 4 * TILE])
def test_one_span(on, length):
    check_fold(on, length, [0, length], np.int64, 16, offset=3 * (length % 2))
    if length < 1000:
        check_fold(on, length, [0, length], np.int32, 32)
    assert len(on.launches) == 1


def test_spans_of_many_lengths(on):
    lengths = [0, 1, 0, 0, 2, 3, 64, 65, 63, 128, 1, 700, 0, 5, 33, 1, 1, 2049, 0]
    check_fold(on, sum(lengths), [0, *np.cumsum(lengths)], np.int64, 16)
    check_fold(on, sum(lengths), [0, *np.cumsum(lengths)], np.int32, 32, offset=7)


@pytest.mark.parametrize("bounds", HOSTILE, ids=str)
def test_hostile_bounds(on, bounds):
    for dtype in (np.int32, np.int64):
        check_fold(on, 10, bounds, dtype, 16)
        check_fold(on, 0, bounds, dtype, 16)


@pytest.mark.parametrize("bounds", HOSTILE_64, ids=str)
def test_hostile_bounds_of_64_bits(on, bounds):
    check_fold(on, 10, bounds, np.int64, 32)
    check_fold(on, 0, bounds, np.int64, 32, offset=1)


def test_random_bounds(on):
    rng = np.random.default_rng(11)
    for dtype in (np.int32, np.int64, np.int32, np.int64):
        check_fold(on, 200, [int(b) for b in rng.integers(-50, 260, 20)], dtype, 16)


def test_no_spans(on):
    on.fold(Memory(), 0, 0, 16, 0, 4, 16, 0, 16)
    assert on.launches == []
