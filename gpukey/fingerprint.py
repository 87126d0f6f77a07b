"""The public calls: rows to fingerprints, spans to fingerprints, and fingerprints that come home by themselves.

`rows` is [num_rows, hidden], exactly 2-D, of any strided dtype, on a CPU or an NVIDIA GPU: a torch tensor, or an array
with `__dlpack__` or `__cuda_array_interface__` (CuPy, numpy). Rows whose last dimension is contiguous are read in
place, with any row stride and alignment; anything else is copied first, and so are lazy conj and neg views. A device
tensor is never waited for: results are ordered on the current stream of its device.

Keywords of every call: `secret` (default: this process' own), `digest_size` 16 or 32 bytes, `out` (contiguous uint8 of
the result's shape, filled and returned), `backend` (calls one directly), `after` (the torch.cuda.Event or Stream that
the producer of the input recorded on, if it is not the current stream). Wrong arguments are TypeError or ValueError; a
backend that does not work here is RuntimeError.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

import gpukey.ops  # noqa: F401  registers the ops
from gpukey import backends, streams
from gpukey.checks import check_apart, check_bounds, check_digest_size, check_out, readable
from gpukey.device_keys import CONSTANTS, constant_name, default_key_id, device_key
from gpukey.handle import FingerprintHandle, refuse_capture, send_home
from gpukey.intake import take_rows
from gpukey.secret import Secret, default_secret

if TYPE_CHECKING:
    from gpukey.streams import After

# The default overloads, looked up once: an attribute of torch.ops costs as much as a check.
_Op = Callable[..., torch.Tensor]
_fingerprint_rows: _Op = torch.ops.gpukey.fingerprint_rows.default
_fold_spans: _Op = torch.ops.gpukey.fold_spans.default

__all__ = ["FingerprintHandle", "fingerprint_rows", "fingerprint_rows_async", "fingerprint_spans"]


def fingerprint_rows(
    rows: Any,
    *,
    secret: Secret | None = None,
    digest_size: int = 16,
    out: torch.Tensor | None = None,
    backend: str | None = None,
    after: After | None = None,
) -> torch.Tensor:
    """Fingerprints of [num_rows, hidden]: uint8 [num_rows, digest_size] on the rows' device, without a synchronisation.

    Equivalent to `B3K(Kr, raw bytes of the row)[:digest_size]` for each row (docs/spec.md, "row fingerprint").
    """
    tensor = _take(rows, digest_size, after)
    result = _hash_rows(tensor, secret, digest_size, out, backend)
    _hold(rows, tensor)
    return result


def fingerprint_spans(
    rows: Any,
    cu_seqlens: torch.Tensor,
    *,
    secret: Secret | None = None,
    digest_size: int = 16,
    out: torch.Tensor | None = None,
    backend: str | None = None,
    after: After | None = None,
) -> torch.Tensor:
    """One fingerprint a span of rows: uint8 [num_spans, digest_size] on the rows' device, without a synchronisation.

    `cu_seqlens` is int32 or int64 [num_spans + 1] on the rows' device: first 0, non-decreasing, last num_rows. On a CPU
    that is checked; on a device each bound is clamped to [0, num_rows] and a falling pair is an empty span. Equivalent
    to `B3K(Ks, row fingerprints in order)[:digest_size]`.
    """
    tensor = _take(rows, digest_size, after)
    check_bounds(cu_seqlens, tensor.device)
    if out is not None:
        check_out(out, cu_seqlens.shape[0] - 1, digest_size, tensor.device)
        check_apart("out", out, rows=tensor, cu_seqlens=cu_seqlens)
    if after is not None:
        streams.borrow(cu_seqlens)
    fingerprints = _hash_rows(tensor, secret, digest_size, None, backend)
    _hold(rows, tensor)
    key = _key("span", secret, tensor, digest_size)
    if backend is not None:
        return _named(backend, tensor).fold_spans(fingerprints, cu_seqlens.contiguous(), key, digest_size, out)
    if out is not None:
        torch.ops.gpukey.fold_spans.out(fingerprints, cu_seqlens, key, digest_size, out=out)
        return out
    return _fold_spans(fingerprints, cu_seqlens, key, digest_size)


def fingerprint_rows_async(
    rows: Any,
    *,
    secret: Secret | None = None,
    digest_size: int = 16,
    out: torch.Tensor | None = None,
    backend: str | None = None,
    after: After | None = None,
) -> FingerprintHandle:
    """Fingerprints of [num_rows, hidden] on their way home: a handle with ready() and result() -> numpy uint8
    [num_rows, digest_size].

    The copy runs on a side stream; `out` is where the fingerprints stand on the device. On a CPU they are computed at
    once. RuntimeError during graph capture, where nothing can come home.
    """
    refuse_capture()
    return send_home(
        fingerprint_rows(rows, secret=secret, digest_size=digest_size, out=out, backend=backend, after=after)
    )


def _take(rows: Any, digest_size: int, after: After | None) -> torch.Tensor:
    check_digest_size(digest_size)
    tensor = take_rows(rows)
    # Before the copies of readable(), which read the rows.
    if after is not None:
        streams.wait_for(after, tensor)
    return readable(tensor)


def _hash_rows(
    rows: torch.Tensor, secret: Secret | None, digest_size: int, out: torch.Tensor | None, backend: str | None
) -> torch.Tensor:
    key = _key("row", secret, rows, digest_size)
    if out is not None:
        check_out(out, rows.shape[0], digest_size, rows.device)
        check_apart("out", out, rows=rows, key=key)
    if backend is not None:
        return _named(backend, rows).fingerprint_rows(rows, key, digest_size, out)
    if out is not None:
        torch.ops.gpukey.fingerprint_rows.out(rows, key, digest_size, out=out)
        return out
    return _fingerprint_rows(rows, key, digest_size)


def _key(label: str, secret: Secret | None, rows: torch.Tensor, digest_size: int) -> torch.Tensor:
    if secret is not None and not isinstance(secret, Secret):
        raise TypeError(f"secret is a {type(secret).__name__}; a gpukey.Secret is needed")
    if torch.compiler.is_compiling():
        # index() makes the row width a constant of the graph, as the key is; the number of rows stays dynamic.
        key_id, hidden = default_key_id() if secret is None else secret.key_id, operator.index(rows.shape[1])
        key: torch.Tensor = getattr(
            CONSTANTS, constant_name(key_id, label, rows.dtype, hidden, digest_size, rows.device)
        )
        return key
    made = device_key(secret or default_secret(), label, rows.dtype, rows.shape[1], digest_size, rows.device)
    # A fake tensor outside of compiled code: ops under its mode take no real ones.
    return made if type(rows) is torch.Tensor else rows.fake_mode.from_tensor(made)  # type: ignore[attr-defined]


def _named(backend: str, rows: torch.Tensor) -> backends.Backend:
    if torch.compiler.is_compiling():
        raise ValueError("backend is given in compiled code, which calls the registered op; set GPUKEY_BACKEND instead")
    return backends.named(backend, rows.device.type)


def _hold(owner: Any, tensor: torch.Tensor) -> None:
    if tensor.is_cuda and not isinstance(owner, torch.Tensor):
        streams.keep_until_done(owner, tensor.device)
