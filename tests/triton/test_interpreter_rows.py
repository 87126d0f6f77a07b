"""fingerprint_rows and stage_rows of the Triton source itself, run by its interpreter on CPU tensors, against the reference."""

from __future__ import annotations

import random

import pytest
import torch
from triton_rows import NOISE, backend, noise, over, row_bytes, spread

from gpukey import reference

pytestmark = pytest.mark.interpret

KEY = bytes(range(100, 132))
DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64, torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.float4_e2m1fn_x2,
]  # fmt: skip
BOUNDARIES = [1, 3, 4, 63, 64, 65, 127, 128, 129, 1023, 1024, 1025, 2049]


def key_tensor(offset: int = 0) -> torch.Tensor:
    memory = torch.zeros(offset + 32, dtype=torch.uint8)
    memory[offset:] = torch.tensor(list(KEY), dtype=torch.uint8)
    return memory[offset:]


def expected(rows: torch.Tensor, size: int) -> list[bytes]:
    return [reference.keyed_hash(KEY, row)[:size] for row in row_bytes(rows)]


def check_rows(rows: torch.Tensor, size: int, offset: int = 0) -> None:
    """`offset`: where the key and the digests stand in their memory."""
    out = torch.full((rows.shape[0] * size + offset + NOISE,), 0xA5, dtype=torch.uint8)
    view = out[offset : offset + rows.shape[0] * size].view(rows.shape[0], size)
    assert backend().fingerprint_rows(rows, key_tensor(offset), size, view) is view
    assert row_bytes(view) == expected(rows, size)
    assert bool((out[offset + rows.shape[0] * size :] == 0xA5).all())


def check_stage(rows: torch.Tensor, stride: int, offset: int, size: int) -> None:
    dtype, shape = rows.dtype, rows.shape
    memory = noise(offset * dtype.itemsize + spread(*shape, stride, dtype) + NOISE, 5)
    before = memory.clone()
    staged = over(memory, *shape, stride, offset, dtype)
    digests = backend().stage_rows(rows, staged, key_tensor(), size)
    assert row_bytes(digests) == expected(rows, size)
    assert row_bytes(staged) == row_bytes(rows)
    mine = over(before, *shape, stride, offset, dtype)
    mine.view(torch.uint8).copy_(rows.view(torch.uint8))
    assert torch.equal(memory, before), "a byte beside the rows was written"


@pytest.mark.parametrize("seed", range(140))
def test_generated_rows(seed):
    pick = random.Random(seed)
    dtype = pick.choice(DTYPES)
    num_rows, size = pick.choice([1, 2, 3, 33]), pick.choice([16, 32])
    hidden = max(
        1,
        pick.choice([16, 48, 64, 64, 80, 128, pick.randint(1, 64), pick.randint(1, 64), pick.randint(65, 140)])
        // dtype.itemsize,
    )
    stride = pick.choice([0, hidden, hidden + 1, hidden + pick.randint(2, 40), -(-hidden // 16) * 16])
    offset = pick.choice([0, 0, 16, 1, pick.randint(0, 40)])
    memory = noise(offset * dtype.itemsize + spread(num_rows, hidden, stride, dtype) + NOISE, seed)
    rows = over(memory, num_rows, hidden, stride, offset, dtype)
    if pick.random() < 0.7:
        check_rows(rows, size, pick.choice([0, 0, 4, 1, 3]))
    else:
        check_stage(rows, hidden + pick.choice([0, 0, 1, 16, 7]), pick.choice([0, 0, 16, 1]), size)


@pytest.mark.parametrize("width", BOUNDARIES)
def test_every_boundary(width):
    rows = over(noise(3 * width + 80, width), 2, width, -(-width // 16) * 16, 0)
    check_rows(rows, 32)


@pytest.mark.parametrize("width", [1039])
def test_rows_at_odd_addresses_longer_than_a_chunk(width):
    check_rows(over(noise(3 * width, width), 2, width, width + 1, 3), 16)


def test_rows_of_several_tiles(monkeypatch):
    """Tiles of 2 chunks, so that 5 chunks take the path of a row of more than 32 KiB."""
    from gpukey.triton_kernels import launch

    plan = launch.Plan(lanes=2, levels=0, width=2, tiles=3)
    rows, out = over(noise(4112, 1), 1, 4112, 4112, 0), torch.empty((1, 16), dtype=torch.uint8)
    launch.hash_rows(rows, None, key_tensor(), out, plan)
    assert row_bytes(out) == expected(rows, 16)


@pytest.mark.parametrize("width", [1040, 3088])
def test_a_row_in_each_lane(width):
    """The plan of many rows."""
    from gpukey.triton_kernels import launch, plan

    rows, out = over(noise(3 * width, width), 3, width, width, 0), torch.empty((3, 16), dtype=torch.uint8)
    launch.hash_rows(rows, None, key_tensor(), out, plan.in_lanes(width, 4))
    assert row_bytes(out) == expected(rows, 16)


def test_no_rows():
    for rows in (torch.empty((0, 7)), torch.empty((0, 7), dtype=torch.bfloat16)):
        assert backend().fingerprint_rows(rows, key_tensor(), 32).shape == (0, 32)
        assert backend().stage_rows(rows, rows.clone(), key_tensor(), 16).shape == (0, 16)
