"""The compiled CPU backend against BLAKE3 of the same bytes: every boundary of the hash, every dtype, any layout. The
instruction sets are compared in tests/csrc."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from blake3 import blake3

import gpukey.ops  # noqa: F401  registers the ops
from gpukey import backends, reference
from gpukey.backends import cpu

KEY_BYTES = b"whats the Elvish word for friend"
KEY = torch.frombuffer(bytearray(KEY_BYTES), dtype=torch.uint8)
# Blocks of 64, chunks of 1024, powers of two of chunks, and the 256 chunks that are hashed in one piece.
BOUNDARIES = [1, 63, 64, 65, 128, 1023, 1024, 1025, 2047, 2048, 2049, 3072, 3073, 4096, 5119, 5121, 8191, 8192, 8193]
LONG = [16384, 16385, 31744, 65537, 102400, 262143, 262144, 262145, 524289, 800000]
DTYPES = sorted(
    {
        value
        for value in vars(torch).values()
        if isinstance(value, torch.dtype) and not str(value).startswith("torch.q")
    },
    key=str,
)


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def expected(rows: list[bytes], digest_size: int = 16) -> list[str]:
    return [blake3(row, key=KEY_BYTES).digest(digest_size).hex() for row in rows]


def hexes(digests: torch.Tensor) -> list[str]:
    return [bytes(row).hex() for row in digests.tolist()]


def row_bytes(rows: torch.Tensor) -> list[bytes]:
    return [row.numpy().tobytes() for row in rows.contiguous().view(torch.uint8)]


def test_it_is_built():
    assert cpu.unavailable() is None
    assert cpu.instruction_set() in ("avx512", "avx2", "baseline")


@pytest.mark.parametrize("width", [*BOUNDARIES, *LONG])
@pytest.mark.parametrize("digest_size", [16, 32])
def test_widths(width, digest_size):
    rows = noise(3 if width > 10_000 else 19, width, seed=width)
    assert hexes(cpu.fingerprint_rows(rows, KEY, digest_size)) == expected(row_bytes(rows), digest_size)


def test_the_reference_agrees():
    rows = noise(2, 3 * 1024 + 65)
    assert hexes(cpu.fingerprint_rows(rows, KEY, 32)) == [
        reference.keyed_hash(KEY_BYTES, row).hex() for row in row_bytes(rows)
    ]


@pytest.mark.parametrize("num_rows", [0, 1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 127, 128, 129, 255, 256, 257, 300])
@pytest.mark.parametrize("width", [16, 1000, 1792])
def test_numbers_of_rows(num_rows, width):
    rows = noise(num_rows, width, seed=num_rows)
    digests = cpu.fingerprint_rows(rows, KEY, 16)
    assert digests.shape == (num_rows, 16)
    assert hexes(digests) == expected(row_bytes(rows))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(dtype):
    rows = noise(5, 240)
    assert hexes(cpu.fingerprint_rows(rows.view(dtype), KEY, 16)) == expected(row_bytes(rows))


@pytest.mark.parametrize("width", [1, 64, 1024, 1792, 2050])
@pytest.mark.parametrize("offset", [0, 1, 2, 3, 15, 63])
def test_strides_and_offsets_in_noise(width, offset):
    """Rows are read in place; what stands around them does not matter."""
    for gap in (0, 1, 7, 64):
        memory = noise(offset + 20 * (width + gap))
        rows = memory[offset:].as_strided((20, width), (width + gap, 1))
        want = expected(row_bytes(rows))
        assert hexes(cpu.fingerprint_rows(rows, KEY, 16)) == want
        kept = rows.clone()
        memory ^= 255
        rows.copy_(kept)
        assert hexes(cpu.fingerprint_rows(rows, KEY, 16)) == want


def test_stride_zero_and_huge_strides():
    row = noise(1, 1792)
    assert hexes(cpu.fingerprint_rows(row.expand(40, -1), KEY, 16)) == expected(row_bytes(row)) * 40
    # 4 rows, more than 2^31 bytes apart: untouched pages cost nothing.
    memory = torch.empty(3 * 2**31 + 100, dtype=torch.uint8)
    rows = memory.as_strided((4, 65), (2**31 + 7, 1))
    rows.copy_(noise(4, 65))
    assert hexes(cpu.fingerprint_rows(rows, KEY, 16)) == expected(row_bytes(rows))


def test_layouts_that_are_copied():
    values = torch.randn(12, 70)
    op = torch.ops.gpukey_cpu.fingerprint_rows
    assert hexes(op(values.t(), KEY, 16)) == expected(row_bytes(values.t()))
    assert hexes(op(values[:, ::3], KEY, 16)) == expected(row_bytes(values[:, ::3]))
    truth = noise(9, 30)  # bytes that no bool has
    assert hexes(op(truth.view(torch.bool).t(), KEY, 16)) == expected(row_bytes(truth.t()))
    complex_rows = torch.randn(6, 9, dtype=torch.complex64)
    assert hexes(op(complex_rows.conj(), KEY, 16)) == expected(row_bytes(complex_rows.conj().resolve_conj()))
    negated = complex_rows.conj().imag
    assert negated.is_neg()
    assert hexes(op(negated, KEY, 16)) == expected(row_bytes(negated.resolve_neg()))


def test_one_element_rows():
    rows = noise(50, 8)[:, 3:4]
    assert hexes(cpu.fingerprint_rows(rows, KEY, 16)) == expected(row_bytes(rows))


@pytest.mark.parametrize("bounds_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("digest_size", [16, 32])
def test_fold(bounds_dtype, digest_size):
    lengths = [0, 1, 1, 1, 2, 0, 0, 63, 64, 65, 3, 3, 3, 3, 576, 576, 20_000, 0]
    rows = noise(sum(lengths), digest_size)
    bounds = torch.tensor([0, *lengths]).cumsum(0).to(bounds_dtype)
    data = bytes(rows.flatten().tolist())
    spans = [data[begin * digest_size : end * digest_size] for begin, end in pairwise(bounds.tolist())]
    assert hexes(cpu.fold_spans(rows, bounds, KEY, digest_size)) == expected(spans, digest_size)
    assert cpu.fold_spans(rows[:0], bounds[:1], KEY, digest_size).shape == (0, digest_size)


@pytest.mark.parametrize("width", [1, 1024, 1792, 2048, 300_000])
def test_stage(width):
    rows = noise(21, width + 3)[:, :width]
    frame = noise(21, width + 9, seed=1)
    before, staged = frame.clone(), frame[:, 5 : 5 + width]
    assert hexes(cpu.stage_rows(rows, staged, KEY, 16)) == expected(row_bytes(rows))
    assert torch.equal(staged, rows)
    assert torch.equal(frame[:, :5], before[:, :5])
    assert torch.equal(frame[:, 5 + width :], before[:, 5 + width :])


def test_stage_onto_itself():
    rows = noise(21, 1792)
    want = expected(row_bytes(rows))
    assert hexes(cpu.stage_rows(rows, rows, KEY, 16)) == want


def test_out():
    rows, bounds = noise(21, 1792), torch.tensor([0, 5, 21])
    out = torch.full((21, 16), 7, dtype=torch.uint8)
    assert cpu.fingerprint_rows(rows, KEY, 16, out) is out
    assert hexes(out) == expected(row_bytes(rows))
    spans = torch.empty(2, 16, dtype=torch.uint8)
    assert cpu.fold_spans(out, bounds, KEY, 16, spans) is spans
    assert torch.equal(spans, cpu.fold_spans(out, bounds, KEY, 16))
    digests = torch.empty(21, 16, dtype=torch.uint8)
    assert cpu.stage_rows(rows, torch.empty_like(rows), KEY, 16, digests) is digests
    assert torch.equal(digests, out)


def test_threads_change_nothing():
    rows = noise(3000, 1792)
    threads = torch.get_num_threads()
    try:
        results = []
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            results.append(cpu.fingerprint_rows(rows, KEY, 16))
            staged = torch.empty_like(rows)
            results.append(cpu.stage_rows(rows, staged, KEY, 16))
            assert torch.equal(staged, rows)
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(result, results[0]) for result in results)
    assert hexes(results[0][-3:]) == expected(row_bytes(rows[-3:]))


def test_a_smaller_instruction_set_can_be_forced(fresh_python):
    code = "from gpukey.backends import cpu; print(cpu.instruction_set())"
    assert fresh_python(code, GPUKEY_CPU_ISA="baseline").strip() == "baseline"


def test_it_serves_the_ops():
    rows = noise(4, 100)
    assert backends.choose("cpu") is cpu
    assert hexes(torch.ops.gpukey.fingerprint_rows(rows, KEY, 16)) == expected(row_bytes(rows))
