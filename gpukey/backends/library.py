"""The compiled halves of gpukey as shared libraries (setup.py builds them): where they are, why one is not there, and a
backend's three functions over one's ops."""

from __future__ import annotations

import ctypes
import functools
import json
from pathlib import Path
from typing import Any, cast

import torch

_PACKAGE = Path(__file__).parents[1]


@functools.cache
def load(half: str) -> tuple[ctypes.CDLL | None, str | None]:
    """(the library of "_cpu" or "_cuda", None) with its torch ops registered, or (None, the reason in one line)."""
    path = _PACKAGE / f"{half}.abi3.so"
    if not path.exists():
        return None, _build_reason(half)
    try:
        torch.ops.load_library(str(path))  # type: ignore[no-untyped-call]
        return ctypes.CDLL(str(path)), None
    except (OSError, RuntimeError) as error:
        return None, f"{path.name} does not load with torch {torch.__version__}: {' '.join(str(error).split())}"


def _build_reason(half: str) -> str:
    try:
        report = json.loads((_PACKAGE / "_build_report.json").read_text())
        return f"not built: {report[half]['reason']}"
    except (OSError, ValueError, KeyError):
        return "not built (pip install --no-build-isolation builds it)"


class Half:
    """The backend functions of one library, whose ops are in a namespace of its own: "cpu" is _cpu and gpukey_cpu."""

    def __init__(self, name: str) -> None:
        self.name = name

    @functools.cached_property
    def library(self) -> ctypes.CDLL:
        """The loaded library; RuntimeError when it is not there."""
        loaded, reason = load(f"_{self.name}")
        if loaded is None:
            raise RuntimeError(f"backend {self.name!r} does not work here: {reason}")
        return loaded

    @functools.cached_property
    def ops(self) -> Any:
        """Its torch ops."""
        assert self.library
        return getattr(torch.ops, f"gpukey_{self.name}")

    def fingerprint_rows(
        self, rows: torch.Tensor, key: torch.Tensor, digest_size: int, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """[num_rows, hidden] -> uint8 [num_rows, digest_size]."""
        if out is None:
            return cast(torch.Tensor, self.ops.fingerprint_rows.default(rows, key, digest_size))
        self.ops.fingerprint_rows.out(rows, key, digest_size, out=out)
        return out

    def fold_spans(
        self,
        rows: torch.Tensor,
        cu_seqlens: torch.Tensor,
        key: torch.Tensor,
        digest_size: int,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """uint8 [num_rows, digest_size] and [num_spans + 1] -> uint8 [num_spans, digest_size]. A wrong `cu_seqlens` is a
        ValueError on a CPU and clamped on a device."""
        if out is None:
            return cast(torch.Tensor, self.ops.fold_spans.default(rows, cu_seqlens, key, digest_size))
        self.ops.fold_spans.out(rows, cu_seqlens, key, digest_size, out=out)
        return out

    def stage_rows(
        self,
        rows: torch.Tensor,
        staged: torch.Tensor,
        key: torch.Tensor,
        digest_size: int,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Copies rows into `staged` and fingerprints what it wrote there, in one pass."""
        if out is None:
            return cast(torch.Tensor, self.ops.stage_rows.default(rows, staged, key, digest_size))
        self.ops.stage_rows.out(rows, staged, key, digest_size, digests=out)
        return out

    def register(self) -> None:
        """Makes the library's kernels the implementations of the `gpukey` ops on its device."""
        if getattr(self.library, f"gpukey_{self.name}_register")() != 0:
            raise RuntimeError(f"torch's dispatcher refused the kernels of gpukey's backend {self.name!r}")
