"""Which code computes a digest: one module a backend, the same three functions each, the same bytes from all.

A backend's functions take arguments that are already checked (gpukey/checks.py): rows in any strided dtype with a
contiguous last dimension and any row stride; a key of 32 bytes on the rows' device. `out` is written and returned when
given. A compiled backend may also have `register()`: it registers its own kernels for the `gpukey` ops, so that no
Python stands between the dispatcher and the kernel; those check for themselves.
"""

from __future__ import annotations

import importlib
import os
from typing import Any, Protocol, cast

import torch

ORDER = {"cpu": ("cpu", "python"), "cuda": ("cuda", "nvrtc", "triton")}
"""Backends of a device type, best first."""
NAMES = ("python", "cpu", "cuda", "nvrtc", "triton")


class Backend(Protocol):
    """What gpukey/backends/*.py have in common."""

    NAME: str
    DEVICE_TYPE: str

    def unavailable(self) -> str | None:
        """None where it works, else the reason in one line. Never raises and never starts CUDA."""

    def fingerprint_rows(
        self, rows: torch.Tensor, key: torch.Tensor, digest_size: int, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """[num_rows, hidden] -> uint8 [num_rows, digest_size]."""

    def fold_spans(
        self,
        rows: torch.Tensor,
        cu_seqlens: torch.Tensor,
        key: torch.Tensor,
        digest_size: int,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Fingerprints uint8 [num_rows, digest_size] and int32 or int64 [num_spans + 1] -> uint8 [num_spans,
        digest_size]."""

    def stage_rows(
        self,
        rows: torch.Tensor,
        staged: torch.Tensor,
        key: torch.Tensor,
        digest_size: int,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Copies rows into `staged` (same dtype and shape, own row stride) and fingerprints the bytes that it wrote."""


def forced() -> str | None:
    """The backend that GPUKEY_BACKEND names; ValueError when there is none of that name."""
    name = os.environ.get("GPUKEY_BACKEND") or None
    if name is not None and name not in NAMES:
        raise ValueError(f"GPUKEY_BACKEND is {name!r}; one of {', '.join(NAMES)} is needed")
    return name


def status() -> dict[str, str | None]:
    """For each backend None where it works on this machine, else why not, in one line."""
    return {name: missing(name) for name in NAMES}


def named(name: str, device_type: str) -> Backend:
    """The backend `name` for tensors on `device_type`; ValueError or RuntimeError when it cannot serve them."""
    if name not in NAMES:
        raise ValueError(f"backend is {name!r}; one of {', '.join(NAMES)} is needed")
    reason = missing(name)
    if reason is not None:
        raise RuntimeError(f"backend {name!r} does not work here: {reason}")
    backend = load(name)
    if not _serves(backend, device_type):
        raise ValueError(f"backend {name!r} takes {backend.DEVICE_TYPE} tensors; rows is on {device_type}")
    return backend


def choose(device_type: str) -> Backend:
    """The forced backend, or the best one that works for `device_type`; RuntimeError when none does, with every
    reason."""
    if device_type not in ORDER:
        raise RuntimeError(f"rows is on {device_type}; gpukey has backends for {' and '.join(ORDER)}")
    name = forced()
    if name is not None:
        try:
            return named(name, device_type)
        except (RuntimeError, ValueError) as error:
            raise RuntimeError(f"GPUKEY_BACKEND={name}: {error}") from error
    reasons = []
    for name in ORDER[device_type]:
        reason = missing(name)
        if reason is None:
            return load(name)
        reasons.append(f"{name}: {reason}")
    raise RuntimeError(f"no backend works for {device_type} tensors ({'; '.join(reasons)})")


def load(name: str) -> Backend:
    """The module of a backend, which may not work here; ImportError when it cannot be imported."""
    return cast(Backend, importlib.import_module(f"{__name__}.{name}"))


def missing(name: str) -> str | None:
    """None where the backend works, else why not, in one line."""
    try:
        return load(name).unavailable()
    except ImportError as error:
        return f"cannot be imported ({error})"


def _serves(backend: Any, device_type: str) -> bool:
    # Triton's interpreter runs kernels on CPU tensors.
    interpreted = backend.NAME == "triton" and os.environ.get("TRITON_INTERPRET") == "1"
    return device_type == backend.DEVICE_TYPE or (interpreted and device_type == "cpu")
