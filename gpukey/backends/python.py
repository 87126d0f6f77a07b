"""The backend that always works: the blake3 package, one call a row, rows read in place through the buffer protocol."""

from __future__ import annotations

import ctypes
from itertools import pairwise

import torch
from blake3 import blake3

from gpukey.checks import as_bits, check_cu_seqlens

NAME = "python"
DEVICE_TYPE = "cpu"

_PYBUF_READ = 0x100
_memory_view = ctypes.pythonapi.PyMemoryView_FromMemory
_memory_view.restype = ctypes.py_object
_memory_view.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)


def unavailable() -> str | None:
    """Always None."""
    return None


def fingerprint_rows(
    rows: torch.Tensor, key: torch.Tensor, digest_size: int, out: torch.Tensor | None = None
) -> torch.Tensor:
    """[num_rows, hidden] on the CPU -> uint8 [num_rows, digest_size]."""
    num_rows, hidden = rows.shape
    width, step = hidden * rows.element_size(), rows.stride(0) * rows.element_size()
    key_bytes, digests = key.numpy().tobytes(), []
    if num_rows:
        memory = _memory_view(rows.data_ptr(), (num_rows - 1) * step + width, _PYBUF_READ)
        starts = range(0, num_rows * step, step) if step else [0] * num_rows
        digests = [blake3(memory[i : i + width], key=key_bytes).digest(digest_size) for i in starts]
    return _tensor(digests, digest_size, out)


def fold_spans(
    rows: torch.Tensor, cu_seqlens: torch.Tensor, key: torch.Tensor, digest_size: int, out: torch.Tensor | None = None
) -> torch.Tensor:
    """uint8 [num_rows, digest_size] and [num_spans + 1] on the CPU -> uint8 [num_spans, digest_size]; ValueError for a
    wrong `cu_seqlens`."""
    bounds = check_cu_seqlens(cu_seqlens, rows.shape[0])
    data, key_bytes = memoryview(rows.contiguous().numpy().tobytes()), key.numpy().tobytes()
    digests = [
        blake3(data[begin * digest_size : end * digest_size], key=key_bytes).digest(digest_size)
        for begin, end in pairwise(bounds)
    ]
    return _tensor(digests, digest_size, out)


def stage_rows(
    rows: torch.Tensor, staged: torch.Tensor, key: torch.Tensor, digest_size: int, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Copies rows into `staged` and fingerprints what it wrote there."""
    as_bits(staged).copy_(as_bits(rows))
    return fingerprint_rows(staged, key, digest_size, out)


def _tensor(digests: list[bytes], digest_size: int, out: torch.Tensor | None) -> torch.Tensor:
    if not digests:
        return torch.empty((0, digest_size), dtype=torch.uint8, device="cpu") if out is None else out
    result = torch.frombuffer(bytearray(b"".join(digests)), dtype=torch.uint8).view(len(digests), digest_size)
    return result if out is None else out.copy_(result)
