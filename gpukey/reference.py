"""The byte scheme of gpukey in plain Python: the ground truth of every test. No torch, no blake3 package.

BLAKE3 follows the paper "BLAKE3: one function, fast everywhere" (O'Connor, Aumasson, Neves, Wilcox-O'Hearn, 2020), section 2.
The scheme follows docs/spec.md, name by name. Slow on purpose: read it, test against it, do not serve with it.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping, Sequence

IV = (0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19)
PERMUTATION = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
CHUNK_START, CHUNK_END, PARENT, ROOT, KEYED_HASH, DERIVE_KEY_CONTEXT, DERIVE_KEY_MATERIAL = (1 << i for i in range(7))
BLOCK_LEN, CHUNK_LEN = 64, 1024
CONTEXT = "gpukey 2026-11-30 v1 "
ENVELOPE_MAGIC = b"gpukey1\0"

Words = Sequence[int]
FieldValue = bytes | str | int | bool | float


# --- BLAKE3 -----------------------------------------------------------------------------------------------------------


def _rotate(word: int, bits: int) -> int:
    return (word >> bits | word << (32 - bits)) & 0xFFFFFFFF


def _mix(v: list[int], a: int, b: int, c: int, d: int, x: int, y: int) -> None:
    v[a] = (v[a] + v[b] + x) & 0xFFFFFFFF
    v[d] = _rotate(v[d] ^ v[a], 16)
    v[c] = (v[c] + v[d]) & 0xFFFFFFFF
    v[b] = _rotate(v[b] ^ v[c], 12)
    v[a] = (v[a] + v[b] + y) & 0xFFFFFFFF
    v[d] = _rotate(v[d] ^ v[a], 8)
    v[c] = (v[c] + v[d]) & 0xFFFFFFFF
    v[b] = _rotate(v[b] ^ v[c], 7)


def compress(cv: Words, block: bytes, counter: int, flags: int) -> list[int]:
    """16 output words of one compression; `block` is at most 64 bytes and is zero-padded. The first 8 are the next CV."""
    m = list(struct.unpack("<16I", block.ljust(BLOCK_LEN, b"\0")))
    v = [*cv, *IV[:4], counter & 0xFFFFFFFF, counter >> 32, len(block), flags]
    for _ in range(7):
        for column in range(4):
            _mix(v, column, 4 + column, 8 + column, 12 + column, m[2 * column], m[2 * column + 1])
        for row in range(4):
            _mix(v, row, 4 + (row + 1) % 4, 8 + (row + 2) % 4, 12 + (row + 3) % 4, m[8 + 2 * row], m[9 + 2 * row])
        m = [m[i] for i in PERMUTATION]
    return [v[i] ^ v[i + 8] for i in range(8)] + [v[i + 8] ^ cv[i] for i in range(8)]


def _chunk(key: Words, chunk: bytes, index: int, flags: int, last: int) -> list[int]:
    """CV of chunk number `index`; `last` is ROOT when the chunk is the whole input, else 0."""
    blocks = [chunk[i : i + BLOCK_LEN] for i in range(0, len(chunk), BLOCK_LEN)] or [b""]
    cv: Words = key
    for i, block in enumerate(blocks):
        start = CHUNK_START if i == 0 else 0
        end = CHUNK_END | last if i == len(blocks) - 1 else 0
        cv = compress(cv, block, index, flags | start | end)[:8]
    return list(cv)


def _hash(key: Words, data: bytes, flags: int) -> bytes:
    """32 bytes: chunks are the leaves; pair neighbours level by level, an odd one moves up as it is."""
    chunks = [data[i : i + CHUNK_LEN] for i in range(0, len(data), CHUNK_LEN)] or [b""]
    level = [_chunk(key, chunk, i, flags, ROOT if len(chunks) == 1 else 0) for i, chunk in enumerate(chunks)]
    while len(level) > 1:
        root = ROOT if len(level) == 2 else 0
        pairs = [struct.pack("<16I", *level[i], *level[i + 1]) for i in range(0, len(level) - 1, 2)]
        parents = [compress(key, pair, 0, flags | PARENT | root)[:8] for pair in pairs]
        level = parents + ([level[-1]] if len(level) % 2 else [])
    return struct.pack("<8I", *level[0])


def blake3(data: bytes) -> bytes:
    """BLAKE3 of `data`, 32 bytes."""
    return _hash(IV, data, 0)


def keyed_hash(key: bytes, data: bytes) -> bytes:
    """B3K: BLAKE3 keyed with 32 bytes, 32 bytes."""
    return _hash(struct.unpack("<8I", key), data, KEYED_HASH)


def derive_key(label: str, material: bytes) -> bytes:
    """B3D: BLAKE3 derive_key under the context "gpukey 2026-11-30 v1 " + label, 32 bytes."""
    context = _hash(IV, (CONTEXT + label).encode("ascii"), DERIVE_KEY_CONTEXT)
    return _hash(struct.unpack("<8I", context), material, DERIVE_KEY_MATERIAL)


# --- encodings --------------------------------------------------------------------------------------------------------


def lp(data: bytes) -> bytes:
    """Length-prefixed: u32 len ‖ data."""
    return struct.pack("<I", len(data)) + data


def encode_field(name: str, value: FieldValue) -> bytes:
    """lp(name) ‖ u8 type ‖ lp(value); True, 1, 1.0, "1" and b"1" are five distinct encodings."""
    if isinstance(value, bytes):
        kind, raw = 0, value
    elif isinstance(value, str):
        kind, raw = 1, value.encode("utf-8", "strict")
    elif isinstance(value, bool):
        kind, raw = 3, bytes([value])
    elif isinstance(value, int):
        kind, raw = 2, struct.pack("<q", value)
    elif math.isfinite(value):
        kind, raw = 4, struct.pack("<d", value + 0.0)  # -0.0 + 0.0 is 0.0
    else:
        raise ValueError(f"field {name!r} is {value}; a finite number is needed")
    return lp(name.encode("utf-8", "strict")) + bytes([kind]) + lp(raw)


def encode_fields(fields: Mapping[str, FieldValue]) -> bytes:
    """All fields, sorted by name as bytes."""
    return b"".join(encode_field(name, fields[name]) for name in sorted(fields, key=lambda n: n.encode("utf-8")))


def domain(dtype: str, hidden: int, digest_size: int) -> bytes:
    """D: `dtype` as torch prints it without "torch.", elements in a row, bytes of a digest."""
    return lp(dtype.encode("ascii")) + struct.pack("<QB", hidden, digest_size)


# --- fingerprints -----------------------------------------------------------------------------------------------------


def master(secret: bytes) -> bytes:
    """M, from which every other key is derived."""
    return derive_key("secret", secret)


def key_id(secret: bytes) -> bytes:
    """8 public bytes that tell two secrets apart."""
    return derive_key("key id", master(secret))[:8]


def row_key(secret: bytes, dtype: str, hidden: int, digest_size: int = 16) -> bytes:
    """Kr, 32 bytes."""
    return derive_key("row", master(secret) + domain(dtype, hidden, digest_size))


def span_key(secret: bytes, dtype: str, hidden: int, digest_size: int = 16) -> bytes:
    """Ks, 32 bytes."""
    return derive_key("span", master(secret) + domain(dtype, hidden, digest_size))


def row_fingerprint(secret: bytes, row: bytes, dtype: str, hidden: int, digest_size: int = 16) -> bytes:
    """Fingerprint of one row from its raw bytes."""
    return keyed_hash(row_key(secret, dtype, hidden, digest_size), row)[:digest_size]


def span_fingerprint(secret: bytes, rows: Iterable[bytes], dtype: str, hidden: int, digest_size: int = 16) -> bytes:
    """Fingerprint of a span from its rows' fingerprints, in order."""
    return keyed_hash(span_key(secret, dtype, hidden, digest_size), b"".join(rows))[:digest_size]


