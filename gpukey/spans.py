"""What stands in a prompt besides token ids: replaced rows, and items such as images. Imports without torch."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from gpukey._checks import U32, array, integer, raw_bytes, text, utf8
from gpukey.fields import FieldValue, encode_fields, plain
from gpukey.secret import DIGEST_SIZES, Secret, check_digest_size, keyed_hash, lp, resolve

ATTENTION = ("causal", "bidirectional")
MIN_IDENTIFIER_BYTES = 16
HEX_DIGITS = frozenset(b"0123456789abcdefABCDEF")


@dataclass(frozen=True, slots=True, init=False)
class EmbeddingSpan:
    """Positions `start` … whose embeddings are replaced, one row fingerprint each.

    `fingerprints`: uint8 [num_rows, 16 or 32], or a sequence of that many bytes a row; copied. `attention`: "causal",
    or "bidirectional" where the rows see each other both ways. `layout`: what else tells the model where the rows stand
    (M-RoPE: i64 t, h, w a row; see docs/spec.md). Everything that the model reads in place of a token's embedding is in
    the row (DeepStack features are concatenated to it).
    """

    start: int
    fingerprints: bytes = field(repr=False)
    num_rows: int
    digest_size: int
    attention: str
    layout: bytes = field(repr=False)

    def __init__(self, start: int, fingerprints: Any, *, attention: str = "causal", layout: bytes = b"") -> None:
        rows = _fingerprints(fingerprints)
        if attention not in ATTENTION:
            raise ValueError(f"attention is {attention!r}; one of {', '.join(map(repr, ATTENTION))} is needed")
        set_ = object.__setattr__
        set_(self, "start", integer("start", start))
        set_(self, "fingerprints", rows.tobytes())
        set_(self, "num_rows", integer("the number of rows in fingerprints", rows.shape[0], 0, U32))
        set_(self, "digest_size", rows.shape[1])
        set_(self, "attention", attention)
        set_(self, "layout", raw_bytes("layout", layout))

    @property
    def length(self) -> int:
        """Positions that it covers."""
        return self.num_rows

    @property
    def is_placed(self) -> bool:
        """Whether each of its blocks is bound to the whole span."""
        return self.num_rows > 0 and (self.attention == "bidirectional" or self.layout != b"")

    def placed(self, secret: Secret) -> bytes:
        """The placed-span digest: all rows, how they attend each other, and the layout."""
        key = secret.derive("placed", bytes([self.digest_size]))
        message = bytes([ATTENTION.index(self.attention)]) + lp(self.layout) + self.fingerprints
        return keyed_hash(key, message, self.digest_size)


@dataclass(frozen=True, slots=True, init=False)
class MultimodalItem:
    """`length` positions from `start` that stand for one item, known by its identifier instead of by its rows.

    By content (default): `identifier` is at least 16 raw bytes of a cryptographic digest over everything that fixes the
    item (`item_id`). With named=True it is the caller's name for the item, text such as a uuid: another namespace, and
    only as good as the caller's promise that the name never stands for two contents. `layout` as in EmbeddingSpan.
    Items may overlap each other and rows.
    """

    start: int
    length: int
    modality: str
    identifier: bytes | str = field(repr=False)
    named: bool
    layout: bytes = field(repr=False)

    def __init__(
        self,
        start: int,
        length: int,
        modality: str,
        identifier: bytes | str,
        *,
        named: bool = False,
        layout: bytes = b"",
    ) -> None:
        if not isinstance(named, bool):
            raise TypeError(f"named is a {type(named).__name__}; True or False is needed")
        set_ = object.__setattr__
        set_(self, "start", integer("start", start))
        set_(self, "length", integer("length", length, 1, U32))
        set_(self, "modality", _nonempty("modality", modality))
        set_(self, "identifier", _nonempty("identifier", identifier) if named else _digest(identifier))
        set_(self, "named", named)
        set_(self, "layout", raw_bytes("layout", layout))

    @property
    def kind(self) -> int:
        """Overlay kind: 2 by content, 3 named by its caller."""
        return 3 if self.named else 2

    def tail(self) -> bytes:
        """The payload of its overlays after the offset: u32 length ‖ lp(modality) ‖ lp(identifier) ‖ lp(layout)."""
        identifier = utf8("identifier", self.identifier) if isinstance(self.identifier, str) else self.identifier
        return struct.pack("<I", self.length) + lp(utf8("modality", self.modality)) + lp(identifier) + lp(self.layout)


def item_id(
    span: Any,
    modality: str,
    *,
    secret: Secret | None = None,
    digest_size: int = 16,
    **fields: FieldValue | None,
) -> bytes:
    """Content identity of a whole item, `digest_size` bytes: its span fingerprint, and its grid and processing
    parameters as typed fields.

    `span`: `digest_size` bytes, or uint8 [digest_size] on the CPU. A field that is None is absent.
    """
    size = check_digest_size(digest_size)
    raw = raw_bytes("span", _row_bytes("span", span))
    if len(raw) != size:
        raise ValueError(
            f"span has {len(raw)} bytes; digest_size is {size}, and a span fingerprint of that size is needed"
        )
    known = {name: plain(name, value) for name, value in fields.items() if value is not None}
    message = lp(utf8("modality", _nonempty("modality", modality))) + raw + encode_fields(known)
    return keyed_hash(resolve(secret).derive("item"), message, size)


def _fingerprints(fingerprints: Any) -> npt.NDArray[np.uint8]:
    """uint8 [num_rows, 16 or 32]."""
    wanted = "uint8 [num_rows, 16 or 32], or a sequence of 16 or 32 bytes a row, is needed"
    if isinstance(fingerprints, np.ndarray) or hasattr(fingerprints, "__array__"):
        rows = array("fingerprints", fingerprints, wanted)
    elif isinstance(fingerprints, (str, bytes, bytearray, memoryview)) or not isinstance(fingerprints, Sequence):
        raise TypeError(f"fingerprints is a {type(fingerprints).__name__}; {wanted}")
    else:
        raw = [raw_bytes(f"fingerprints[{i}]", _row_bytes("fingerprints", row)) for i, row in enumerate(fingerprints)]
        size = len(raw[0]) if raw else DIGEST_SIZES[0]
        for i, row in enumerate(raw):
            if len(row) != size:
                raise ValueError(f"fingerprints[{i}] has {len(row)} bytes and fingerprints[0] has {size}; {wanted}")
        rows = np.frombuffer(b"".join(raw), np.uint8).reshape(len(raw), size)
    if rows.dtype != np.uint8:
        raise TypeError(f"fingerprints has dtype {rows.dtype}; {wanted}")
    if rows.ndim != 2 or rows.shape[1] not in DIGEST_SIZES:
        raise ValueError(f"fingerprints has shape {list(rows.shape)}; {wanted}")
    return rows


def _row_bytes(name: str, row: Any) -> Any:
    """A uint8 [d] array as its bytes; anything else as it is."""
    if not hasattr(row, "__array__") or isinstance(row, np.generic):
        return row
    wanted = "bytes or uint8 [digest_size] is needed"
    found = array(name, row, wanted)
    if found.dtype != np.uint8 or found.ndim != 1:
        raise TypeError(f"{name} holds {found.dtype} {list(found.shape)}; {wanted}")
    return found.tobytes()


def _nonempty(name: str, value: Any) -> str:
    found = text(name, value)
    if not found:
        raise ValueError(f"{name} is empty text; a name is needed")
    return found


def _digest(identifier: Any) -> bytes:
    wanted = f"at least {MIN_IDENTIFIER_BYTES} raw bytes of a digest are"
    raw = raw_bytes("identifier", identifier, wanted)
    if len(raw) < MIN_IDENTIFIER_BYTES:
        raise ValueError(f"identifier has {len(raw)} bytes; {wanted} needed (named=True takes a caller's own name)")
    if HEX_DIGITS.issuperset(raw):
        raise ValueError(f"identifier is {len(raw)} hexadecimal digits; {wanted} needed: bytes.fromhex(…) makes them")
    return raw
