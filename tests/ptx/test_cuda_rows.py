"""fingerprint_rows as nvcc compiled it, run in the emulator: every byte as BLAKE3's, no other byte read or written."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from ptx import Memory, PTXError
from ptx.hash_checks import BLOCK, CHUNK, LONG, WIDTHS, check_rows, row_cases
from ptx.layout import Output, Placed, RowsCase, keyed, map_key


@pytest.mark.parametrize("width", WIDTHS)
def test_every_boundary(launcher, width):
    for seed, case in enumerate(row_cases(width)):
        check_rows(launcher, case, seed=seed + 100 * width)


@pytest.mark.parametrize("width", LONG)
def test_rows_longer_than_a_block(launcher, width):
    check_rows(launcher, RowsCase(1, width, width, offset=width % 16), seed=width)


@pytest.mark.parametrize("offset", range(16))
def test_every_alignment(launcher, offset):
    for width in (130, 2 * CHUNK + 65):
        check_rows(launcher, RowsCase(5, width, width + offset % 5, offset=offset), seed=offset)


@pytest.mark.parametrize("num_rows", [1, 2, 31, 32, 33, 127, 255, 256, 257, 600])
def test_row_counts_around_a_warp_and_a_block(launcher, num_rows):
    for width in (6, BLOCK + 1, CHUNK + 2):
        check_rows(launcher, RowsCase(num_rows, width, width), seed=num_rows)


@pytest.mark.parametrize("stride", [2**31, 2**32 - 16, 2**32, 2**32 + 16, 2**33 + 7, 2**40 + 1])
def test_strides_beyond_32_bits(launcher, stride):
    """A row lies stride * index away, which no 32-bit product holds; a read near the first row raises."""
    for width in (16, 130, CHUNK + 100):
        check_rows(launcher, RowsCase(5, width, stride), seed=width)


@pytest.mark.parametrize("num_rows", [2**28 + 40, 2**31 + 40, 2**33 + 40])
def test_row_numbers_and_digests_beyond_32_bits(launcher, num_rows):
    """The last block of a launch whose output alone is larger than 4 GiB; what is not mapped is not touched."""
    width, stride, size, memory, rng = 70, 80, 16, Memory(), np.random.default_rng(9)
    first = num_rows // 256 * 256
    placed = Placed(memory, rng, RowsCase(num_rows - first, width, stride))
    key, key_at = map_key(memory, rng)
    out = Output(memory, num_rows - first, size, size)
    launcher.only = range(first // 256, first // 256 + 1)
    try:
        data, digests = placed.address - first * stride, out.address - first * size
        launcher.rows(memory, data % 2**64, num_rows, width, stride, key_at, digests % 2**64, size)
    finally:
        launcher.only = None
    assert launcher.launches[0][1:] == ((first // 256 + 1, 1, 1), (256, 1, 1))
    out.check([keyed(key, row, size) for row in placed.rows])


def test_no_rows(launcher):
    stats = launcher.rows(Memory(), 0, 0, 64, 64, 16, 0, 16)
    assert launcher.launches == []
    assert stats.warp_instructions == 0


def test_one_launch(launcher):
    for num_rows, width in itertools.product((1, 700), (1, 1792, 5000)):
        memory, rng = Memory(), np.random.default_rng(0)
        placed = Placed(memory, rng, RowsCase(num_rows, width, width))
        _, key = map_key(memory, rng)
        out = Output(memory, num_rows, 16, 16)
        launcher.rows(memory, placed.address, num_rows, width, width, key, out.address, 16)
        assert len(launcher.launches) == 1


def test_the_fill_of_shared_memory_does_not_matter(launcher):
    for fill in (0x00, 0xFF):
        launcher.fill = fill
        try:
            for width in (CHUNK + 1, 5 * CHUNK):
                check_rows(launcher, RowsCase(40, width, width), seed=fill)
        finally:
            launcher.fill = 0xA5


@pytest.mark.parametrize(
    "arguments",
    [(1, 0, 0, 16), (1, -1, 0, 16), (-1, 4, 4, 16), (1, 4, -4, 16), (1, 4, 4, 24), (1, 2**42, 2**42, 16)],
    ids=["no width", "negative width", "negative count", "negative stride", "digest of 24", "4 TiB"],
)
def test_the_launcher_refuses(launcher, arguments):
    num_rows, width, stride, size = arguments
    with pytest.raises(PTXError, match="the launcher returned -"):
        launcher.rows(Memory(), 256, num_rows, width, stride, 256, 256, size)
    assert launcher.launches == []


def test_a_digest_depends_on_its_row_alone(launcher):
    """Many rows in one launch equal the same rows one by one."""
    memory, rng = Memory(), np.random.default_rng(5)
    placed = Placed(memory, rng, RowsCase(70, 1100, 1100))
    key, key_at = map_key(memory, rng)
    out = Output(memory, 70, 16, 16)
    launcher.rows(memory, placed.address, 70, 1100, 1100, key_at, out.address, 16)
    out.check([keyed(key, row, 16) for row in placed.rows])
    for i in (0, 33, 69):
        alone = Output(memory, 1, 16, 16)
        launcher.rows(memory, placed.address + i * 1100, 1, 1100, 1100, key_at, alone.address, 16)
        assert alone.row(0) == out.row(i)


def test_kernels_step_by_the_grid(launcher):
    """A grid ends at 2^31 - 1 blocks: with fewer blocks than work, each takes the next one's."""
    launcher.grid = 2
    try:
        for case in (RowsCase(300, 70, 70), RowsCase(130, 1100, 1104), RowsCase(5, 257 * CHUNK, 0)):
            check_rows(launcher, case, seed=case.width)
    finally:
        launcher.grid = None