def placed_span(secret: bytes, rows: Iterable[bytes], attention: int, layout: bytes, digest_size: int = 16) -> bytes:
    """A span bound to how it is attended (0 causal, 1 both ways) and to where the model is told that it stands."""
    key = derive_key("placed", master(secret) + bytes([digest_size]))
    return keyed_hash(key, bytes([attention]) + lp(layout) + b"".join(rows))[:digest_size]


def item_id(
    secret: bytes, span: bytes, modality: str, fields: Mapping[str, FieldValue], digest_size: int = 16
) -> bytes:
    """Content identity of a whole item: modality, span fingerprint, grid and processing parameters."""
    message = lp(modality.encode("utf-8", "strict")) + span + encode_fields(fields)
    return keyed_hash(derive_key("item", master(secret)), message)[:digest_size]


def envelope(secret: bytes, fingerprints: Sequence[bytes], dtype: str, hidden: int, digest_size: int = 16) -> bytes:
    """Fingerprints on the wire, authenticated with a 16-byte MAC."""
    head = ENVELOPE_MAGIC + key_id(secret) + domain(dtype, hidden, digest_size) + struct.pack("<Q", len(fingerprints))
    body = head + b"".join(fingerprints)
    return body + keyed_hash(derive_key("envelope", master(secret)), body)[:16]


# --- keys -------------------------------------------------------------------------------------------------------------


def root_key(secret: bytes, fields: Mapping[str, FieldValue]) -> bytes:
    """Key of the empty prefix: everything that fixes the model, the adapter, the salt and the cache, 32 bytes."""
    return keyed_hash(derive_key("root", master(secret)), encode_fields(fields))


def rows_overlay(start: int, rows: Sequence[bytes]) -> bytes:
    """Overlay kind 1: one maximal run of replaced positions in a block."""
    return struct.pack("<BII", 1, start, len(rows)) + b"".join(rows)


def item_overlay(
    start: int,
    count: int,
    offset: int,
    length: int,
    modality: str,
    identifier: bytes,
    layout: bytes = b"",
    *,
    named: bool = False,
) -> bytes:
    """Overlay kind 2 (identified by content) or 3 (named by its caller)."""
    head = struct.pack("<BIIII", 3 if named else 2, start, count, offset, length)
    return head + lp(modality.encode("utf-8", "strict")) + lp(identifier) + lp(layout)


def placed_overlay(start: int, count: int, offset: int, placed: bytes) -> bytes:
    """Overlay kind 4: the part of a placed span in this block."""
    return struct.pack("<BIII", 4, start, count, offset) + placed


def _overlay_order(overlay: bytes) -> tuple[int, int, int, bytes]:
    kind, start, count = struct.unpack_from("<BII", overlay)
    return start, kind, count, overlay[9:]


def block_key(
    secret: bytes, parent: bytes, token_ids: Sequence[int], overlays: Iterable[bytes] = (), digest_size: int = 16
) -> bytes:
    """Key of one full block, 32 bytes; `parent` of the first block is the root key."""
    ordered = sorted(overlays, key=_overlay_order)
    if len(set(ordered)) != len(ordered):
        raise ValueError("overlays holds two equal ones; each part of a block is described once")
    key = derive_key("block", master(secret) + bytes([digest_size]))
    n = len(token_ids)
    return keyed_hash(key, parent + struct.pack(f"<I{n}Q", n, *token_ids) + b"".join(ordered))
