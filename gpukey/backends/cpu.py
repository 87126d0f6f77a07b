"""The compiled CPU backend: a row in each lane of the vector registers, rows split among torch's threads.

GPUKEY_CPU_ISA=avx512|avx2|baseline chooses less than this CPU has, for tests and figures.
"""

from __future__ import annotations

import ctypes
from typing import Any, cast

import torch

from gpukey.backends import library

NAME = "cpu"
DEVICE_TYPE = "cpu"

_FRAGMENT = torch.library.Library("gpukey", "FRAGMENT")  # type: ignore[no-untyped-call]


def unavailable() -> str | None:
    """None when the library is there and loads, else why not."""
    return library.load("_cpu")[1]


def fingerprint_rows(
    rows: torch.Tensor, key: torch.Tensor, digest_size: int, out: torch.Tensor | None = None
) -> torch.Tensor:
    """[num_rows, hidden] on the CPU -> uint8 [num_rows, digest_size]."""
    if out is None:
        return cast(torch.Tensor, _ops().fingerprint_rows.default(rows, key, digest_size))
    _ops().fingerprint_rows.out(rows, key, digest_size, out=out)
    return out


def fold_spans(
    rows: torch.Tensor, cu_seqlens: torch.Tensor, key: torch.Tensor, digest_size: int, out: torch.Tensor | None = None
) -> torch.Tensor:
    """uint8 [num_rows, digest_size] and [num_spans + 1] on the CPU -> uint8 [num_spans, digest_size]; ValueError for a
    wrong `cu_seqlens`."""
    if out is None:
        return cast(torch.Tensor, _ops().fold_spans.default(rows, cu_seqlens, key, digest_size))
    _ops().fold_spans.out(rows, cu_seqlens, key, digest_size, out=out)
    return out


def stage_rows(
    rows: torch.Tensor, staged: torch.Tensor, key: torch.Tensor, digest_size: int, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Copies rows into `staged` and fingerprints what it wrote there, a tile of rows at a time."""
    if out is None:
        return cast(torch.Tensor, _ops().stage_rows.default(rows, staged, key, digest_size))
    _ops().stage_rows.out(rows, staged, key, digest_size, digests=out)
    return out


def register() -> None:
    """Makes these kernels the CPU implementations of the `gpukey` ops, and adds `gpukey::block_keys`."""
    compiled = _library()
    _FRAGMENT.define("block_keys(Tensor token_ids, Tensor parent, Tensor key, int block_size) -> Tensor")  # type: ignore[no-untyped-call]
    torch.library.register_fake("gpukey::block_keys", _fake_block_keys, lib=_FRAGMENT)
    if compiled.gpukey_cpu_register() != 0 or compiled.gpukey_cpu_register_block_keys() != 0:
        raise RuntimeError("gpukey's compiled CPU kernels were refused by torch's dispatcher")


def instruction_set() -> str:
    """What the kernels run on: "avx512", "avx2" or "baseline"."""
    function = _library().gpukey_cpu_instruction_set
    function.restype = ctypes.c_char_p
    return cast(bytes, function()).decode()


def _library() -> ctypes.CDLL:
    loaded, reason = library.load("_cpu")
    if loaded is None:
        raise RuntimeError(f"backend 'cpu' does not work here: {reason}")
    return loaded


def _ops() -> Any:
    _library()
    return torch.ops.gpukey_cpu


def _fake_block_keys(token_ids: torch.Tensor, parent: torch.Tensor, key: torch.Tensor, block_size: int) -> torch.Tensor:
    return torch.empty((token_ids.shape[0] // block_size, 32), dtype=torch.uint8, device=token_ids.device)
