"""The envelope: the reference's bytes, and nothing that is not authentic gets through."""

import struct

import numpy as np
import pytest
import torch

from gpukey import reference
from gpukey.envelope import pack, unpack
from gpukey.handle import send_home
from gpukey.secret import Secret


def digests(count, size=16):
    return np.random.default_rng(count).integers(0, 256, (count, size), dtype=np.uint8)


def reseal(secret, body):
    return body + reference.keyed_hash(secret.derive("envelope"), body)[:16]


@pytest.mark.parametrize("size", [16, 32])
@pytest.mark.parametrize("count", [0, 1, 5])
def test_bytes_are_those_of_the_reference(secret, secret_bytes, count, size):
    rows = digests(count, size)
    blob = pack(rows, secret=secret, dtype="bfloat16", hidden=896)
    assert blob == reference.envelope(secret_bytes, [bytes(row) for row in rows], "bfloat16", 896, size)
    back = unpack(blob, secret=secret, dtype="bfloat16", hidden=896)
    assert np.array_equal(back.rows, rows)
    assert (back.dtype, back.hidden, back.digest_size) == ("bfloat16", 896, size)


def test_a_tensor_and_a_torch_dtype_are_taken(secret):
    import torch

    rows = torch.from_numpy(digests(3))
    blob = pack(rows, secret=secret, dtype=torch.float8_e4m3fn, hidden=4)
    assert unpack(memoryview(blob), secret=secret, dtype=torch.float8_e4m3fn).dtype == "float8_e4m3fn"


def test_every_changed_bit_is_found(secret):
    blob = pack(digests(2), secret=secret, dtype="float16", hidden=7)
    for bit in range(8 * len(blob)):
        changed = bytearray(blob)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ValueError, match="blob"):
            unpack(changed, secret=secret)


def test_every_cut_and_every_added_byte_is_found(secret):
    blob = pack(digests(2), secret=secret, dtype="float16", hidden=7)
    for length in range(len(blob)):
        with pytest.raises(ValueError, match="blob"):
            unpack(blob[:length], secret=secret)
    with pytest.raises(ValueError, match="MAC"):
        unpack(blob + b"\0", secret=secret)


def test_another_secret_is_named_by_its_key_id(secret):
    other = Secret(b"some other secret, also long")
    blob = pack(digests(2), secret=other, dtype="float16", hidden=7)
    with pytest.raises(ValueError, match=f"key id {other.key_id}.*{secret.key_id}"):
        unpack(blob, secret=secret)


def test_another_dtype_or_width_than_expected(secret):
    blob = pack(digests(2), secret=secret, dtype="float16", hidden=7)
    with pytest.raises(ValueError, match="float16 rows; dtype bfloat16"):
        unpack(blob, secret=secret, dtype="bfloat16")
    with pytest.raises(ValueError, match="7 elements; hidden 8"):
        unpack(blob, secret=secret, hidden=8)


@pytest.mark.parametrize("claimed", [0, 1, 3, 2**60, 2**64 - 1])
def test_an_authentic_envelope_that_lies_about_its_rows(secret, claimed):
    body = bytearray(pack(digests(2), secret=secret, dtype="float16", hidden=7)[:-16])
    struct.pack_into("<Q", body, len(body) - 32 - 8, claimed)
    with pytest.raises(ValueError, match=f"says {claimed} rows"):
        unpack(reseal(secret, bytes(body)), secret=secret)


def test_an_authentic_envelope_with_a_long_name_or_odd_digests(secret):
    body = bytearray(pack(digests(2), secret=secret, dtype="float16", hidden=7)[:-16])
    size = bytearray(body)
    size[len(body) - 32 - 9] = 17
    with pytest.raises(ValueError, match="digest size is 17"):
        unpack(reseal(secret, bytes(size)), secret=secret)
    struct.pack_into("<I", body, 16, 2**32 - 1)
    with pytest.raises(ValueError, match="dtype name"):
        unpack(reseal(secret, bytes(body)), secret=secret)


def test_wrong_arguments(secret, monkeypatch):
    with pytest.raises(ValueError, match=r"rows is uint8 \[2, 15\]"):
        pack(digests(2)[:, :15], secret=secret, dtype="float16", hidden=7)
    with pytest.raises(ValueError, match="rows is float32"):
        pack(digests(2).astype(np.float32), secret=secret, dtype="float16", hidden=7)
    for hidden in (0, -1, 2**64):
        with pytest.raises(ValueError, match="hidden"):
            pack(digests(2), secret=secret, dtype="float16", hidden=hidden)
    with pytest.raises(TypeError, match="hidden is a bool"):
        pack(digests(2), secret=secret, dtype="float16", hidden=True)
    with pytest.raises(ValueError, match="dtype"):
        pack(digests(2), secret=secret, dtype="float 16", hidden=7)
    with pytest.raises(TypeError, match="blob is a str"):
        unpack("gpukey1", secret=secret)
    with pytest.raises(TypeError, match="hidden is a str"):
        unpack(pack(digests(2), secret=secret, dtype="float16", hidden=7), secret=secret, hidden="7")
    for nothing in (None, [bytes(16)], send_home(torch.zeros(2, 16, dtype=torch.uint8))):
        with pytest.raises(TypeError, match=f"rows is a {type(nothing).__name__}; fingerprints, uint8"):
            pack(nothing, secret=secret, dtype="float16", hidden=7)
    with pytest.raises(TypeError, match="rows is a Tensor that numpy cannot read"):
        pack(torch.ones(2, 16, requires_grad=True), secret=secret, dtype="float16", hidden=7)
    with pytest.raises(TypeError, match="secret is a bytes"):
        pack(digests(2), secret=b"x" * 16, dtype="float16", hidden=7)


def test_a_random_secret_is_never_shared(secret, monkeypatch):
    with pytest.raises(ValueError, match="random"):
        pack(digests(2), secret=Secret.random(), dtype="float16", hidden=7)
    monkeypatch.delenv("GPUKEY_SECRET", raising=False)
    monkeypatch.delenv("GPUKEY_SECRET_FILE", raising=False)
    with pytest.raises(ValueError, match="GPUKEY_SECRET"):
        pack(digests(2), dtype="float16", hidden=7)
