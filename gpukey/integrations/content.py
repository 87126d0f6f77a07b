"""The identity of whatever a processor put beside an image: tensors, arrays, numbers, nested lists and dicts of them, as one 32-byte item id.

A value is spelled as a tag and its length-prefixed bytes, containers around their parts, tensors as dtype, shape and fingerprint; the item id is
over that. Equal: a list and a tuple, bytes and a bytearray, a numpy scalar and its Python value, a numpy array and the tensor of its bytes, any
order of keys.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from gpukey.checks import as_bits, check_plain
from gpukey.fingerprint import fingerprint_spans
from gpukey.intake import from_numpy
from gpukey.keys import item_id
from gpukey.secret import Secret, lp

DIGEST_SIZE = 32
ROW_BYTES = 1024
"""A pixel tensor's last dimension may be 3 bytes: whole trailing dimensions are joined into rows of at least a hash chunk."""
MAX_DEPTH = 64
WANTED = "a tensor, an array, a number, text, bytes, None, an enum, or a list, dict or dataclass of these is needed"


def content_id(value: Any, modality: str, *, secret: Secret, name: str = "value") -> bytes:
    """32 bytes that bind every byte, dtype, shape, type and order in `value`; device, strides and memory address are no part of it.

    TypeError, naming the place, for a type that has no canonical bytes, ValueError beyond 64 levels: what cannot be keyed is not cached.
    """
    return item_id(
        bytes(DIGEST_SIZE), modality, secret=secret, digest_size=DIGEST_SIZE, content=_spell(value, name, secret)
    )


def as_rows(tensor: torch.Tensor) -> torch.Tensor:
    """[num_rows, hidden] of a tensor with elements: a view where it is contiguous, otherwise a copy of its bits. TypeError unless it is plain."""
    check_plain(tensor)
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if not tensor.is_contiguous():
        tensor = as_bits(tensor).contiguous().view(tensor.dtype)
    return tensor.view(-1, _row_elements(tensor))


def _spell(value: Any, name: str, secret: Secret, depth: int = 0) -> bytes:
    found = _scalar(value)
    if found is not None:
        return found
    if depth == MAX_DEPTH:
        raise ValueError(f"{name} lies {MAX_DEPTH} levels deep; nothing that a processor makes does")
    kind = type(value)
    if isinstance(value, torch.Tensor):
        return _tensor(value, name, secret)
    if kind in (np.ndarray, np.memmap):
        return _array(value, name, secret)
    if isinstance(value, (list, tuple)):
        # Names of places are made only where an error could need them: a list may hold a million numbers.
        parts = (_scalar(part) or _spell(part, f"{name}[{i}]", secret, depth + 1) for i, part in enumerate(value))
        return _tagged(b"l", *parts)
    if isinstance(value, Mapping):
        return _mapping(value, name, secret, depth)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts_by_name = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return _tagged(b"D", _typename(kind), _mapping(parts_by_name, name, secret, depth))
    raise TypeError(f"{name} is a {kind.__name__}; {WANTED}")


def _scalar(value: Any) -> bytes | None:
    """The spelling of a value without parts; None for all others."""
    if isinstance(value, np.generic) and value.dtype.kind in "biufc":
        value = value.item()
    if value is None:
        return _tagged(b"n")
    if isinstance(value, bool):
        return _tagged(b"b", bytes([value]))
    if isinstance(value, int) and not isinstance(value, np.generic):
        return _tagged(b"i", int(value).to_bytes(value.bit_length() // 8 + 1, "little", signed=True))
    if isinstance(value, float):
        return _tagged(b"f", struct.pack("<d", value))
    if isinstance(value, complex):
        return _tagged(b"c", struct.pack("<dd", value.real, value.imag))
    if isinstance(value, str):
        # A client's JSON may hold lone surrogates: they are text like any other here.
        return _tagged(b"s", str.encode(value, "utf-8", "surrogatepass"))
    if isinstance(value, (bytes, bytearray)):
        return _tagged(b"y", bytes(value))
    if isinstance(value, torch.dtype):
        return _tagged(b"d", str(value).encode())
    if isinstance(value, enum.Enum):
        return _tagged(b"e", _typename(type(value)), (value.name or repr(value.value)).encode())
    return None


def _mapping(value: Mapping[Any, Any], name: str, secret: Secret, depth: int) -> bytes:
    parts = []
    for key, part in value.items():
        if not isinstance(key, str):
            raise TypeError(f"{name} has the key {key!r}; text is needed")
        parts.append(
            lp(str.encode(key, "utf-8", "surrogatepass")) + _spell(part, f"{name}[{key!r}]", secret, depth + 1)
        )
    return _tagged(b"m", *sorted(parts))


def _array(array: np.ndarray[Any, Any], name: str, secret: Secret) -> bytes:
    try:
        tensor = from_numpy(array)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} is an array of dtype {array.dtype}, which is no tensor's: {error}") from None
    return _tensor(tensor, name, secret)


def _tensor(tensor: torch.Tensor, name: str, secret: Secret) -> bytes:
    try:
        check_plain(tensor)
        digest = _span(as_rows(tensor), secret) if tensor.numel() else b""
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name} has no bytes to key: {error}") from None
    shape = struct.pack(f"<{tensor.ndim}q", *tensor.shape)
    return _tagged(b"t", lp(str(tensor.dtype).encode()), lp(shape), digest)


def _row_elements(tensor: torch.Tensor) -> int:
    elements = 1
    for axis in range(tensor.ndim - 1, -1, -1):
        elements = math.prod(tensor.shape[axis:])
        if elements * tensor.element_size() >= ROW_BYTES:
            break
    return elements


def _span(rows: torch.Tensor, secret: Secret) -> bytes:
    """The fingerprint of all rows, 32 bytes, made where they lie; the copy home waits for it."""
    bounds = torch.tensor([0, rows.shape[0]]).to(rows.device, non_blocking=True)
    return bytes(fingerprint_spans(rows, bounds, secret=secret, digest_size=DIGEST_SIZE)[0].cpu().numpy())


def _tagged(tag: bytes, *parts: bytes) -> bytes:
    return tag + lp(b"".join(parts))


def _typename(kind: type) -> bytes:
    return lp(f"{kind.__module__}.{kind.__qualname__}".encode())
