"""Wrong arguments straight to the compiled ops: each is a ValueError that names the argument, nothing is read out of
bounds."""

from __future__ import annotations

import pytest
import torch

from gpukey.backends import cpu

assert cpu.unavailable() is None
OPS = torch.ops.gpukey_cpu
KEY = torch.zeros(32, dtype=torch.uint8)
ROWS = torch.zeros(4, 64, dtype=torch.uint8)
PRINTS = torch.zeros(4, 16, dtype=torch.uint8)
OUT = torch.zeros(4, 16, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("rows", "key", "digest_size", "names"),
    [
        (ROWS, KEY, 0, "digest_size"),
        (ROWS, KEY, 64, "digest_size"),
        (ROWS, KEY, -16, "digest_size"),
        (ROWS, KEY, 2**40 + 16, "digest_size"),
        (ROWS[0], KEY, 16, "rows"),
        (ROWS[None], KEY, 16, "rows"),
        (ROWS[:, :0], KEY, 16, "rows"),
        (ROWS, KEY[:31], 16, "key"),
        (ROWS, torch.zeros(33, dtype=torch.uint8), 16, "key"),
        (ROWS, KEY.float(), 16, "key"),
        (ROWS, KEY.view(4, 8), 16, "key"),
        (ROWS, torch.zeros(64, dtype=torch.uint8)[::2], 16, "key"),
        (ROWS, torch.zeros(1, dtype=torch.uint8).expand(32), 16, "key"),
    ],
)
def test_rows(rows, key, digest_size, names):
    with pytest.raises(ValueError, match=names):
        OPS.fingerprint_rows(rows, key, digest_size)
    with pytest.raises(ValueError):
        OPS.stage_rows(rows, torch.empty_like(rows), key, digest_size)


@pytest.mark.parametrize(
    "out",
    [
        OUT[:3],
        OUT[:, :8],
        OUT.to(torch.int8),
        torch.zeros(4, 32, dtype=torch.uint8)[:, ::2],
        OUT[0],
        PRINTS.new_zeros(4, 32),
    ],
)
def test_out(out):
    with pytest.raises(ValueError, match="out"):
        OPS.fingerprint_rows.out(ROWS, KEY, 16, out=out)
    with pytest.raises(ValueError, match="out"):
        OPS.fold_spans.out(PRINTS, torch.arange(5), KEY, 16, out=out)
    with pytest.raises(ValueError, match="digests"):
        OPS.stage_rows.out(ROWS, ROWS.clone(), KEY, 16, digests=out)


@pytest.mark.parametrize(
    "bounds",
    [
        [],
        [1, 4],
        [0, 3],
        [0, 5],
        [0, 3, 2, 4],
        [0, -1, 4],
        [0, 2**62, 4],
        [0, -(2**63), 2**63 - 1, 4],
        [4],
    ],
)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_cu_seqlens(bounds, dtype):
    if dtype is torch.int32:
        bounds = [max(-(2**31), min(2**31 - 1, bound)) for bound in bounds]
    with pytest.raises(ValueError, match="cu_seqlens"):
        OPS.fold_spans(PRINTS, torch.tensor(bounds, dtype=dtype), KEY, 16)


@pytest.mark.parametrize(
    ("rows", "bounds"),
    [
        (PRINTS, torch.tensor([0.0, 4.0])),
        (PRINTS, torch.tensor([[0, 4]])),
        (PRINTS, torch.tensor([0, 4], dtype=torch.int16)),
        (PRINTS.to(torch.int8), torch.tensor([0, 4])),
        (PRINTS[:, :8], torch.tensor([0, 4])),
        (PRINTS[0], torch.tensor([0, 4])),
    ],
)
def test_fold(rows, bounds):
    with pytest.raises(ValueError, match=r"rows|cu_seqlens"):
        OPS.fold_spans(rows, bounds, KEY, 16)


def test_fold_reads_scattered_arguments():
    wide = torch.randint(0, 256, (8, 32), dtype=torch.uint8)
    bounds = torch.tensor([0, 9, 2, 9, 8, 9])[::2]
    assert torch.equal(
        OPS.fold_spans(wide[:, :16], bounds, KEY, 16), OPS.fold_spans(wide[:, :16].clone(), bounds.clone(), KEY, 16)
    )


@pytest.mark.parametrize(
    "staged",
    [
        ROWS[:3],
        ROWS[:, :63],
        ROWS.view(torch.int8),
        torch.zeros(64, 4, dtype=torch.uint8).t(),
        torch.zeros(64, dtype=torch.uint8).expand(4, 64),
        torch.zeros(300, dtype=torch.uint8).as_strided((4, 64), (63, 1)),
    ],
)
def test_staged(staged):
    with pytest.raises(ValueError, match="out"):
        OPS.stage_rows(ROWS, staged, KEY, 16)


@pytest.mark.parametrize(
    ("token_ids", "parent", "key", "block_size", "names"),
    [
        (torch.tensor([1, -1]), KEY, KEY, 1, r"token_ids\[1\] is -1"),
        (torch.tensor([1.0]), KEY, KEY, 1, "token_ids"),
        (torch.tensor([[1]]), KEY, KEY, 1, "token_ids"),
        (torch.arange(4)[::2], KEY, KEY, 1, "token_ids"),
        (torch.tensor([1]), KEY[:8], KEY, 1, "parent"),
        (torch.tensor([1]), KEY, KEY[:8], 1, "key"),
        (torch.tensor([1]), KEY, KEY, 0, "block_size"),
        (torch.tensor([1]), KEY, KEY, -1, "block_size"),
        (torch.tensor([1]), KEY, KEY, 2**32, "block_size"),
    ],
)
def test_block_keys(token_ids, parent, key, block_size, names):
    with pytest.raises(ValueError, match=names):
        OPS.block_keys(token_ids, parent, key, block_size)


def test_sparse_and_meta_tensors_have_no_kernel():
    with pytest.raises((NotImplementedError, RuntimeError)):
        OPS.fingerprint_rows(ROWS, KEY.to("meta"), 16)
    with pytest.raises((NotImplementedError, RuntimeError)):
        OPS.fingerprint_rows(torch.eye(4).to_sparse(), KEY, 16)
    with pytest.raises((NotImplementedError, RuntimeError)):
        OPS.fingerprint_rows(torch.empty(4, 4, device="meta"), KEY, 16)
