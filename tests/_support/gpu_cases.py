"""What the GPU tests share. GPUKEY_TEST_DEVICE=cpu rehearses those that need no stream on a machine without a GPU."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

import gpukey
from gpukey import backends

DEVICE = os.environ.get("GPUKEY_TEST_DEVICE", "cuda")
BACKENDS = ("cuda", "nvrtc", "triton") if DEVICE == "cuda" else ("cpu", "python")
SECRET = gpukey.Secret(b"a secret for tests, long enough")
LONG = 200_000_000
"""Clock cycles of torch.cuda._sleep: about a tenth of a second."""


def need(backend: str) -> None:
    """Skips the test, with the reason, where the backend does not work on this machine."""
    reason = backends.missing(backend)
    if reason is not None:
        pytest.skip(f"backend {backend!r}: {reason}")


def make_rows(dtype, num_rows, hidden, *, offset=0, gap=0, seed=0, device=DEVICE):
    """[num_rows, hidden] of random bits that begins `offset` elements into its storage, `gap` elements between rows."""
    dtype, stride = getattr(torch, dtype), hidden + gap
    num_bytes = (1 + offset + num_rows * stride) * dtype.itemsize
    raw = torch.from_numpy(np.random.default_rng(seed).integers(0, 256, num_bytes, dtype=np.uint8)).to(device)
    return raw.view(dtype).as_strided((num_rows, hidden), (stride, 1), offset)


def on_host(rows):
    """The same bits on the CPU, contiguous."""
    size = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}[rows.element_size()]
    return rows.view(size).contiguous().cpu().view(rows.dtype)


def expected(rows, digest_size=16):
    """Fingerprints by the Python backend on a CPU copy."""
    return gpukey.fingerprint_rows(on_host(rows), secret=SECRET, digest_size=digest_size, backend="python")


def assert_same(digests, want):
    """Bit-equal, or the first wrong row is named."""
    digests = digests.cpu()
    assert digests.shape == want.shape
    wrong = (digests != want).any(1).nonzero()
    assert not len(wrong), (
        f"row {int(wrong[0])} of {len(want)}: {bytes(digests[wrong[0]]).hex()} != {bytes(want[wrong[0]]).hex()}"
    )
