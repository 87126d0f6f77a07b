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


def lost(shape, dtype, offset=0, left=0):
    """A tensor whose storage was freed (or cut to `left` bytes) behind its back."""
    tensor = torch.zeros(shape, dtype=dtype)[offset:]
    tensor.untyped_storage().resize_(left)
    return tensor


@pytest.mark.parametrize(("offset", "left"), [(0, 0), (1, 0), (0, 16), (1, 40)])
def test_what_reaches_past_its_storage(offset, left):
    """FSDP and offloading free storages; torch itself would read address 0, or the memory of others."""
    rows, key = lost((9, 64), torch.uint8, offset, left), lost((33 + offset,), torch.uint8, 1 + offset, left // 2)
    prints, count = lost((9, 16), torch.uint8, offset, left), 9 - offset
    good, marks = torch.zeros(count, 64, dtype=torch.uint8), torch.zeros(count, 16, dtype=torch.uint8)
    bounds = torch.tensor([0, count])
    for call, name in (
        (lambda: OPS.fingerprint_rows(rows, KEY, 16), "rows"),
        (lambda: OPS.fingerprint_rows(good, key, 16), "key"),
        (lambda: OPS.fingerprint_rows.out(good, KEY, 16, out=prints), "out"),
        (lambda: OPS.fold_spans(prints, bounds, KEY, 16), "rows"),
        (lambda: OPS.fold_spans(marks, lost((2 + offset,), torch.int64, offset, left // 3), KEY, 16), "cu_seqlens"),
        (lambda: OPS.stage_rows(rows, good, KEY, 16), "rows"),
        (lambda: OPS.stage_rows(good, rows, KEY, 16), "out"),
        (lambda: OPS.stage_rows.out(good, good.clone(), KEY, 16, digests=prints), "digests"),
        (lambda: OPS.block_keys(lost((9,), torch.int64, offset, left), KEY, KEY, 2), "token_ids"),
        (lambda: OPS.block_keys(bounds, key, KEY, 2), "parent"),
    ):
        with pytest.raises(ValueError, match=rf"^{name} reaches past its storage"):
            call()


def test_strides_that_overflow_are_no_way_around():
    want = OPS.fingerprint_rows(torch.zeros(1, 8), KEY, 16)
    for stride in (2**40, 2**61, 2**62, 2**63 - 1):
        rows = torch.zeros(8).as_strided((1, 8), (stride, 1))
        assert OPS.fingerprint_rows(rows, KEY, 16).equal(want)
        assert OPS.stage_rows(torch.zeros(1, 8), rows, KEY, 16).equal(want)
    assert OPS.fingerprint_rows(torch.zeros(8).as_strided((0, 8), (2**62, 1)), KEY, 16).shape == (0, 16)


def test_written_memory_is_not_read():
    memory = torch.zeros(4096, dtype=torch.uint8)
    rows, inside = memory[:1024].view(16, 64), memory[1000:1256].view(16, 16)
    for call, words in (
        (lambda: OPS.fingerprint_rows.out(rows, KEY, 16, out=inside), "out shares memory with rows"),
        (lambda: OPS.fingerprint_rows.out(rows, memory[2000:2032], 16, out=memory[1900:2156].view(16, 16)), "with key"),
        (lambda: OPS.fold_spans.out(inside, torch.arange(17), KEY, 16, out=inside), "out shares memory with rows"),
        (
            lambda: OPS.fold_spans.out(PRINTS, memory[:40].view(torch.int64), KEY, 16, out=memory[39:103].view(4, 16)),
            "with cu_seqlens",
        ),
        (lambda: OPS.stage_rows(rows, memory[64:1088].view(16, 64), KEY, 16), "out shares memory with rows"),
        (lambda: OPS.stage_rows.out(rows, rows, KEY, 16, digests=inside), "digests shares memory with rows"),
    ):
        with pytest.raises(ValueError, match=words):
            call()


def test_memory_side_by_side_is_used():
    """Halves of one wide buffer, digests between the rows, and rows staged where they stand."""
    memory = torch.arange(16 * 160, dtype=torch.int64).to(torch.uint8).view(16, 160)
    rows, staged = memory[:, :64], memory[:, 64:128]
    want = OPS.fingerprint_rows(rows.clone(), KEY, 16)
    assert OPS.stage_rows(rows, staged, KEY, 16).equal(want)
    assert staged.equal(rows)
    assert OPS.stage_rows(rows, rows, KEY, 16).equal(want)
    between = memory[3, 128:144].view(1, 16)
    OPS.fingerprint_rows.out(rows[:1], KEY, 16, out=between)
    assert between.equal(want[:1])


def test_no_block_needs_no_message():
    """A block of 2**32 - 1 ids is a message of 32 GiB, which a prompt without a full block never needs."""
    assert OPS.block_keys(torch.arange(5), KEY, KEY, 2**32 - 1).shape == (0, 32)
