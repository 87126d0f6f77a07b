"""The CUDA backend compiled by nvcc (csrc/fingerprint.cu): one launch on the tensor's device and its current stream."""

from __future__ import annotations

import torch

from gpukey.backends import library

NAME = "cuda"
DEVICE_TYPE = "cuda"

_half = library.Half(NAME)

fingerprint_rows = _half.fingerprint_rows
fold_spans = _half.fold_spans
stage_rows = _half.stage_rows
register = _half.register


def unavailable() -> str | None:
    """None when torch has CUDA, a device is there and the library loads, else why not. Starts no CUDA context."""
    if torch.version.cuda is None:
        return "this torch is built without CUDA"
    if not torch.cuda.is_available():
        return "torch sees no CUDA device"
    return library.load("_cuda")[1]
