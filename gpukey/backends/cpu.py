"""The compiled CPU backend: a row in each lane of the vector registers, rows split among torch's threads.

GPUKEY_CPU_ISA=avx512|avx2|baseline chooses less than this CPU has, for tests and figures.
"""

from __future__ import annotations

import ctypes
from typing import cast

import torch

from gpukey.backends import library

NAME = "cpu"
DEVICE_TYPE = "cpu"

_half = library.Half(NAME)
_fragment = torch.library.Library("gpukey", "FRAGMENT")  # type: ignore[no-untyped-call]

fingerprint_rows = _half.fingerprint_rows
fold_spans = _half.fold_spans
stage_rows = _half.stage_rows


def unavailable() -> str | None:
    """None when the library is there and loads, else why not."""
    return library.load("_cpu")[1]


def register() -> None:
    """Makes these kernels the CPU implementations of the `gpukey` ops, and adds `gpukey::block_keys`."""
    _half.register()
    _fragment.define("block_keys(Tensor token_ids, Tensor parent, Tensor key, int block_size) -> Tensor")  # type: ignore[no-untyped-call]
    torch.library.register_fake("gpukey::block_keys", _fake_block_keys, lib=_fragment)
    if _half.library.gpukey_cpu_register_block_keys() != 0:
        raise RuntimeError("torch's dispatcher refused gpukey::block_keys")


def instruction_set() -> str:
    """What the kernels run on: "avx512", "avx2" or "baseline"."""
    function = _half.library.gpukey_cpu_instruction_set
    function.restype = ctypes.c_char_p
    return cast(bytes, function()).decode()


def _fake_block_keys(token_ids: torch.Tensor, parent: torch.Tensor, key: torch.Tensor, block_size: int) -> torch.Tensor:
    return torch.empty((token_ids.shape[0] // block_size, 32), dtype=torch.uint8, device=token_ids.device)
