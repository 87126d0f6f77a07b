"""fingerprint_rows and stage_rows as Triton compiled them, launched by triton_kernels/launch.py and run in the emulator: every
byte as BLAKE3's, no other byte read or written."""

from __future__ import annotations

import pytest
import triton_aot
from ptx import Memory
from ptx.hash_checks import CHUNK, WIDTHS, check_rows, check_stage, row_cases
from ptx.layout import RowsCase
from triton_emulated import TritonLauncher, launcher

TILE = 32 * CHUNK
SHORT = [width for width in WIDTHS if width <= 200]
LONG = (1023, 1024, 1025, 1792, 2049, 3072, 5 * CHUNK + 1, TILE, TILE + 1, 70_000)
IN_LANES = (1040, 1792, 2064, 3072, 5 * CHUNK + 16, 8192)


@pytest.fixture(params=["sm_80", "sm_90"])
def on(request: pytest.FixtureRequest) -> TritonLauncher:
    return launcher(request.param)


@pytest.fixture
def on_90() -> TritonLauncher:
    """For long rows and for kernels that cost a compilation more: the two targets get nearly the same PTX."""
    return launcher("sm_90")


@pytest.mark.parametrize("width", SHORT)
def test_every_boundary_of_blocks(on, width):
    for seed, case in enumerate(row_cases(width)):
        check_rows(on, case, seed=seed + 100 * width)


@pytest.mark.parametrize("width", LONG)
def test_every_boundary_of_chunks_and_tiles(on_90, width):
    aligned, _, odd, *_ = row_cases(width)
    check_rows(on_90, aligned, seed=width)
    check_rows(on_90, odd, seed=width)


@pytest.mark.parametrize("width", [TILE * 32, TILE * 32 + 1])
def test_rows_of_more_tiles_than_a_warp_has_lanes(on_90, width):
    """The second merges the tiles in two launches."""
    check_rows(on_90, RowsCase(1, width, width), seed=width)
    assert [name for name, _ in on_90.launches] == ["hash_tiles"] + ["merge_tiles"] * (1 + width % 2)


@pytest.mark.parametrize("offset", range(16))
def test_every_alignment(on, offset):
    for width in (130, CHUNK + 65) if offset % 3 == 1 else (130,):
        check_rows(on, RowsCase(5, width, width + offset % 5, offset=offset), seed=offset)


@pytest.mark.parametrize("num_rows", [1, 2, 31, 32, 33, 100])
def test_row_counts_around_a_warp(on_90, num_rows):
    for width in (6, 64, CHUNK + 32):
        check_rows(on_90, RowsCase(num_rows, width, width), seed=num_rows)
        assert len(on_90.launches) == 1


@pytest.mark.parametrize("width", IN_LANES)
def test_a_row_in_each_lane(on_90, width):
    """The plan of a large grid, on few rows."""
    on_90.plan = triton_aot.kernels("plan").in_lanes(width, 32)
    try:
        check_rows(on_90, RowsCase(33 if width < 3000 else 3, width, width + 16), seed=16 * width)
        assert [name for name, _ in on_90.launches] == ["hash_lanes"]
        if width == 1792:
            check_rows(on_90, RowsCase(34, width, 2**32 + 16), seed=16 * width)
            check_rows(on_90, RowsCase(2, width, 0, digest_size=32), seed=16 * width)
            check_stage(on_90, RowsCase(33, width, width), width + 32, 16, width)
    finally:
        on_90.plan = None


@pytest.mark.parametrize("stride", [2**31, 2**32 + 16, 2**33 + 7, 2**40 + 1])
def test_strides_beyond_32_bits(on_90, stride):
    for width in (16, 130):
        check_rows(on_90, RowsCase(5, width, stride), seed=width)


@pytest.mark.parametrize("width", [1, 2, 15, 16, 63, 64, 66, 128, 1025, 1792])
def test_staging(on_90, width):
    aligned = -(-width // 16) * 16
    check_stage(on_90, RowsCase(5, width, aligned), aligned, 0, width)
    check_stage(on_90, RowsCase(5, width, width, offset=1), aligned, 0, width)
    if width < CHUNK:
        check_stage(on_90, RowsCase(5, width, aligned, tight=False), width + 1, 3, width)


def test_staging_rows_of_several_tiles(on_90):
    check_stage(on_90, RowsCase(1, 2 * TILE + 48, 0), 0, 16, 1)


@pytest.mark.parametrize(("stride", "staged_stride"), [(2**32, 2**33), (2**31 + 8, 160)])
def test_staging_over_strides_beyond_32_bits(on_90, stride, staged_stride):
    check_stage(on_90, RowsCase(4, 160, stride), staged_stride, 0, 1)


def test_every_kernel_on_sm_80():
    on = launcher("sm_80")
    check_rows(on, RowsCase(3, 2 * TILE + 17, 2 * TILE + 17, offset=1), seed=0)
    check_stage(on, RowsCase(5, 1792, 1792), 1808, 0, 1)
    check_stage(on, RowsCase(5, 66, 66), 67, 1, 1)
    on.plan = triton_aot.kernels("plan").in_lanes(3072, 32)
    try:
        check_rows(on, RowsCase(33, 3072, 3072), seed=0)
    finally:
        on.plan = None


def test_no_rows(on):
    stats = on.rows(Memory(), 0, 0, 64, 64, 16, 0, 16)
    assert on.launches == []
    assert stats.warp_instructions == 0


def test_a_row_that_is_too_long_is_refused(on):
    width = 2**31
    with pytest.raises(ValueError, match="rows has 2147483648 bytes a row; at most 2147450880 are supported"):
        on.rows(Memory(), 256, 1, width, width, 256, 256, 16)
    assert on.launches == []
