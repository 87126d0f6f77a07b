"""SGLang's scheduler types import without its GPU dependencies; torchvision, which only image processors use, stands in as an empty package."""

from __future__ import annotations

import enum
import importlib.machinery
import sys
import types
import warnings

import pytest


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
    monkeypatch.setattr(secrets, "_default", None)
    assert integration.install()
    yield integration
    assert integration.uninstall()
