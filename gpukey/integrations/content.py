"""The identity of whatever a processor put beside an image: tensors, arrays, numbers, nested lists and dicts of them, as one 32-byte item id."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from gpukey.fingerprint import fingerprint_spans
from gpukey.keys import item_id
from gpukey.secret import Secret

DIGEST_SIZE = 32
ROW_BYTES = 1024
"""A pixel tensor's last dimension may be 3 bytes: whole trailing dimensions are joined into rows of at least a hash chunk."""

_SCALARS = (bytes, str, bool, int, float, np.generic)


def content_id(value: Any, modality: str, *, secret: Secret, name: str = "value") -> bytes:
    """32 bytes that bind every byte, dtype, shape, type and order in `value`; device and memory address are no part of it.

    TypeError, naming the place, for a type that has no canonical bytes: what cannot be keyed is not cached.
    """
    if isinstance(value, np.ndarray):
        value = torch.from_numpy(np.ascontiguousarray(value))
    if isinstance(value, torch.Tensor):
        return _tensor_id(value, modality, secret)
    kind = type(value).__name__
    if isinstance(value, Mapping):
        parts = {
            f"part {_text(key, name)}": content_id(part, modality, secret=secret, name=f"{name}[{key!r}]")
            for key, part in value.items()
        }
        return _item([], modality, secret, kind="mapping", **parts)
    if isinstance(value, (list, tuple)):
        ids = [content_id(part, modality, secret=secret, name=f"{name}[{i}]") for i, part in enumerate(value)]
        return _item(ids, modality, secret, kind="sequence")
    if value is None:
        return _item([], modality, secret, kind="none")
    if isinstance(value, _SCALARS):
        return _item([], modality, secret, kind="scalar", scalar=value)
    raise TypeError(
        f"{name} is a {kind}; a tensor, an array, a number, text, bytes, None, or a list or dict of these is needed"
    )


def _tensor_id(tensor: torch.Tensor, modality: str, secret: Secret) -> bytes:
    shape = np.array(tensor.shape, "<i8").tobytes()
    dtype = str(tensor.dtype).removeprefix("torch.")
    if tensor.numel() == 0:
        return _item([], modality, secret, kind="tensor", shape=shape, dtype=dtype)
    span = _span(tensor.reshape(-1, _row_elements(tensor)), secret)
    return item_id(span, modality, secret=secret, digest_size=DIGEST_SIZE, kind="tensor", shape=shape, dtype=dtype)


def _row_elements(tensor: torch.Tensor) -> int:
    elements = 1
    for axis in range(tensor.ndim - 1, -1, -1):
        elements = math.prod(tensor.shape[axis:])
        if elements * tensor.element_size() >= ROW_BYTES:
            break
    return elements


def _item(ids: list[bytes], modality: str, secret: Secret, **fields: Any) -> bytes:
    """An item id over the ids of parts; `kind` tells a tensor, a sequence, a mapping, a scalar and None apart."""
    rows = torch.frombuffer(bytearray(b"".join(ids)), dtype=torch.uint8) if ids else torch.empty(0, dtype=torch.uint8)
    span = _span(rows.view(-1, DIGEST_SIZE), secret)
    return item_id(span, modality, secret=secret, digest_size=DIGEST_SIZE, **fields)


def _span(rows: torch.Tensor, secret: Secret) -> bytes:
    """The fingerprint of all rows, 32 bytes, made where they lie; the copy home waits for it."""
    bounds = torch.tensor([0, rows.shape[0]]).to(rows.device, non_blocking=True)
    return bytes(fingerprint_spans(rows, bounds, secret=secret, digest_size=DIGEST_SIZE)[0].cpu().numpy())


def _text(key: Any, name: str) -> str:
    if not isinstance(key, str):
        raise TypeError(f"{name} has the key {key!r}; text is needed")
    return key
