"""Writes tests/vectors.json with `gpukey.reference` alone: `python tests/_support/make_vectors.py`. A diff in an old
vector is a new scheme."""

from __future__ import annotations

import json
import math

import slow_keys
from vectors import KEY, PATH, data, fields, pattern, rows

from gpukey import reference as ref

SECRET = b"golden vectors of gpukey, not for use"
OTHER_SECRET = bytes(range(16))
LENGTHS = (
    0,
    1,
    63,
    64,
    65,
    127,
    128,
    129,
    1023,
    1024,
    1025,
    2047,
    2048,
    2049,
    3072,
    3073,
    4096,
    4097,
    8191,
    8192,
    8193,
)
LONG = (16384, 31744, 102400)
# dtype, elements, bytes of a row; widths at every boundary of the hash, then those of real models
ROWS = [
    *(("uint8", n, n) for n in (1, 2, 3, 4, 15, 16, 17, 63, 64, 65, 127, 128, 129, 1023, 1024, 1025, 2047, 2048, 2049)),
    *(("uint8", n, n) for n in (3072, 3073, 4095, 4096, 4097, 5120, 6145, 7168, 8191, 8192, 8193, 31744)),
    *(("bfloat16", n, 2 * n) for n in (1, 8, 512, 513, 896, 1536, 2048, 4096, 8192)),
    *(("float16", n, 2 * n) for n in (7, 896)),
    *(("float32", n, 4 * n) for n in (1, 257, 896, 4096)),
    *(("float64", n, 8 * n) for n in (1, 129, 896)),
    ("complex64", 33, 264),
    ("complex128", 65, 1040),
    ("bool", 5, 5),
    ("int64", 3, 24),
    ("float8_e4m3fn", 896, 896),
    ("float8_e5m2", 100, 100),
    ("float4_e2m1fn_x2", 448, 448),
]
FIELDS = [
    {},
    {"a": ["boolean", True]},
    {"a": ["boolean", False]},
    {"a": ["integer", 1]},
    {"a": ["integer", -1]},
    {"a": ["integer", 2**63 - 1]},
    {"a": ["integer", -(2**63)]},
    {"a": ["float", 1.0]},
    {"a": ["float", -0.0]},
    {"a": ["float", 5e-324]},
    {"a": ["text", "1"]},
    {"a": ["text", ""]},
    {"a": ["text", "é"]},
    {"a": ["text", "e\u0301"]},
    {"a": ["bytes", "31"]},
    {"a": ["bytes", ""]},
    {"é": ["integer", 1], "z": ["integer", 2], "Z": ["integer", 3], "zz": ["integer", 4]},
    {"ab": ["text", "c"], "a": ["text", "bc"]},
]
BASE = {"model": ["text", "Qwen/Qwen2.5-0.5B-Instruct"], "dtype": ["text", "bfloat16"]}
ROOTS = [
    BASE,
    {**BASE, "block_size": ["integer", 16]},
    {**BASE, "lora_name": ["text", "X"], "lora_version": ["text", "1"]},
    {**BASE, "lora_name": ["text", "X"], "lora_version": ["text", "1"], "lora_scale": ["float", 0.5]},
    {**BASE, "cache_salt": ["text", "X"]},
    {**BASE, "cache_salt": ["bytes", "58"]},
    {**BASE, "cache_salt": ["text", ""]},
    {
        **BASE,
        "revision": ["text", "main"],
        "weights_version": ["text", "7"],
        "config": ["bytes", "00ff"],
        "kv_layout": ["text", "engine 1, tp 1, rank 0"],
        "x-tokenizer": ["text", "t"],
        "block_size": ["integer", 16],
    },
]
GRID = pattern(24 * 6, 7).hex()
IDS = [*range(100, 138)]
# name, token ids, block size, digest size, spans [start, rows, attention, layout], items [start, length, modality, identifier, named, layout]
PROMPTS = [
    ("text", IDS, 16, 16, [], []),
    ("text, block size 1", IDS[:5], 1, 16, [], []),
    ("text, block size 3", IDS, 3, 32, [], []),
    ("no full block", IDS[:15], 16, 16, [], []),
    ("extreme ids", [0, 1, 255, 256, 2**16, 2**32, 2**63 - 1, 151643], 4, 16, [], []),
    ("a span inside a block", IDS, 16, 16, [(5, 4, 0, "")], []),
    ("a span over two borders", IDS, 16, 16, [(10, 25, 0, "")], []),
    ("the same with 32-byte digests", IDS, 16, 32, [(10, 25, 0, "")], []),
    ("touching spans", IDS, 16, 16, [(10, 10, 0, ""), (20, 15, 0, "")], []),
    ("two runs in a block", IDS, 16, 16, [(1, 2, 0, ""), (4, 3, 0, "")], []),
    ("bidirectional", IDS, 16, 16, [(10, 25, 1, "")], []),
    ("a layout", IDS, 16, 16, [(10, 6, 0, GRID)], []),
    ("bidirectional, a layout, touching", IDS, 16, 16, [(10, 6, 1, GRID), (16, 6, 1, GRID)], []),
    ("an empty span", IDS, 16, 16, [(10, 0, 1, GRID)], []),
    ("an item", IDS, 16, 16, [], [(12, 8, "image", "00" * 16, False, "")]),
    ("an item named by its caller", IDS, 16, 16, [], [(12, 8, "image", b"uuid-1".hex(), True, "")]),
    (
        "items side by side",
        IDS,
        4,
        16,
        [],
        [(0, 4, "image", "ab" * 16, False, ""), (4, 4, "image", "ab" * 16, False, "")],
    ),
    (
        "items over rows",
        IDS,
        16,
        32,
        [(8, 20, 1, "")],
        [
            (8, 20, "video", "cd" * 32, False, GRID),
            (8, 20, "audio", "cd" * 32, False, ""),
            (9, 1, "audio", "6e", True, ""),
        ],
    ),
]


