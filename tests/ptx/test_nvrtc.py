"""The kernels as NVRTC compiles them and as gpukey.backends.nvrtc launches them, run in the emulator. The source is the
one that nvcc compiled for test_cuda_*.py, so the cases are fewer."""

from __future__ import annotations

import os

import numpy as np
import pytest
from ptx import Module
from ptx.hash_checks import BLOCK, CHUNK, HOSTILE, HOSTILE_64, SPANS, check_fold, check_rows, check_stage, row_cases
from ptx.layout import RowsCase
from ptx.nvrtc_launcher import NvrtcLauncher

from gpukey.backends import nvrtc


@pytest.fixture(scope="module", params=[80, 90], ids=lambda arch: f"sm_{arch}")
def launcher(request) -> NvrtcLauncher:
    if reason := nvrtc.uncompilable():
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
    return NvrtcLauncher(Module(nvrtc.ptx(request.param)))


@pytest.mark.parametrize(
    "width", [1, 3, 16, BLOCK - 1, BLOCK, BLOCK + 1, 896, CHUNK, CHUNK + 1, 1792, 5 * CHUNK + 3, 70_000]
)
def test_rows(launcher, width):
    for seed, case in enumerate(row_cases(width)):
        check_rows(launcher, case, seed=seed + width)


def test_rows_longer_than_a_block(launcher):
    check_rows(launcher, RowsCase(1, 257 * CHUNK + 1, 0, offset=3), seed=1)


def test_strides_beyond_32_bits(launcher):
    for stride in (2**31, 2**32, 2**40 + 1):
        check_rows(launcher, RowsCase(4, 130, stride), seed=2)


def test_stage(launcher):
    for width in (1, BLOCK, BLOCK + 2, CHUNK + 1, 5000):
        check_stage(launcher, RowsCase(5, width, width + 1, offset=1), width + 3, 2, seed=width)
        aligned = -(-width // 16) * 16
        check_stage(launcher, RowsCase(33, width, aligned), aligned, 0, seed=width)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_spans(launcher, dtype):
    for length in SPANS:
        check_fold(launcher, length, [0, length // 3, length], dtype, 16 + 16 * (length % 2))


def test_hostile_spans(launcher):
    for bounds in HOSTILE:
        check_fold(launcher, 10, bounds, np.int32, 16)
    for bounds in HOSTILE_64:
        check_fold(launcher, 10, bounds, np.int64, 32, offset=1)
