"""SGLang's scheduler types import without its GPU dependencies; torchvision, which only image processors use, stands in as an empty package."""

from __future__ import annotations

import enum
import importlib.machinery
import sys
import types
import warnings
from array import array

import pytest
import torch


def _stand_in_for_torchvision() -> None:
    # transformers asks whether torchvision is installed when it is first imported; it must hear the truth.
    from transformers import AutoConfig, AutoImageProcessor, AutoProcessor, AutoTokenizer  # noqa: F401

    mode = enum.Enum("InterpolationMode", {"NEAREST": "nearest", "BILINEAR": "bilinear", "BICUBIC": "bicubic"})
    for name in ("torchvision", "torchvision.transforms", "torchvision.transforms.functional"):
        module = types.ModuleType(name)
        module.__path__ = []
        module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        module.InterpolationMode = mode
        sys.modules[name] = module


@pytest.fixture(scope="session")
def sglang_types():
    """SGLang's schedule_batch module, from its wheel."""
    warnings.simplefilter("ignore")
    _stand_in_for_torchvision()
    import sglang.srt.managers.schedule_batch as types_

    return types_


@pytest.fixture
def installed(sglang_types, monkeypatch, secret_bytes):
    """The hooks, in for one test, with a configured secret."""
    from gpukey import secret as secrets
    from gpukey.integrations import sglang as integration

    monkeypatch.setenv("GPUKEY_SECRET", secret_bytes.decode())
    # A process that fingerprinted something before the secret was configured has drawn one of its own: no rank shares it.
    monkeypatch.setattr(secrets, "_default", secrets.Secret.random())
    assert integration.install()
    yield integration
    assert integration.uninstall()


@pytest.fixture
def item(sglang_types):
    """item(feature, **parameters) -> a MultimodalDataItem with its identity set by whatever is installed."""

    def make(feature=None, *, modality="IMAGE", precomputed=None, hash=None, **parameters):
        made = sglang_types.MultimodalDataItem(
            modality=sglang_types.Modality[modality],
            feature=feature,
            precomputed_embeddings=precomputed,
            hash=hash,
            model_specific_data=parameters,
        )
        made.set_pad_value()
        return made

    return make


@pytest.fixture
def radix(sglang_types):
    """radix(prompts) -> tokens that the last prompt finds in a RadixCache which holds the others."""
    from sglang.srt.mem_cache.base_prefix_cache import InsertParams, MatchPrefixParams
    from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey

    def match(*prompts):
        cache = RadixCache.create_simulated()
        keys = [RadixKey(token_ids=array("q", prompt)) for prompt in prompts]
        for key in keys[:-1]:
            cache.insert(InsertParams(key=key))
        return cache.match_prefix(MatchPrefixParams(key=keys[-1])).device_prefix_len

    return match


@pytest.fixture
def features():
    """[16, 64] bfloat16, the same every time, in memory of its own."""
    return lambda: torch.randn(16, 64, generator=torch.Generator().manual_seed(3)).bfloat16()
