"""Every malformed argument of gpukey.keys is a TypeError or ValueError that names it, what came and what was wanted."""

import re

import numpy as np
import pytest
import torch

from gpukey.keys import EmbeddingSpan, KeyChain, MultimodalItem, Root, block_keys, item_id
from gpukey.secret import Secret

ROOT = Root(model="m", dtype="bfloat16")
SECRET = Secret(b"a secret for tests of errors")
IDENT = bytes(range(100, 116))


def span(start, n, size=16, **how):
    return EmbeddingSpan(start, [bytes(size)] * n, **how)


def item(start=0, length=4, modality="image", identifier=IDENT, **how):
    return MultimodalItem(start, length, modality, identifier, **how)


def keys(token_ids=range(64), **how):
    return block_keys(token_ids, **{"block_size": 16, "root": ROOT, "secret": SECRET, **how})


@pytest.mark.parametrize("tail", [0, 100])
@pytest.mark.parametrize(
    ("bad", "error", "says"),
    [
        (-1, ValueError, "token_ids[3] is -1"),
        (2**63, ValueError, "token_ids[3] is 9223372036854775808"),
        (-(2**70), ValueError, "token_ids[3] is -1180591620717411303424"),
        (True, TypeError, "token_ids[3] is a bool"),
        (False, TypeError, "token_ids[3] is a bool"),
        (np.True_, TypeError, "token_ids[3] is a bool"),
        (1.0, TypeError, "token_ids[3] is a float"),
        (np.float32(1), TypeError, "token_ids[3] is a float32"),
        ("1", TypeError, "token_ids[3] is a str"),
        (None, TypeError, "token_ids[3] is a NoneType"),
        (b"1", TypeError, "token_ids[3] is a bytes"),
        ([1], TypeError, "token_ids[3] is a list"),
    ],
)
def test_one_bad_id_in_a_sequence(bad, error, says, tail):
    ids = [0, 1, 2, bad, *range(tail)]
    for form in (ids, tuple(ids)):
        with pytest.raises(error, match=re.escape(says)):
            keys(form)
    chain = KeyChain(block_size=4, root=ROOT, secret=SECRET)
    with pytest.raises(error, match=re.escape(says.replace("[3]", "[0]"))):
        chain.append([bad])
    assert chain.num_tokens == 0


@pytest.mark.parametrize(
    ("ids", "error", "says"),
    [
        (np.array([0, -1]), ValueError, "token_ids[1] is -1"),
        (np.array([0, 2**63], np.uint64), ValueError, "token_ids[1] is 9223372036854775808"),
        (np.array([-128], np.int8), ValueError, "token_ids[0] is -128"),
        (np.array([0.0]), TypeError, "token_ids has dtype float64"),
        (np.array([True]), TypeError, "token_ids has dtype bool"),
        (np.array(["1"]), TypeError, "token_ids has dtype <U1"),
        (np.array([3, True], object), TypeError, "token_ids[1] is a bool"),
        (np.zeros((2, 2), int), ValueError, "token_ids has 2 dimensions"),
        (np.array(3), ValueError, "token_ids has 0 dimensions"),
        (np.int64(3), ValueError, "token_ids has 0 dimensions"),
        ("12", TypeError, "token_ids is a str"),
        (b"12", TypeError, "token_ids is a bytes"),
        (3, TypeError, "token_ids is a int"),
        (None, TypeError, "token_ids is a NoneType"),
        ({1, 2}, TypeError, "token_ids is a set"),
        ({1: 2}, TypeError, "token_ids is a dict"),
        (iter([1]), TypeError, "token_ids is a list_iterator"),
        ([[1, 2], [3, 4]], TypeError, "token_ids[0] is a list"),
    ],
)
def test_token_ids_of_another_form(ids, error, says):
    with pytest.raises(error, match=re.escape(says)):
        keys(ids)


def test_tensors_of_another_form():
    import torch

    for ids, error in (
        (torch.tensor([0.5]), TypeError),
        (torch.tensor([True]), TypeError),
        (torch.tensor([-1]), ValueError),
    ):
        with pytest.raises(error, match="token_ids"):
            keys(ids)
    with pytest.raises(TypeError, match=re.escape("token_ids[0] is a Tensor")):
        keys([torch.tensor(True)])


