"""Identifiers of image embeddings, through vLLM's own multimodal hasher."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytestmark = pytest.mark.engine


def _item(rows, grid=(1, 4, 8)):
    return {"image_embeds": rows, "image_grid_thw": torch.tensor([grid])}


@pytest.fixture
def rows():
    return torch.randn(32, 600, generator=torch.Generator().manual_seed(8)).bfloat16()


def test_equal_items_have_one_identifier(mm_hash, hooks, rows):
    spread = torch.zeros(32, 1200, dtype=torch.bfloat16)
    spread[:, ::2] = rows
    assert mm_hash(_item(rows)) == mm_hash(_item(rows.clone())) == mm_hash(_item(spread[:, ::2]))
    assert len(bytes.fromhex(mm_hash(_item(rows)))) == 32, "pure hex, as connectors parse it"


def _bit(rows):
    other = rows.clone()
    other.view(torch.int16)[31, 599] ^= 1
    return other


def test_what_differs_for_the_model_differs(mm_hash, hooks, rows):
    items = [
        _item(rows),
        _item(rows, (1, 2, 16)),
        _item(-rows),
        _item(_bit(rows)),
        _item(rows.view(torch.float16)),
        _item(rows.reshape(16, 1200)),
        _item(rows[None]),
        _item(rows.T),
        _item(rows.float()),
        _item([*rows]),
        rows,
        {"image_embeds": rows},
    ]
    found = [mm_hash(item) for item in items] + [mm_hash(_item(rows), max_pixels=7)]
    assert len(set(found)) == len(found)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(2 * 2 * 3, dtype=torch.uint8).reshape(2, 2, 3),
        torch.rand(3, 40, 40),
        torch.tensor(3.5),
        torch.zeros(0, 8),
        torch.zeros(4, 0),
        torch.tensor([True, False]),
        torch.rand(4, 8).to(torch.float8_e4m3fn),
        torch.rand(4, 8, dtype=torch.complex64).conj(),
        torch.rand(4, 8, requires_grad=True),
    ],
    ids=lambda tensor: f"{tensor.dtype} {list(tensor.shape)}",
)
def test_any_tensor_has_an_identifier_of_its_own(mm_hash, hooks, tensor):
    """vLLM cannot hash float8 or a tensor that requires a gradient; numpy has no such values."""
    other = (tensor.detach().clone().resolve_conj().reshape(-1)).clone()
    same = mm_hash(tensor.detach().clone())
    assert mm_hash(tensor) == same
    if tensor.numel():
        other.view(torch.uint8)[-1] ^= 1
        assert mm_hash(other.reshape(tensor.shape)) != same


def test_short_last_dimensions_are_joined(hooks):
    """Pixels [height, width, 3] are rows of width × 3 elements: no 32-byte digest for 3 bytes."""
    multimodal = hooks.multimodal
    for shape in [(64, 64, 3), (512, 7, 3), (2000, 1)]:
        pixels = torch.zeros(shape, dtype=torch.uint8)
        assert len(multimodal.describe(pixels)["rows"]) <= pixels.numel() // 16


def test_other_items_are_left_to_the_engine(mm_hash, hooks, rows):
    items = ["text", b"bytes", 7, np.arange(6).reshape(2, 3), {"a": [np.ones(3), None]}]
    found = [mm_hash(item) for item in items]
    hooks.uninstall()
    assert [mm_hash(item) for item in items] == found
    hooks.install()


def test_a_name_given_by_a_client_is_no_content(mm_hash, hooks, rows):
    """vllm#55547: `uuid` comes over HTTP and is the whole identifier without the hooks."""
    content = mm_hash(_item(rows))
    named = mm_hash(None, uuid=content)
    assert named != content
    assert named == mm_hash(None, uuid=content)
    assert len({named, mm_hash(None, uuid="a"), mm_hash(None, uuid="b"), mm_hash("a")}) == 4
    hooks.uninstall()
    assert mm_hash(None, uuid=content) == content
    hooks.install()
