"""fold_spans of the Triton source, run by its interpreter: generated and hostile cu_seqlens, against the reference."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from triton_rows import backend, noise, over

from gpukey import reference

pytestmark = pytest.mark.interpret

KEY = bytes(range(7, 39))


def check_fold(
    num_rows: int, bounds: list[int], dtype: torch.dtype, size: int, stride: int = 0, offset: int = 0
) -> None:
    stride = stride or size
    rows = over(noise(offset + num_rows * stride + size, num_rows), num_rows, size, stride, offset)
    out = backend().fold_spans(
        rows, torch.tensor(bounds, dtype=dtype), torch.tensor(list(KEY), dtype=torch.uint8), size
    )
    cut = [min(max(b, 0), num_rows) for b in bounds]
    spans = [b"".join(bytes(row.numpy()) for row in rows[a : max(a, b)]) for a, b in itertools.pairwise(cut)]
    assert [bytes(row.numpy()) for row in out] == [reference.keyed_hash(KEY, span)[:size] for span in spans]


@pytest.mark.parametrize("seed", range(60))
def test_generated_folds(seed):
    pick = random.Random(seed)
    num_rows, size = pick.choice([0, 1, 2, 4, pick.randint(2, 9)]), pick.choice([16, 32])
    if seed % 2:
        bounds = [0, *sorted(pick.randint(0, num_rows) for _ in range(pick.randint(0, 2))), num_rows]
    else:
        bounds = [
            pick.choice([-(2**31), -1, 0, num_rows, num_rows + 1, 2**31 - 1, pick.randint(-3, 15)]) for _ in "abc"
        ]
    stride, offset = pick.choice([(0, 0), (0, 0), (0, 5), (48, 16), (33, 1)])
    check_fold(num_rows, bounds, pick.choice([torch.int32, torch.int64]), size, stride, offset)


@pytest.mark.parametrize(("num_rows", "size"), [(63, 16), (65, 16), (33, 32)])
def test_spans_around_a_chunk(num_rows, size):
    check_fold(num_rows, [0, num_rows], torch.int64, size)


def test_bounds_beyond_32_bits():
    check_fold(6, [-(2**63), 2**63 - 1, 2**32 + 3, 5], torch.int64, 16)


def test_no_spans():
    check_fold(3, [0], torch.int32, 16)
