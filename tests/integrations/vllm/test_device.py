"""Tensors that lie on a GPU give what the same tensors on a CPU give. Needs no vLLM."""

from __future__ import annotations

import pytest
import torch

from gpukey.integrations.vllm import envelope, multimodal

pytestmark = pytest.mark.gpu


@pytest.fixture
def tensor():
    return torch.randn(33, 896, generator=torch.Generator().manual_seed(4)).bfloat16()


@pytest.mark.parametrize(
    "view", [lambda t: t, lambda t: t.T, lambda t: t[::2], lambda t: t[:, 5:], lambda t: t.float().reshape(3, 11, 896)]
)
def test_an_item_is_described_where_it_lies(monkeypatch, secret, tensor, view):
    monkeypatch.setattr("gpukey.secret._default", secret)
    assert multimodal.describe(view(tensor.cuda())) == multimodal.describe(view(tensor))


def test_an_envelope_of_a_device_tensor(secret, tensor):
    assert envelope(tensor.cuda(), secret=secret) == envelope(tensor, secret=secret)
