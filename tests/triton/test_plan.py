"""The plan of a launch: every row and chunk has its lane, and the choice is the cheaper one."""

from __future__ import annotations

import pytest
import triton_aot

plan = triton_aot.kernels("plan")
H200 = 4 * 32 * 132


@pytest.mark.parametrize("lanes", [32, 64])
@pytest.mark.parametrize("row_bytes", [1, 1024, 1025, 2048, 5000, 32 * 1024, 32 * 1024 + 1, 2**24, 2**31 - 2**15])
def test_tiles_hold_all_chunks(row_bytes, lanes):
    tiled = plan.in_tiles(row_bytes, lanes)
    chunks = -(-row_bytes // 1024)
    assert (tiled.tiles - 1) * tiled.width < chunks <= tiled.tiles * tiled.width
    assert tiled.width & (tiled.width - 1) == 0
    assert tiled.tiles == 1 or tiled.width == lanes
    assert tiled.rows_each * tiled.width == lanes


@pytest.mark.parametrize("chunks", range(2, 33))
def test_the_stack_holds_all_levels(chunks):
    assert 2 ** plan.in_lanes(1024 * chunks, 32).levels >= chunks > 2 ** (plan.in_lanes(1024 * chunks, 32).levels - 1)


@pytest.mark.parametrize("row_bytes", [1792, 8192, 16384, 10240])
def test_few_rows_spread_and_many_fill_their_lanes(row_bytes):
    assert plan.choose(1, row_bytes, True, 32, H200).levels == 0
    assert plan.choose(576, row_bytes, True, 32, H200).levels == 0
    assert plan.choose(1 << 20, row_bytes, True, 32, H200).levels > 0
    assert plan.choose(1 << 20, row_bytes, False, 32, H200).levels == 0


def test_a_row_beyond_the_grid_is_an_error():
    with pytest.raises(ValueError, match=r"rows has 2147483648 bytes a row; at most 2147450880 are supported"):
        plan.in_tiles(2**31, 32)
