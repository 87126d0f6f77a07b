"""More than 2^31 bytes, long rows, a second device, and processes that never touch CUDA."""

import pytest
import torch
from gpu_cases import BACKENDS, DEVICE, SECRET, assert_same, expected, make_rows, need

import gpukey

pytestmark = pytest.mark.gpu
GIB = 1 << 30 if DEVICE == "cuda" else 1 << 20


@pytest.fixture(scope="module")
def large():
    """2.25 GiB; every 8-byte word is its own number."""
    return torch.arange(9 * GIB // 32, device=DEVICE).view(torch.uint8)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("hidden", [8192, 1001])
def test_more_than_2_to_the_31_bytes(large, backend, hidden):
    """fla#1080: a flip of the last byte is seen, and by the last row alone."""
    need(backend)
    rows = large[: large.numel() // hidden * hidden].view(-1, hidden)
    before = gpukey.fingerprint_rows(rows, secret=SECRET, backend=backend)
    rows[-1, -1] ^= 1
    after = gpukey.fingerprint_rows(rows, secret=SECRET, backend=backend)
    assert (before != after).any(1).nonzero().flatten().tolist() == [len(rows) - 1]
    for part in (slice(0, 3), slice(len(rows) // 2, len(rows) // 2 + 3), slice(-3, None)):
        assert_same(after[part], expected(rows[part]))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_row_stride_of_more_than_2_to_the_31_bytes(large, backend):
    need(backend)
    rows = large.as_strided((2, 5000), (large.numel() - 5001, 1), 1)
    assert_same(gpukey.fingerprint_rows(rows, secret=SECRET, backend=backend), expected(rows))


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_of_16_mib(large, backend):
    need(backend)
    width = GIB // 64
    rows = large[3 : 3 + 3 * (width + 1)].view(3, width + 1)[:, 1:]
    assert_same(gpukey.fingerprint_rows(rows, secret=SECRET, backend=backend), expected(rows))


def test_many_rows():
    rows = make_rows("bfloat16", 300_000, 8)
    assert_same(gpukey.fingerprint_rows(rows, secret=SECRET), expected(rows))


@pytest.mark.parametrize("backend", [None, *BACKENDS])
def test_a_tensor_on_another_device_than_the_current_one(backend):
    """sglang PR#7137, pytorch#76586."""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    if backend is not None:
        need(backend)
    rows = make_rows("bfloat16", 33, 896, device="cuda:1")
    with torch.cuda.device(0):
        digests = gpukey.fingerprint_rows(
            rows, secret=gpukey.Secret(b"a secret for tests, long enough"), backend=backend
        )
        spans = gpukey.fingerprint_spans(rows, torch.tensor([0, 33], device="cuda:1"), secret=SECRET, backend=backend)
        handle = gpukey.fingerprint_rows_async(rows, secret=SECRET, backend=backend)
        assert torch.cuda.current_device() == 0
    assert digests.device == spans.device == rows.device
    assert_same(digests, expected(rows))
    assert_same(torch.from_numpy(handle.result()), expected(rows))


def test_other_devices_are_named():
    rows = make_rows("float32", 4, 8)
    with pytest.raises(ValueError, match="cu_seqlens is on cpu"):
        gpukey.fingerprint_spans(rows, torch.tensor([0, 4]), secret=SECRET)
    with pytest.raises((ValueError, RuntimeError), match="key"):
        torch.ops.gpukey.fingerprint_rows(rows, SECRET.row_key(torch.float32, 8), 16)
    with pytest.raises(ValueError, match="out is on cpu"):
        gpukey.fingerprint_rows(rows, secret=SECRET, out=torch.empty(4, 16, dtype=torch.uint8))


def test_work_on_a_cpu_starts_no_cuda(fresh_python):
    """pytorch PR#46572, vllm#12754."""
    code = """
import torch, gpukey, gpukey.ops
secret = gpukey.Secret.random()
gpukey.fingerprint_rows(torch.ones(2, 4), secret=secret)
gpukey.fingerprint_rows_async(torch.ones(2, 4), secret=secret).result()
gpukey.fingerprint_spans(torch.ones(2, 4), torch.tensor([0, 2]), secret=secret)
gpukey.backends.status()
assert not torch.cuda.is_initialized()
"""
    assert fresh_python(code) == ""
