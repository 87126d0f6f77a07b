"""fold_spans as nvcc compiled it: spans of any length, and hostile cu_seqlens that may give wrong digests but never a
read outside the fingerprints."""

from __future__ import annotations

import numpy as np
import pytest
from ptx import Memory
from ptx.hash_checks import HOSTILE, HOSTILE_64, SPANS, check_fold
from ptx.layout import Output, Placed, RowsCase, keyed, map_key


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("size", [16, 32])
@pytest.mark.parametrize("length", SPANS)
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


def test_span_numbers_beyond_32_bits(launcher):
    """The last block of 2^30 spans: its bounds and its digest lie more than 4 GiB away, its rows too."""
    spans, num_rows, memory, rng = 2**30, 2**31, Memory(), np.random.default_rng(2)
    placed = Placed(memory, rng, RowsCase(70, 16, 16))
    key, key_at = map_key(memory, rng)
    bounds = memory.map(np.array([num_rows - 70, num_rows], np.int64))
    out = Output(memory, 1, 16, 16)
    launcher.only = range(spans - 1, spans)
    try:
        data, digests = placed.address - 16 * (num_rows - 70), out.address - 16 * (spans - 1)
        cu_seqlens = bounds - 8 * (spans - 1)
        launcher.fold(memory, data % 2**64, num_rows, cu_seqlens % 2**64, spans, 8, key_at, digests % 2**64, 16)
    finally:
        launcher.only = None
    out.check([keyed(key, b"".join(row.tobytes() for row in placed.rows), 16)])


def test_no_spans(launcher):
    launcher.fold(Memory(), 0, 0, 16, 0, 4, 16, 0, 16)
    assert launcher.launches == []


def test_kernels_step_by_the_grid(launcher):
    launcher.grid = 3
    try:
        check_fold(launcher, 200, [0, 3, 3, 70, 71, 75, 140, 200], np.int64, 16)
    finally:
        launcher.grid = None
