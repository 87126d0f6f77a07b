"""The compiled halves of gpukey as shared libraries (setup.py builds them): where they are, and why one is not there."""

from __future__ import annotations

import ctypes
import functools
import json
from pathlib import Path

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
