"""The torch ops: schemas, fakes, and one implementation a device. Importing starts no CUDA context and prints nothing.

    gpukey::fingerprint_rows(Tensor rows, Tensor key, int digest_size) -> Tensor           [num_rows, hidden] -> uint8
    [num_rows, digest_size] gpukey::fold_spans(Tensor rows, Tensor cu_seqlens, Tensor key, int digest_size) -> Tensor
    -> uint8 [num_spans, digest_size] gpukey::stage_rows(Tensor rows, Tensor(a!) out, Tensor key, int digest_size) ->
    Tensor     copies rows to out, fingerprints what it wrote

`key` is uint8 [32] on the rows' device: `secret.row_key(...)`, `secret.span_key(...)`. Each has an `.out` overload.
Implementations are those of the backend that `gpukey.backends.choose` names for the device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from gpukey import backends
from gpukey.backends import library
from gpukey.checks import (
    check_apart,
    check_bounds,
    check_digest_size,
    check_fingerprints,
    check_key,
    check_out,
    check_rows,
    check_staged,
    readable,
)

# torch.library.custom_op would cost ten microseconds more a call. Kept at module level: the ops live as long as it
# does.
LIBRARY = torch.library.Library("gpukey", "DEF")  # type: ignore[no-untyped-call]
Provider = Callable[[], backends.Backend]


# --- checks and output shapes, shared by fakes and implementations --------------------------------------------------


def _rows(rows: torch.Tensor, key: torch.Tensor, digest_size: int) -> torch.Tensor:
    check_digest_size(digest_size)
    check_key(key, check_rows(rows).device)
    return readable(rows)


def _fold(rows: torch.Tensor, cu_seqlens: torch.Tensor, key: torch.Tensor, digest_size: int) -> None:
    check_digest_size(digest_size)
    check_fingerprints(rows, digest_size)
    check_bounds(cu_seqlens, rows.device)
    check_key(key, rows.device)


def _stage(rows: torch.Tensor, out: torch.Tensor, key: torch.Tensor, digest_size: int) -> torch.Tensor:
    source = _rows(rows, key, digest_size)
    check_staged(rows, out)
    check_apart("out", out, key=key)
    # Rows staged where they stand are read and written by the same lane.
    if rows.data_ptr() != out.data_ptr() or (rows.shape[0] > 1 and rows.stride(0) != out.stride(0)):
        check_apart("out", out, rows=rows)
    return source


def _digests(like: torch.Tensor, count: int, digest_size: int) -> torch.Tensor:
    return torch.empty((count, digest_size), dtype=torch.uint8, device=like.device)


# --- fakes ------------------------------------------------------------------------------------------------------------


def _fake_rows(rows: torch.Tensor, key: torch.Tensor, digest_size: int) -> torch.Tensor:
    _rows(rows, key, digest_size)
    return _digests(rows, rows.shape[0], digest_size)


def _fake_rows_out(rows: torch.Tensor, key: torch.Tensor, digest_size: int, *, out: torch.Tensor) -> None:
    _rows(rows, key, digest_size)
    check_out(out, rows.shape[0], digest_size, rows.device)


def _fake_fold(rows: torch.Tensor, cu_seqlens: torch.Tensor, key: torch.Tensor, digest_size: int) -> torch.Tensor:
    _fold(rows, cu_seqlens, key, digest_size)
    return _digests(rows, cu_seqlens.shape[0] - 1, digest_size)


def _fake_fold_out(
    rows: torch.Tensor, cu_seqlens: torch.Tensor, key: torch.Tensor, digest_size: int, *, out: torch.Tensor
) -> None:
    _fold(rows, cu_seqlens, key, digest_size)
    check_out(out, cu_seqlens.shape[0] - 1, digest_size, rows.device)


def _fake_stage(rows: torch.Tensor, out: torch.Tensor, key: torch.Tensor, digest_size: int) -> torch.Tensor:
    check_staged(rows, out)
    return _fake_rows(rows, key, digest_size)


def _fake_stage_out(
    rows: torch.Tensor, out: torch.Tensor, key: torch.Tensor, digest_size: int, *, digests: torch.Tensor
) -> None:
    check_staged(rows, out)
    _rows(rows, key, digest_size)
    check_out(digests, rows.shape[0], digest_size, rows.device, "digests")


# --- implementations over a backend's three functions -----------------------------------------------------------------


def _implementations(provider: Provider) -> dict[str, Callable[..., Any]]:
    def rows(rows: torch.Tensor, key: torch.Tensor, digest_size: int) -> torch.Tensor:
        rows = _rows(rows, key, digest_size)
        return provider().fingerprint_rows(rows, key, digest_size)

    def rows_out(rows: torch.Tensor, key: torch.Tensor, digest_size: int, *, out: torch.Tensor) -> None:
        source = _rows(rows, key, digest_size)
        check_out(out, rows.shape[0], digest_size, rows.device)
        check_apart("out", out, rows=rows, key=key)
        provider().fingerprint_rows(source, key, digest_size, out)

    def fold(rows: torch.Tensor, cu_seqlens: torch.Tensor, key: torch.Tensor, digest_size: int) -> torch.Tensor:
        _fold(rows, cu_seqlens, key, digest_size)
        return provider().fold_spans(rows.contiguous(), cu_seqlens.contiguous(), key, digest_size)

    def fold_out(
        rows: torch.Tensor, cu_seqlens: torch.Tensor, key: torch.Tensor, digest_size: int, *, out: torch.Tensor
    ) -> None:
        _fold(rows, cu_seqlens, key, digest_size)
        check_out(out, cu_seqlens.shape[0] - 1, digest_size, rows.device)
        check_apart("out", out, rows=rows, cu_seqlens=cu_seqlens, key=key)
        provider().fold_spans(rows.contiguous(), cu_seqlens.contiguous(), key, digest_size, out)

    def stage(rows: torch.Tensor, out: torch.Tensor, key: torch.Tensor, digest_size: int) -> torch.Tensor:
        source = _stage(rows, out, key, digest_size)
        return provider().stage_rows(source, out, key, digest_size)

    def stage_out(
        rows: torch.Tensor, out: torch.Tensor, key: torch.Tensor, digest_size: int, *, digests: torch.Tensor
    ) -> None:
        source = _stage(rows, out, key, digest_size)
        check_out(digests, rows.shape[0], digest_size, rows.device, "digests")
        check_apart("digests", digests, rows=rows, out=out, key=key)
        provider().stage_rows(source, out, key, digest_size, digests)

    return {
        "fingerprint_rows": rows,
        "fingerprint_rows.out": rows_out,
        "fold_spans": fold,
        "fold_spans.out": fold_out,
        "stage_rows": stage,
        "stage_rows.out": stage_out,
    }


_OPS: dict[str, tuple[str, Callable[..., Any]]] = {
    "fingerprint_rows": ("(Tensor rows, Tensor key, int digest_size) -> Tensor", _fake_rows),
    "fingerprint_rows.out": ("(Tensor rows, Tensor key, int digest_size, *, Tensor(a!) out) -> ()", _fake_rows_out),
    "fold_spans": ("(Tensor rows, Tensor cu_seqlens, Tensor key, int digest_size) -> Tensor", _fake_fold),
    "fold_spans.out": (
        "(Tensor rows, Tensor cu_seqlens, Tensor key, int digest_size, *, Tensor(a!) out) -> ()",
        _fake_fold_out,
    ),
    "stage_rows": ("(Tensor rows, Tensor(a!) out, Tensor key, int digest_size) -> Tensor", _fake_stage),
    "stage_rows.out": (
        "(Tensor rows, Tensor(a!) out, Tensor key, int digest_size, *, Tensor(b!) digests) -> ()",
        _fake_stage_out,
    ),
}


def _register(device_type: str) -> None:
    """The backend that `choose` names as the one implementation for `device_type`."""
    best = backends.ORDER[device_type][0]
    if backends.forced() in (None, best) and _compiled(best):
        register: Callable[[], None] = backends.load(best).register  # type: ignore[attr-defined]
        register()
        return
    # The first call chooses: NVRTC and Triton are not imported before a tensor needs them, and a forced backend that
    # cannot serve is an error of the call, with the device in it.
    provider = functools.cache(functools.partial(backends.choose, device_type))
    for name, function in _implementations(provider).items():
        LIBRARY.impl(name, function, device_type.upper())  # type: ignore[no-untyped-call]


def _compiled(name: str) -> bool:
    # unavailable() of the CUDA half asks torch for a device, and whoever does that may not use CUDA in a fork.
    if name == "cuda":
        return torch.version.cuda is not None and library.load("_cuda")[1] is None
    return backends.missing(name) is None


for _name, (_schema, _fake) in _OPS.items():
    LIBRARY.define(_name + _schema)  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"gpukey::{_name}", _fake, lib=LIBRARY)
backends.forced()  # An unknown name is an error at once.
for _device_type in backends.ORDER:
    _register(_device_type)
