"""fold_spans as nvcc compiled it: spans of any length, and hostile cu_seqlens that may give wrong digests but never a
read outside the fingerprints."""

from __future__ import annotations

import numpy as np
import pytest
from ptx import Memory
from ptx.layout import Output, Placed, RowsCase, clamped, keyed, map_key

I32, I64 = np.iinfo(np.int32), np.iinfo(np.int64)


def check_fold(launcher, num_rows: int, bounds: list[int], dtype: type, size: int, offset: int = 0) -> None:
    memory, rng = Memory(), np.random.default_rng(num_rows)
    placed = Placed(memory, rng, RowsCase(num_rows, size, size, offset=offset))
    key, key_at = map_key(memory, rng)
    cu_seqlens = np.array(bounds, dtype)
    bounds_at = memory.map(cu_seqlens)
    out = Output(memory, len(bounds) - 1, size, size, offset % 16)
    launcher.fold(
        memory, placed.address, num_rows, bounds_at, len(bounds) - 1, cu_seqlens.itemsize, key_at, out.address, size
    )
    spans = clamped(cu_seqlens, num_rows)
    out.check([keyed(key, b"".join(r.tobytes() for r in placed.rows[a:b]), size) for a, b in spans])


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("size", [16, 32])
@pytest.mark.parametrize("length", [0, 1, 2, 3, 4, 5, 31, 32, 33, 63, 64, 65, 127, 128, 129, 576, 1000, 4096, 5000])
def test_one_span(launcher, length, size, dtype):
    check_fold(launcher, length, [0, length], dtype, size, offset=3 * (length % 2))


@pytest.mark.parametrize("size", [16, 32])
def test_spans_of_many_lengths(launcher, size):
    lengths = [0, 1, 0, 0, 2, 3, 64, 65, 63, 128, 1, 700, 0, 5, 33, 1, 1, 2049, 0]
    check_fold(launcher, sum(lengths), [0, *np.cumsum(lengths)], np.int64, size)
    check_fold(launcher, sum(lengths), [0, *np.cumsum(lengths)], np.int32, size, offset=7)


def test_many_spans(launcher):
    lengths = np.random.default_rng(3).integers(0, 9, 600)
    check_fold(launcher, int(lengths.sum()), [0, *np.cumsum(lengths)], np.int32, 16)


def test_a_span_far_longer_than_the_others(launcher):
    """The block is sized for the mean span; the long one loops."""
    for long in (4096, 20_000):
        check_fold(launcher, long + 50, [*range(51), long + 50], np.int64, 16)


HOSTILE = [
    [0, -1, 10],
    [-5, 5, 10],
    [0, 11, 10],
    [0, 7, 3, 10],
    [10, 0],
    [10, 10, 10],
    [3, 4],
    [-1, -1],
    [100, 200],
    [0, 2**31 - 1, -(2**31)],
    [-(2**31), 2**31 - 1],
    [2**31 - 1, 2**31 - 1, 0, 10],
]
HOSTILE_64 = [
    [0, 2**32, 10],
    [2**32, 2**32 + 10],
    [I64.min, I64.max],
    [I64.max, I64.min],
    [0, I64.max, 5, I64.min, 10],
    [-(2**32), 10],
    [2**60, 2**60 + 10],
    [2**63 - 16, 5],
]


@pytest.mark.parametrize("bounds", HOSTILE, ids=str)
def test_hostile_bounds(launcher, bounds):
    for dtype in (np.int32, np.int64):
        check_fold(launcher, 10, bounds, dtype, 16)
        check_fold(launcher, 0, bounds, dtype, 16)


@pytest.mark.parametrize("bounds", HOSTILE_64, ids=str)
def test_hostile_bounds_of_64_bits(launcher, bounds):
    check_fold(launcher, 10, bounds, np.int64, 32)
    check_fold(launcher, 0, bounds, np.int64, 32, offset=1)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_random_bounds(launcher, dtype):
    rng = np.random.default_rng(11)
    for _ in range(8):
        check_fold(launcher, 200, [int(b) for b in rng.integers(-50, 260, 20)], dtype, 16)


def test_no_spans(launcher):
    launcher.fold(Memory(), 0, 0, 16, 0, 4, 16, 0, 16)
    assert launcher.launches == []
