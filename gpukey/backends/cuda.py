"""The CUDA backend compiled by nvcc (csrc/fingerprint.cu): one launch on the tensor's device and its current stream."""

from __future__ import annotations

import ctypes
from typing import Any, cast

import torch

from gpukey.backends import library

NAME = "cuda"
DEVICE_TYPE = "cuda"


def unavailable() -> str | None:
    """None when torch has CUDA, a device is there and the library loads, else why not. Starts no CUDA context."""
    if torch.version.cuda is None:
        return "this torch is built without CUDA"
    if not torch.cuda.is_available():
        return "torch sees no CUDA device"
    return library.load("_cuda")[1]


def fingerprint_rows(
    rows: torch.Tensor, key: torch.Tensor, digest_size: int, out: torch.Tensor | None = None
) -> torch.Tensor:
    """[num_rows, hidden] on a CUDA device -> uint8 [num_rows, digest_size]."""
    if out is None:
        return cast(torch.Tensor, _ops().fingerprint_rows.default(rows, key, digest_size))
    _ops().fingerprint_rows.out(rows, key, digest_size, out=out)
    return out


def fold_spans(
    rows: torch.Tensor, cu_seqlens: torch.Tensor, key: torch.Tensor, digest_size: int, out: torch.Tensor | None = None
) -> torch.Tensor:
    """uint8 [num_rows, digest_size] and [num_spans + 1] on the device -> uint8 [num_spans, digest_size]; bounds are
    clamped there."""
    if out is None:
        return cast(torch.Tensor, _ops().fold_spans.default(rows, cu_seqlens, key, digest_size))
    _ops().fold_spans.out(rows, cu_seqlens, key, digest_size, out=out)
    return out


def stage_rows(
    rows: torch.Tensor, staged: torch.Tensor, key: torch.Tensor, digest_size: int, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Copies rows into `staged` and fingerprints what it wrote there, in one pass."""
    if out is None:
        return cast(torch.Tensor, _ops().stage_rows.default(rows, staged, key, digest_size))
    _ops().stage_rows.out(rows, staged, key, digest_size, digests=out)
    return out


def register() -> None:
    """Makes these kernels the CUDA implementations of the `gpukey` ops."""
    if _library().gpukey_cuda_register() != 0:
        raise RuntimeError("gpukey's compiled CUDA kernels were refused by torch's dispatcher")


def _library() -> ctypes.CDLL:
    loaded, reason = library.load("_cuda")
    if loaded is None:
        raise RuntimeError(f"backend 'cuda' does not work here: {reason}")
    return loaded


def _ops() -> Any:
    _library()
    return torch.ops.gpukey_cuda
