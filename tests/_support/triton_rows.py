"""Rows as torch tensors over noisy memory, any dtype, stride and offset, for the Triton backend's tests."""

from __future__ import annotations

from types import ModuleType

import torch
import triton_aot

NOISE = 64


def backend() -> ModuleType:
    """gpukey.backends.triton, with its kernels importable from the source tree too."""
    triton_aot.kernels("plan")
    from gpukey.backends import triton

    return triton


def noise(size: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator)


def over(
    memory: torch.Tensor, num_rows: int, hidden: int, stride: int, offset: int, dtype: torch.dtype = torch.uint8
) -> torch.Tensor:
    """[num_rows, hidden] elements over uint8 `memory`, in place; stride and offset in elements."""
    usable = memory.numel() // dtype.itemsize * dtype.itemsize
    return memory[:usable].view(dtype).as_strided((num_rows, hidden), (stride, 1), offset)


def row_bytes(rows: torch.Tensor) -> list[bytes]:
    """The raw bytes of each row."""
    raw = (
        rows.as_strided(rows.shape, rows.stride()).view(torch.uint8)
        if rows.dtype.itemsize > 1
        else rows.view(torch.uint8)
    )
    return [bytes(row.numpy()) for row in raw]


def spread(num_rows: int, hidden: int, stride: int, dtype: torch.dtype) -> int:
    """Bytes from the first row's first to the last row's last."""
    return ((num_rows - 1) * stride + hidden) * dtype.itemsize if num_rows else 0