def _blake3():
    for length in (*LENGTHS, *LONG):
        message = pattern(length)
        yield {
            "length": length,
            "hash": ref.blake3(message).hex(),
            "keyed_hash": ref.keyed_hash(KEY, message).hex(),
            "derive_key": ref.derive_key("test vectors", message).hex(),
        }


def _secrets():
    for secret in (SECRET, OTHER_SECRET):
        yield {"secret": secret.hex(), "master": ref.master(secret).hex(), "key_id": ref.key_id(secret).hex()}


def _rows():
    for dtype, hidden, size in ROWS:
        for digest_size in (16, 32):
            where = (dtype, hidden, digest_size)
            row = {"pattern": size, "offset": hidden % 251}
            yield {
                "dtype": dtype,
                "hidden": hidden,
                "digest_size": digest_size,
                "domain": ref.domain(*where).hex(),
                "row_key": ref.row_key(SECRET, *where).hex(),
                "row": row,
                "fingerprint": ref.row_fingerprint(SECRET, data(row), *where).hex(),
            }


def _spans():
    for digest_size in (16, 32):
        for num_rows in (0, 1, 2, 3, 4, 5, 31, 32, 33, 63, 64, 65, 127, 128, 129, 448):
            where = ("bfloat16", 896, digest_size)
            fingerprints = {"pattern": num_rows * digest_size, "offset": num_rows}
            yield {
                "dtype": where[0],
                "hidden": where[1],
                "digest_size": digest_size,
                "span_key": ref.span_key(SECRET, *where).hex(),
                "fingerprints": fingerprints,
                "num_rows": num_rows,
                "span": ref.span_fingerprint(SECRET, rows(fingerprints, digest_size), *where).hex(),
            }


def _placed():
    for digest_size in (16, 32):
        for attention, layout, num_rows in ((1, "", 4), (1, "", 8), (0, GRID, 6), (1, GRID, 6)):
            fingerprints = {"pattern": num_rows * digest_size, "offset": 3}
            placed = ref.placed_span(
                SECRET, rows(fingerprints, digest_size), attention, bytes.fromhex(layout), digest_size
            )
            yield {
                "digest_size": digest_size,
                "attention": attention,
                "layout": layout,
                "fingerprints": fingerprints,
                "placed": placed.hex(),
            }


def _items():
    grids = (
        {},
        {"grid_h": ["integer", 2], "grid_w": ["integer", 8]},
        {"grid_h": ["integer", 4], "grid_w": ["integer", 4]},
    )
    for digest_size in (16, 32):
        for modality in ("image", "video"):
            for grid in grids:
                span = pattern(digest_size, 9)
                ident = ref.item_id(SECRET, span, modality, fields(grid), digest_size)
                yield {
                    "digest_size": digest_size,
                    "span": span.hex(),
                    "modality": modality,
                    "fields": grid,
                    "item_id": ident.hex(),
                }