@pytest.mark.parametrize(
    ("how", "error", "says"),
    [
        ({"block_size": 0}, ValueError, "block_size is 0; 1 to 4294967295"),
        ({"block_size": -16}, ValueError, "block_size is -16"),
        ({"block_size": 1 << 32}, ValueError, "block_size is 4294967296"),
        ({"block_size": True}, TypeError, "block_size is a bool"),
        ({"block_size": 16.0}, TypeError, "block_size is a float"),
        ({"digest_size": 8}, ValueError, "digest_size is 8; 16 or 32"),
        ({"digest_size": True}, TypeError, "digest_size is a bool"),
        ({"root": bytes(32)}, TypeError, "root is a bytes; a gpukey.Root"),
        ({"root": {"model": "m"}}, TypeError, "root is a dict"),
        ({"secret": b"a secret of bytes"}, TypeError, "secret is a bytes; a gpukey.Secret"),
        ({"embeds": span(0, 1)}, TypeError, "embeds is a EmbeddingSpan; a list"),
        ({"embeds": [bytes(16)]}, TypeError, "embeds[0] is a bytes; a gpukey.EmbeddingSpan"),
        ({"embeds": [span(0, 1), item()]}, TypeError, "embeds[1] is a MultimodalItem; a gpukey.EmbeddingSpan"),
        ({"embeds": None}, TypeError, "embeds is a NoneType; a list"),
        ({"items": None}, TypeError, "items is a NoneType; a list"),
        ({"embeds": [None]}, TypeError, "embeds[0] is a NoneType; a gpukey.EmbeddingSpan"),
        ({"embeds": 5}, TypeError, "embeds is a int; a list"),
        ({"items": [span(0, 1)]}, TypeError, "items[0] is a EmbeddingSpan; a gpukey.MultimodalItem"),
        ({"items": item()}, TypeError, "items is a MultimodalItem; a list"),
        (
            {"embeds": [span(0, 1), span(8, 1, 32)]},
            ValueError,
            "embeds[1] has fingerprints of 32 bytes; digest_size is 16",
        ),
        ({"embeds": [span(0, 1)], "digest_size": 32}, ValueError, "embeds[0] has fingerprints of 16 bytes"),
        ({"embeds": [span(5, 4), span(8, 2)]}, ValueError, "embeds has spans at 5 to 9 and 8 to 10"),
        ({"embeds": [span(8, 2), span(5, 4)]}, ValueError, "embeds has spans at 5 to 9 and 8 to 10"),
        ({"embeds": [span(5, 4), span(5, 2)]}, ValueError, "each position is replaced once"),
        ({"embeds": [span(5, 40), span(20, 1)]}, ValueError, "embeds has spans at 5 to 45 and 20 to 21"),
        ({"embeds": [span(5, 4), span(5, 4)]}, ValueError, "embeds[1] is given twice"),
        ({"items": [item(), item()]}, ValueError, "items[1] is given twice"),
        ({"embeds": [span(60, 5)]}, ValueError, "embeds has positions 60 to 65; token_ids has 64 tokens"),
        ({"embeds": [span(64, 1)]}, ValueError, "embeds has positions 64 to 65"),
        ({"embeds": [span(2**62, 1)]}, ValueError, "token_ids has 64 tokens"),
        ({"items": [item(61, 4)]}, ValueError, "items has positions 61 to 65; token_ids has 64 tokens"),
    ],
)
def test_arguments_of_block_keys(how, error, says):
    """sglang PR#36595, imp PR#1180: what does not fit, or is missing, is an error, and no key of tokens alone."""
    with pytest.raises(error, match=re.escape(says)):
        keys(**how)


@pytest.mark.parametrize(
    ("args", "how", "error", "says"),
    [
        ((-1, [bytes(16)]), {}, ValueError, "start is -1"),
        ((True, [bytes(16)]), {}, TypeError, "start is a bool"),
        ((1.0, [bytes(16)]), {}, TypeError, "start is a float"),
        ((2**63, [bytes(16)]), {}, ValueError, "start is 9223372036854775808"),
        ((0, bytes(16)), {}, TypeError, "fingerprints is a bytes; uint8 [num_rows, 16 or 32]"),
        ((0, None), {}, TypeError, "fingerprints is a NoneType"),
        ((0, [bytes(15)]), {}, ValueError, "fingerprints has shape [1, 15]"),
        ((0, [bytes(16), bytes(32)]), {}, ValueError, "fingerprints[1] has 32 bytes and fingerprints[0] has 16"),
        ((0, ["0" * 16]), {}, TypeError, "fingerprints[0] is a str"),
        ((0, np.zeros((2, 17), np.uint8)), {}, ValueError, "fingerprints has shape [2, 17]"),
        ((0, np.zeros(16, np.uint8)), {}, ValueError, "fingerprints has shape [16]"),
        ((0, np.zeros((1, 2, 16), np.uint8)), {}, ValueError, "fingerprints has shape [1, 2, 16]"),
        ((0, np.zeros((2, 16), np.int8)), {}, TypeError, "fingerprints has dtype int8"),
        ((0, np.zeros((2, 16))), {}, TypeError, "fingerprints has dtype float64"),
        ((0, [np.zeros(2)]), {}, TypeError, "fingerprints holds float64 [2]"),
        ((0, [bytes(16)]), {"attention": "both"}, ValueError, "attention is 'both'; one of 'causal', 'bidirectional'"),
        ((0, [bytes(16)]), {"attention": 1}, ValueError, "attention is 1"),
        ((0, [bytes(16)]), {"attention": True}, ValueError, "attention is True"),
        ((0, [bytes(16)]), {"layout": "x"}, TypeError, "layout is a str"),
        ((0, [bytes(16)]), {"layout": None}, TypeError, "layout is a NoneType"),
    ],
)
def test_arguments_of_a_span(args, how, error, says):
    with pytest.raises(error, match=re.escape(says)):
        EmbeddingSpan(*args, **how)


