"""The Triton backend: the kernels of triton_kernels/, compiled at the first call of each shape class.

On NVIDIA and AMD GPUs; under TRITON_INTERPRET=1 on CPU tensors, to test. Compiling loads a module, which a stream does
not allow while it is captured: run a step once before a CUDA graph is captured, as frameworks do anyway.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
from typing import Any

import torch

NAME = "triton"
DEVICE_TYPE = "cuda"


def unavailable() -> str | None:
    """None where triton and its kernels are installed and torch sees a GPU (or TRITON_INTERPRET=1), else why not."""
    for name in ("triton", "gpukey.triton_kernels"):
        if importlib.util.find_spec(name) is None:
            return f"{name} is not installed"
    if os.environ.get("TRITON_INTERPRET") == "1" or torch.cuda.is_available():
        return None
    return "torch sees no GPU"


@functools.cache
def _launch() -> Any:
    return importlib.import_module("gpukey.triton_kernels.launch")


def fingerprint_rows(
    rows: torch.Tensor, key: torch.Tensor, digest_size: int, out: torch.Tensor | None = None
) -> torch.Tensor:
    """[num_rows, hidden] -> uint8 [num_rows, digest_size]. ValueError for rows of 2 GiB and more."""
    _launch().hash_rows(rows, None, key, out := _out(rows.shape[0], digest_size, key, out))
    return out


def fold_spans(
    rows: torch.Tensor, cu_seqlens: torch.Tensor, key: torch.Tensor, digest_size: int, out: torch.Tensor | None = None
) -> torch.Tensor:
    """uint8 [num_rows, digest_size] and [num_spans + 1] on the same device -> uint8 [num_spans, digest_size]; bounds are
    clamped there."""
    _launch().fold_spans(rows, cu_seqlens, key, out := _out(cu_seqlens.shape[0] - 1, digest_size, key, out))
    return out


def stage_rows(
    rows: torch.Tensor, staged: torch.Tensor, key: torch.Tensor, digest_size: int, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Copies rows into `staged` and fingerprints the words that it wrote, in one pass."""
    _launch().hash_rows(rows, staged, key, out := _out(rows.shape[0], digest_size, key, out))
    return out


def _out(count: int, digest_size: int, key: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    return key.new_empty((count, digest_size)) if out is None else out