def _blocks():
    """One overlay of each kind, then several in one block, given in the wrong order."""
    row = rows({"pattern": 64, "offset": 1}, 16)
    named = ref.item_overlay(2, 2, 0, 2, "image", b"uuid-1", named=True)
    overlays = [
        [],
        [ref.rows_overlay(1, row[:2])],
        [ref.item_overlay(0, 4, 4, 12, "image", pattern(16, 5), b"layout")],
        [named],
        [ref.placed_overlay(0, 4, 8, pattern(16, 6))],
        [named, ref.placed_overlay(0, 4, 8, pattern(16, 6)), ref.rows_overlay(0, row)],
    ]
    for digest_size in (16, 32):
        for given in overlays:
            token_ids, parent = [7, 2**32 + 7, 0, 2**63 - 1], pattern(32, 11)
            key = ref.block_key(SECRET, parent, token_ids, given, digest_size)
            yield {
                "digest_size": digest_size,
                "parent": parent.hex(),
                "token_ids": token_ids,
                "overlays": [overlay.hex() for overlay in given],
                "key": key.hex(),
            }


def _prompts():
    root = {**ROOTS[0], "cache_salt": ["text", "tenant-7"]}
    for name, token_ids, block_size, digest_size, spans, items in PROMPTS:
        embeds = [
            {"start": s, "fingerprints": {"pattern": n * digest_size, "offset": s}, "attention": a, "layout": layout}
            for s, n, a, layout in spans
        ]
        keys = slow_keys.block_keys(
            SECRET,
            token_ids,
            block_size=block_size,
            fields=fields(root),
            digest_size=digest_size,
            spans=[
                (e["start"], rows(e["fingerprints"], digest_size), e["attention"], bytes.fromhex(e["layout"]))
                for e in embeds
            ],
            items=[(s, n, m, bytes.fromhex(i), named, bytes.fromhex(layout)) for s, n, m, i, named, layout in items],
        )
        names = ("start", "length", "modality", "identifier", "named", "layout")
        yield {
            "name": name,
            "root": root,
            "block_size": block_size,
            "digest_size": digest_size,
            "token_ids": token_ids,
            "embeds": embeds,
            "items": [dict(zip(names, item, strict=True)) for item in items],
            "keys": [key.hex() for key in keys],
        }


def _envelopes():
    for digest_size in (16, 32):
        for num_rows in (0, 1, 3):
            fingerprints = {"pattern": num_rows * digest_size, "offset": 2}
            blob = ref.envelope(SECRET, rows(fingerprints, digest_size), "bfloat16", 896, digest_size)
            yield {
                "dtype": "bfloat16",
                "hidden": 896,
                "digest_size": digest_size,
                "fingerprints": fingerprints,
                "envelope": blob.hex(),
            }


def make():
    """Every vector, by the name of its definition. All but "secrets" are made under `secret`."""
    return {
        "secret": SECRET.hex(),
        "blake3": list(_blake3()),
        "secrets": list(_secrets()),
        "rows": list(_rows()),
        "spans": list(_spans()),
        "placed": list(_placed()),
        "items": list(_items()),
        "fields": [{"fields": f, "encoded": ref.encode_fields(fields(f)).hex()} for f in FIELDS],
        "roots": [{"fields": f, "key": ref.root_key(SECRET, fields(f)).hex()} for f in ROOTS],
        "blocks": list(_blocks()),
        "prompts": list(_prompts()),
        "envelopes": list(_envelopes()),
    }


def spell(vectors):
    """JSON, one vector a line."""
    parts = []
    for name, value in vectors.items():
        if isinstance(value, list):
            lines = ",\n".join("    " + json.dumps(vector, ensure_ascii=True) for vector in value)
            parts.append(f'  "{name}": [\n{lines}\n  ]')
        else:
            parts.append(f'  "{name}": {json.dumps(value)}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    assert math.copysign(1, fields({"a": ["float", -0.0]})["a"]) == -1
    PATH.write_text(spell(make()), encoding="utf-8")
