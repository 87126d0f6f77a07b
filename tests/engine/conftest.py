"""Fixtures of the engine's tests: tiny models are cheap, so that each test has its own."""

import pytest
import torch

from gpukey.engine import LLM
from gpukey.engine.tiny import tiny_model


@pytest.fixture
def llm(secret):
    """A float64 engine over the tiny Qwen2."""
    return LLM(dtype=torch.float64, secret=secret, block_size=4, num_blocks=128)


@pytest.fixture
def reference():
    """The same model, as transformers runs it."""
    return tiny_model(dtype=torch.float64)


@pytest.fixture
def rows():
    """rows(count, seed=0) -> float64 [count, 64]."""

    def make(count: int, seed: int = 0) -> torch.Tensor:
        return torch.randn(count, 64, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

    return make


@pytest.fixture
def ids():
    """ids(count, seed=0) -> list of ids below 512."""

    def make(count: int, seed: int = 0) -> list[int]:
        return torch.randint(0, 512, (count,), generator=torch.Generator().manual_seed(seed)).tolist()

    return make
