"""Fingerprints on the wire, from an encoder to a prefill engine: authenticated, bound to dtype, row width and secret.
No torch.

    "gpukey1\\0" ‖ key id (8) ‖ lp(dtype) ‖ u64 hidden ‖ u8 digest_size ‖ u64 rows ‖ fingerprints ‖ MAC (16)     (docs/spec.md, "envelope")
"""

from __future__ import annotations

import hmac
import struct
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpukey.secret import DIGEST_SIZES, Secret, domain, keyed_hash

MAGIC = b"gpukey1\0"
MAC_SIZE = 16
_HEAD = len(MAGIC) + 8
_SMALLEST = _HEAD + 4 + 8 + 1 + 8 + MAC_SIZE


class Unpacked(NamedTuple):
    """What an authentic envelope holds: `rows` is uint8 [num_rows, digest_size], for `EmbeddingSpan(start, rows)`."""

    rows: npt.NDArray[np.uint8]
    dtype: str
    hidden: int
    digest_size: int


def pack(rows: Any, *, dtype: Any, hidden: int, secret: Secret | None = None) -> bytes:
    """Fingerprints uint8 [num_rows, 16 or 32] (numpy, a CPU tensor, or `handle.result()`) of rows of `hidden` elements
    of `dtype`, as bytes.

    `dtype` is a torch.dtype or its name. Without `secret` the configured one; a random secret is ValueError, as no
    other process has it.
    """
    secret = _shared(secret)
    digests = _digests(rows)
    count, digest_size = digests.shape
    name = _dtype_name(dtype)
    if isinstance(hidden, bool) or not isinstance(hidden, int):
        raise TypeError(f"hidden is a {type(hidden).__name__}; the number of elements in a row is needed")
    if not 0 < hidden < 1 << 64:
        raise ValueError(f"hidden is {hidden}; at least 1 element in a row is needed")
    head = MAGIC + bytes.fromhex(secret.key_id) + domain(name, hidden, digest_size) + struct.pack("<Q", count)
    body = head + digests.tobytes()
    return body + _mac(secret, body)


def unpack(
    blob: bytes | bytearray | memoryview, *, secret: Secret | None = None, dtype: Any = None, hidden: int | None = None
) -> Unpacked:
    """The fingerprints of `pack`; ValueError for another secret's key id, a wrong MAC, or another `dtype` or `hidden`
    than the caller expects."""
    secret = _shared(secret)
    if not isinstance(blob, (bytes, bytearray, memoryview)):
        raise TypeError(f"blob is a {type(blob).__name__}; the bytes of gpukey.pack are needed")
    if hidden is not None and (isinstance(hidden, bool) or not isinstance(hidden, (int, np.integer))):
        raise TypeError(f"hidden is a {type(hidden).__name__}; the number of elements in a row is needed")
    blob = bytes(blob)
    if len(blob) < _SMALLEST:
        raise ValueError(f"blob has {len(blob)} bytes; an envelope has at least {_SMALLEST}")
    if not blob.startswith(MAGIC):
        raise ValueError("blob does not begin as a gpukey envelope does")
    if blob[len(MAGIC) : _HEAD].hex() != secret.key_id:
        packed = blob[len(MAGIC) : _HEAD].hex()
        raise ValueError(f"blob was packed under the secret with key id {packed}; this secret's is {secret.key_id}")
    body, mac = blob[:-MAC_SIZE], blob[-MAC_SIZE:]
    if not hmac.compare_digest(mac, _mac(secret, body)):
        raise ValueError("the MAC of blob is wrong: bytes were changed, cut off or added")
    unpacked = _parse(body)
    if dtype is not None and unpacked.dtype != _dtype_name(dtype):
        raise ValueError(f"blob holds fingerprints of {unpacked.dtype} rows; dtype {_dtype_name(dtype)} is expected")
    if hidden is not None and unpacked.hidden != hidden:
        raise ValueError(f"blob holds fingerprints of rows of {unpacked.hidden} elements; hidden {hidden} is expected")
    return unpacked


def _parse(body: bytes) -> Unpacked:
    # Authentic, but perhaps of a peer with a bug: lengths are checked all the same.
    (length,) = struct.unpack_from("<I", body, _HEAD)
    end = _HEAD + 4 + length
    if end + 17 > len(body):
        raise ValueError(f"blob says that its dtype name has {length} bytes, more than it holds")
    hidden, digest_size, count = struct.unpack_from("<QBQ", body, end)
    if digest_size not in DIGEST_SIZES:
        raise ValueError(f"blob says that its digest size is {digest_size}; 16 or 32 is needed")
    digests = body[end + 17 :]
    if count * digest_size != len(digests):
        raise ValueError(f"blob says {count} rows of {digest_size} bytes and holds {len(digests)} bytes of them")
    rows = np.frombuffer(bytearray(digests), dtype=np.uint8).reshape(count, digest_size)
    return Unpacked(rows, body[_HEAD + 4 : end].decode("ascii", "backslashreplace"), hidden, digest_size)


def _shared(secret: Secret | None) -> Secret:
    secret = Secret.from_env() if secret is None else secret
    if not isinstance(secret, Secret):
        raise TypeError(f"secret is a {type(secret).__name__}; a gpukey.Secret is needed")
    if secret.is_random:
        raise ValueError("secret is random, and no other process has it; configure GPUKEY_SECRET or GPUKEY_SECRET_FILE")
    return secret


def _digests(rows: Any) -> npt.NDArray[np.uint8]:
    if getattr(getattr(rows, "device", None), "type", "cpu") != "cpu":
        raise ValueError(f"rows is on {rows.device}; bring it home first (fingerprint_rows_async does, without a wait)")
    wanted = "fingerprints, uint8 [num_rows, 16 or 32], are needed"
    if not hasattr(rows, "__array__"):
        raise TypeError(f"rows is a {type(rows).__name__}; {wanted} (a numpy array, a CPU tensor, handle.result())")
    try:
        digests = np.asarray(rows)
    except (RuntimeError, TypeError) as error:
        raise TypeError(f"rows is a {type(rows).__name__} that numpy cannot read ({error}); {wanted}") from error
    if digests.dtype != np.uint8 or digests.ndim != 2 or digests.shape[1] not in DIGEST_SIZES:
        raise ValueError(f"rows is {digests.dtype} {list(digests.shape)}; {wanted}")
    return digests


def _dtype_name(dtype: Any) -> str:
    name = str(dtype).removeprefix("torch.")
    if not name.isidentifier() or not name.isascii():
        raise ValueError(f"dtype is {dtype!r}; a torch dtype or its name is needed")
    return name


def _mac(secret: Secret, body: bytes) -> bytes:
    return keyed_hash(secret.derive("envelope"), body, MAC_SIZE)
