"""Every CUDA backend gives the bytes of the Python backend, for every dtype, width, alignment, stride and bound."""

from itertools import pairwise

import pytest
import torch
from gpu_cases import BACKENDS, DEVICE, SECRET, assert_same, expected, make_rows, need, on_host

import gpukey
from gpukey import backends

pytestmark = [pytest.mark.gpu, pytest.mark.parametrize("backend", [None, *BACKENDS])]
DTYPES = ["uint8", "bool", "int8", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn_x2", "bfloat16", "float16", "int16"]
DTYPES += ["uint16", "float32", "int32", "complex32", "float64", "int64", "complex64", "complex128"]
AROUND = [n + d for n in (16, 64, 128, 512, 1024, 2048, 3072, 4096, 8192, 16384) for d in (-1, 0, 1)]


@pytest.fixture(autouse=True)
def works(backend):
    if backend is not None:
        need(backend)


def key_of(rows, digest_size, label="row"):
    return getattr(SECRET, f"{label}_key")(rows.dtype, rows.shape[1], digest_size=digest_size, device=rows.device)


@pytest.mark.parametrize("digest_size", [16, 32])
def test_widths(backend, digest_size):
    for width in [*range(1, 70, 3), *AROUND, 31744, 70001]:
        rows = make_rows("uint8", 3, width, offset=width % 5, gap=width % 3, seed=width)
        assert_same(
            gpukey.fingerprint_rows(rows, secret=SECRET, digest_size=digest_size, backend=backend),
            expected(rows, digest_size),
        )


@pytest.mark.filterwarnings("ignore:ComplexHalf:UserWarning")
@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(backend, dtype):
    for offset, gap in ((0, 0), (1, 0), (0, 1), (3, 5), (8, 8)):
        rows = make_rows(dtype, 9, 896, offset=offset, gap=gap)
        assert_same(gpukey.fingerprint_rows(rows, secret=SECRET, backend=backend), expected(rows))
    columns = make_rows(dtype, 40, 7).t()
    assert_same(gpukey.fingerprint_rows(columns, secret=SECRET, backend=backend), expected(columns))


def test_strides(backend):
    base = make_rows("float32", 64, 257)
    views = [base[::2], base[:, 3:200], base[:1].expand(33, 257), base.flatten().unfold(0, 257, 3), base[:, 5:6]]
    for rows in [*views, base[:0], base[:, :1].expand(64, 9), base.to(torch.complex64).conj(), base.t()]:
        solid = rows.resolve_conj()
        assert_same(gpukey.fingerprint_rows(rows, secret=SECRET, backend=backend), expected(solid))
    lazy = base.to(torch.complex64).conj().imag
    assert lazy.is_neg()
    assert_same(gpukey.fingerprint_rows(lazy, secret=SECRET, backend=backend), expected(lazy.resolve_neg()))


@pytest.mark.parametrize("num_rows", [1, 2, 31, 32, 33, 127, 576, 5000])
@pytest.mark.parametrize("hidden", [1, 64, 896, 4096])
def test_numbers_of_rows(backend, num_rows, hidden):
    rows = make_rows("bfloat16", num_rows, hidden, seed=num_rows)
    assert_same(gpukey.fingerprint_rows(rows, secret=SECRET, backend=backend), expected(rows))


@pytest.mark.parametrize("digest_size", [16, 32])
def test_spans(backend, digest_size):
    rows = make_rows("bfloat16", 5000, 64)
    bounds = [0, 0, 1, 5, 5, 68, 69, 132, 197, 1221, 4999, 5000, 5000]
    for dtype in (torch.int32, torch.int64):
        cu_seqlens = torch.tensor(bounds, dtype=dtype, device=DEVICE)
        digests = gpukey.fingerprint_spans(rows, cu_seqlens, secret=SECRET, digest_size=digest_size, backend=backend)
        want = gpukey.fingerprint_spans(
            on_host(rows), cu_seqlens.cpu(), secret=SECRET, digest_size=digest_size, backend="python"
        )
        assert_same(digests, want)


def test_hostile_bounds_are_clamped(backend):
    if DEVICE == "cpu":
        pytest.skip("on a CPU they are errors")
    rows = make_rows("float32", 50, 16)
    hostile = [5, -1, 3, 2**40, 7, -(2**62), 50, 51, 2**63 - 1, 0]
    digests = gpukey.fingerprint_spans(rows, torch.tensor(hostile, device=DEVICE), secret=SECRET, backend=backend)
    clamped = [min(max(bound, 0), 50) for bound in hostile]
    prints, key = expected(rows), SECRET.span_key(torch.float32, 16)
    fold = backends.load("python").fold_spans
    for i, (begin, end) in enumerate(pairwise(clamped)):
        part = prints[begin : max(begin, end)]
        assert_same(digests[i : i + 1], fold(part, torch.tensor([0, len(part)]), key, 16))


@pytest.mark.parametrize(("dtype", "hidden"), [("bfloat16", 896), ("uint8", 1023), ("float32", 4096), ("float16", 33)])
def test_staging(backend, dtype, hidden):
    stage = torch.ops.gpukey.stage_rows if backend is None else backends.load(backend).stage_rows
    for gap in (0, 1, 8):
        rows = make_rows(dtype, 77, hidden, offset=gap, gap=gap)
        wide = make_rows(dtype, 79, hidden + 16, seed=1)
        before, staged = on_host(wide), wide[1:78, 8 : 8 + hidden]
        assert_same(stage(rows, staged, key_of(rows, 16), 16), expected(rows))
        assert torch.equal(on_host(staged).view(torch.uint8), on_host(rows).view(torch.uint8))
        on_host_staged = on_host(wide)
        on_host_staged[1:78, 8 : 8 + hidden] = before[1:78, 8 : 8 + hidden]
        assert torch.equal(on_host_staged.view(torch.uint8), before.view(torch.uint8)), "wrote beside the rows"


def test_out(backend):
    rows = make_rows("bfloat16", 33, 896)
    out = torch.full((33, 16), 0xEE, dtype=torch.uint8, device=DEVICE)
    assert gpukey.fingerprint_rows(rows, secret=SECRET, out=out, backend=backend) is out
    assert_same(out, expected(rows))
    cu_seqlens = torch.tensor([0, 3, 33], device=DEVICE)
    spans = torch.full((2, 16), 0xEE, dtype=torch.uint8, device=DEVICE)
    assert gpukey.fingerprint_spans(rows, cu_seqlens, secret=SECRET, out=spans, backend=backend) is spans
    assert_same(spans, gpukey.fingerprint_spans(rows, cu_seqlens, secret=SECRET, backend=backend).cpu())
