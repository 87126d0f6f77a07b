"""content_id: one identity for what a processor made, whatever its container; nothing that changes the forward is left out."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from gpukey.integrations.content import content_id


@pytest.fixture
def identify(secret):
    return lambda value, modality="IMAGE": content_id(value, modality, secret=secret)


def test_equal_content_is_equal_wherever_it_lies(identify):
    """sglang PR#5083: fp(x) == fp(x.clone()); numpy and torch name the same bytes."""
    rows = torch.randn(7, 33)
    strided = torch.randn(33, 7).t()
    assert identify(rows) == identify(rows.clone()) == identify(rows.numpy())
    assert identify(strided) == identify(strided.contiguous())
    assert len(identify(rows)) == 32


def test_every_pair_of_different_contents_is_distinct(identify):
    """dynamo PR#8341 (30×150 against 150×30), dtype, order, doubled parts, types of scalars, None, empty containers."""
    bits = torch.arange(4500, dtype=torch.int16)
    row = torch.arange(6, dtype=torch.float32)
    contents = [
        bits.view(30, 150),
        bits.view(150, 30),
        bits.view(torch.float16).view(30, 150),
        bits.view(torch.bfloat16).view(30, 150),
        bits.view(1, 30, 150),
        row,
        row.view(2, 3),
        row.view(3, 2),
        [row, row],
        [row],
        [[row]],
        [row, -row],
        [-row, row],
        {"feature": row},
        {"embeddings": row},
        {"feature": row, "grid": [2, 8]},
        {"feature": row, "grid": [4, 4]},
        {"feature": row, "grid": torch.tensor([4, 4])},
        {"feature": row, "grid": None},
        torch.empty(0, 4),
        torch.empty(4, 0),
        torch.empty(0, 4, dtype=torch.int64),
        torch.tensor(1.0),
        1.0,
        1,
        True,
        "1",
        b"1",
        None,
        [],
        {},
        [None],
        "",
        b"",
    ]
    for (i, a), (j, b) in itertools.combinations(enumerate(contents), 2):
        assert identify(a) != identify(b), (i, j)
    assert identify(row, "IMAGE") != identify(row, "VIDEO")


def test_lazy_negation_is_seen(identify):
    """torch lazy bits: a neg view has the bytes of what it shows."""
    value = torch.complex(torch.randn(3, 5), torch.randn(3, 5)).conj().imag
    assert value.is_neg()
    assert identify(value) == identify(value.resolve_neg()) != identify(-value)


def test_every_single_bit_counts(identify):
    feature = torch.zeros(3, 40, dtype=torch.uint8)
    seen = {identify(feature)}
    for position in (0, 39, 40, 79, 119):
        for bit in range(8):
            flipped = feature.clone()
            flipped.view(-1)[position] ^= 1 << bit
            seen.add(identify(flipped))
    assert len(seen) == 1 + 5 * 8


def test_what_has_no_canonical_bytes_is_refused_by_name(secret):
    for value in (object(), {1, 2}, np.array([object()]), torch.nn.Linear(2, 2)):
        with pytest.raises(TypeError, match=r"item\['grid'\]|numpy|can't convert"):
            content_id({"grid": value}, "IMAGE", secret=secret, name="item")
    with pytest.raises(TypeError, match="has the key 3; text is needed"):
        content_id({3: 1}, "IMAGE", secret=secret)