@pytest.mark.parametrize(
    ("how", "error", "says"),
    [
        ({"start": -1}, ValueError, "start is -1"),
        ({"start": False}, TypeError, "start is a bool"),
        ({"length": 0}, ValueError, "length is 0; 1 to 4294967295"),
        ({"length": -4}, ValueError, "length is -4"),
        ({"length": 1 << 32}, ValueError, "length is 4294967296"),
        ({"length": True}, TypeError, "length is a bool"),
        ({"modality": b"image"}, TypeError, "modality is a bytes"),
        ({"modality": ""}, ValueError, "modality is empty"),
        ({"modality": "\udfff"}, ValueError, "modality has a lone surrogate"),
        ({"identifier": bytes(15)}, ValueError, "identifier has 15 bytes; at least 16 raw bytes"),
        ({"identifier": b""}, ValueError, "identifier has 0 bytes"),
        ({"identifier": "0" * 64}, TypeError, "identifier is a str; at least 16 raw bytes"),
        ({"identifier": b"0123456789abcdefABCDEF0123456789"}, ValueError, "identifier is 32 hexadecimal digits"),
        ({"identifier": 5}, TypeError, "identifier is a int"),
        ({"identifier": b"a name of bytes!", "named": True}, TypeError, "identifier is a bytes; text"),
        ({"identifier": "", "named": True}, ValueError, "identifier is empty"),
        ({"identifier": "a\ud800", "named": True}, ValueError, "identifier has a lone surrogate at character 1"),
        ({"identifier": "a", "named": 1}, TypeError, "named is a int"),
        ({"layout": "x"}, TypeError, "layout is a str"),
    ],
)
def test_arguments_of_an_item(how, error, says):
    """vllm#55547: a name is text, a digest is raw bytes, and neither passes for the other."""
    with pytest.raises(error, match=re.escape(says)):
        item(**how)


@pytest.mark.parametrize(
    ("args", "how", "error", "says"),
    [
        ((bytes(32), "image"), {}, ValueError, "span has 32 bytes; digest_size is 16"),
        ((bytes(16), "image"), {"digest_size": 32}, ValueError, "span has 16 bytes; digest_size is 32"),
        (("00" * 16, "image"), {}, TypeError, "span is a str"),
        ((np.zeros(2), "image"), {}, TypeError, "span holds float64 [2]"),
        ((bytes(16), ""), {}, ValueError, "modality is empty"),
        ((bytes(16), "image"), {"grid": [1, 2]}, TypeError, "grid is a list"),
        ((bytes(16), "image"), {"scale": float("nan")}, ValueError, "scale is nan"),
        ((bytes(16), "image"), {"scale": -float("inf")}, ValueError, "scale is -inf"),
        ((bytes(16), "image"), {"grid": 2**63}, ValueError, "grid is 9223372036854775808"),
        ((bytes(16), "image"), {"name": "\ud800"}, ValueError, "name has a lone surrogate"),
        ((bytes(16), "image"), {"\ud800": 1}, ValueError, "field name has a lone surrogate"),
        ((bytes(16), "image"), {"secret": b"bytes"}, TypeError, "secret is a bytes"),
    ],
)
def test_arguments_of_item_id(args, how, error, says):
    with pytest.raises(error, match=re.escape(says)):
        item_id(*args, **{"secret": SECRET, **how})


def test_item_id_takes_arrays_and_ignores_none():
    base = item_id(IDENT, "image", secret=SECRET, grid_h=2)
    assert item_id(np.frombuffer(IDENT, np.uint8), "image", secret=SECRET, grid_h=np.int64(2), grid_t=None) == base
    assert len(item_id(bytes(32), "image", secret=SECRET, digest_size=32)) == 32


def test_identity_of_spans_and_items():
    """Immutable values: equal when everything is equal, and nothing of their content in a repr."""
    assert span(1, 2) == span(1, 2) != span(1, 2, attention="bidirectional")
    assert {span(1, 2), span(1, 2), item(), item()} == {item(), span(1, 2)}
    assert item() != item(layout=b"x")
    for value in (span(1, 2), item()):
        with pytest.raises((AttributeError, TypeError)):
            value.start = 5
        assert "fingerprints" not in repr(value)
        assert "identifier" not in repr(value)
    assert span(3, 2).length == 2


@pytest.mark.parametrize("ids", [torch.ones(4, requires_grad=True), torch.ones(4, device="meta")])
def test_ids_that_numpy_cannot_read(ids):
    with pytest.raises(TypeError, match=r"token_ids is a Tensor that numpy cannot read .*; a 1-D integer array"):
        keys(ids)


def test_fingerprints_that_numpy_cannot_read():
    rows = torch.ones(2, 16, requires_grad=True)
    with pytest.raises(TypeError, match=r"fingerprints is a Tensor that numpy cannot read .*; uint8 \[num_rows"):
        EmbeddingSpan(0, rows)
    with pytest.raises(TypeError, match=r"span is a Tensor that numpy cannot read .*; bytes or uint8"):
        item_id(rows[0], "image", secret=SECRET)
