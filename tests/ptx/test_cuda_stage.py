"""stage_rows as nvcc compiled it: the copy is exact, nothing beside it is touched, and the digests are of the copy."""

from __future__ import annotations

import pytest
from ptx import Memory
from ptx.hash_checks import CHUNK, check_stage
from ptx.layout import RowsCase

WIDTHS = (1, 2, 3, 15, 16, 17, 63, 64, 65, 66, 127, 128, 130, 1023, 1024, 1025, 1792, 2048, 2049, 5000, 16384, 70_000)


@pytest.mark.parametrize("width", WIDTHS)
def test_every_boundary(launcher, width):
    n = 1 if width > 20_000 else 5
    aligned = -(-width // 16) * 16
    check_stage(launcher, RowsCase(n, width, aligned), aligned, 0, width)
    check_stage(launcher, RowsCase(n, width, aligned, digest_size=32), aligned + 48, 16, width)
    check_stage(launcher, RowsCase(n, width, width, offset=1), aligned, 0, width)  # one side aligned
    check_stage(launcher, RowsCase(n, width, aligned, tight=False), width + 1, 3, width)
    check_stage(launcher, RowsCase(n, width, 0, offset=2), width, width % 16, width)


@pytest.mark.parametrize("num_rows", [1, 31, 33, 257])
def test_row_counts(launcher, num_rows):
    check_stage(launcher, RowsCase(num_rows, 1100, 1100), 1104, 0, num_rows)


@pytest.mark.parametrize(("stride", "staged_stride"), [(2**32, 2**33), (1120, 2**32 + 32), (2**31 + 8, 1100)])
def test_strides_beyond_32_bits(launcher, stride, staged_stride):
    check_stage(launcher, RowsCase(4, 1100, stride), staged_stride, 0, 1)


def test_a_row_longer_than_a_block(launcher):
    check_stage(launcher, RowsCase(1, 256 * CHUNK + 77, 0), 0, 0, 1)
    check_stage(launcher, RowsCase(1, 256 * CHUNK + 77, 0, offset=5), 0, 9, 1)


def test_no_rows(launcher):
    launcher.stage(Memory(), 0, 0, 64, 64, 0, 64, 16, 0, 16)
    assert launcher.launches == []


def test_kernels_step_by_the_grid(launcher):
    launcher.grid = 1
    try:
        check_stage(launcher, RowsCase(300, 70, 70), 80, 0, 1)
    finally:
        launcher.grid = None
