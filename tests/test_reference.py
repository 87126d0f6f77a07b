"""gpukey.reference's BLAKE3 against the blake3 package, and its encodings against bytes written out by hand."""

import struct

import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st
from vectors import KEY, pattern

from gpukey import reference as ref

LENGTHS = [0, 1, 63, 64, 65, 1023, 1024, 1025, 2047, 2048, 2049, 3072, 8191, 8192, 8193, 31744, 102400]


def check(data: bytes, key: bytes) -> None:
    assert ref.blake3(data) == blake3(data).digest()
    assert ref.keyed_hash(key, data) == blake3(data, key=key).digest()
    assert ref.derive_key("row", data) == blake3(data, derive_key_context=ref.CONTEXT + "row").digest()


@pytest.mark.parametrize("length", LENGTHS)
def test_equals_the_blake3_package_at_every_boundary(length):
    check(pattern(length), KEY)


@settings(max_examples=40)
@given(st.integers(0, 6000), st.binary(min_size=32, max_size=32), st.randoms(use_true_random=False))
def test_equals_the_blake3_package_on_random_input(length, key, random):
    check(random.randbytes(length), key)


def test_known_answers():
    """From the BLAKE3 repository's test vectors: lengths 0 and 1, hash and keyed_hash."""
    assert ref.blake3(b"").hex().startswith("af1349b9f5f9a1a6a0404dea36dcc949")
    assert ref.keyed_hash(KEY, b"").hex().startswith("92b2b75604ed3c761f9d6f62392c8a92")
    assert ref.blake3(pattern(1)).hex().startswith("2d3adedff11b61f14c886e35afa03673")


def test_the_counter_has_64_bits():
    """No input of a test is 4 TiB long: the chunk counter's upper half is checked in one compression."""
    low, high = (ref.compress(ref.IV, b"x", counter, 0) for counter in (1, 1 + (1 << 32)))
    assert low != high


def test_every_bit_of_a_row_counts():
    """sglang#8342: every single-bit flip is another fingerprint."""
    row = pattern(100)
    seen = {ref.row_fingerprint(KEY, row, "uint8", 100)}
    for bit in range(800):
        flipped = bytearray(row)
        flipped[bit // 8] ^= 1 << bit % 8
        seen.add(ref.row_fingerprint(KEY, bytes(flipped), "uint8", 100))
    assert len(seen) == 801


def test_domain_by_hand():
    assert ref.domain("bfloat16", 896, 16) == b"\x08\0\0\0bfloat16" + b"\x80\x03\0\0\0\0\0\0" + b"\x10"


def test_fields_by_hand():
    fields = {"b": 1, "a": "é", "c": True, "d": b"\0", "e": -0.0}
    assert ref.encode_fields(fields) == (
        b"\1\0\0\0a\1\2\0\0\0\xc3\xa9"
        b"\1\0\0\0b\2\x08\0\0\0\1\0\0\0\0\0\0\0"
        b"\1\0\0\0c\3\1\0\0\0\1"
        b"\1\0\0\0d\0\1\0\0\0\0"
        b"\1\0\0\0e\4\x08\0\0\0\0\0\0\0\0\0\0\0"
    )


def test_fields_sort_by_utf8_bytes():
    """U+FF61 comes before U+10000 in UTF-8, after it in UTF-16."""
    encoded = ref.encode_fields({"\U00010000": 1, "\uff61": 2})
    assert encoded.index("\uff61".encode()) < encoded.index("\U00010000".encode())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_fields_are_finite(value):
    with pytest.raises(ValueError, match="finite"):
        ref.encode_field("a", value)


def test_block_key_by_hand():
    """Overlays sort by (start, kind, count) as numbers, then by payload as unsigned bytes."""
    secret, parent = bytes(16), bytes(range(32))
    named = ref.item_overlay(1, 1, 0, 1, "m", b"\xff", named=True)
    other = ref.item_overlay(1, 1, 0, 1, "m", b"\x7f", named=True)
    rows = ref.rows_overlay(1, [bytes(16)])
    late = ref.rows_overlay(256, [bytes(16)])
    message = parent + struct.pack("<I3Q", 3, 1, 2, 2**63 - 1) + rows + other + named + late
    key = ref.derive_key("block", ref.master(secret) + b"\x10")
    assert ref.block_key(secret, parent, [1, 2, 2**63 - 1], [late, named, other, rows]) == ref.keyed_hash(key, message)


def test_equal_overlays_are_an_error():
    rows = ref.rows_overlay(1, [bytes(16)])
    with pytest.raises(ValueError, match="two equal ones"):
        ref.block_key(bytes(16), bytes(32), [1, 2], [rows, rows])


def test_imports_nothing_but_the_standard_library(fresh_python):
    """Ground truth stands alone: no torch, numpy or blake3 package behind it."""
    loaded = fresh_python("import sys, gpukey.reference; print(*sys.modules)").split()
    assert not {"torch", "numpy", "blake3"} & set(loaded)
