"""The mini engine: continuous batching over a paged KV pool, with a prefix cache keyed by content.

from gpukey.engine import LLM, Prompt, SamplingParams
llm = LLM()                                   # a tiny random Qwen2, made in memory
out = llm.generate([Prompt(ids, embeds=[(start, rows)])], SamplingParams(max_tokens=8))[0]
out.token_ids, out.num_cached_tokens
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpukey.engine.async_llm import AsyncLLM as AsyncLLM
    from gpukey.engine.config import EngineConfig as EngineConfig
    from gpukey.engine.llm import LLM as LLM
    from gpukey.engine.model import UnsupportedModel as UnsupportedModel
    from gpukey.engine.output import RequestFailed as RequestFailed
    from gpukey.engine.output import RequestOutput as RequestOutput
    from gpukey.engine.prompt import EmbedSpan as EmbedSpan
    from gpukey.engine.prompt import Prompt as Prompt
    from gpukey.engine.sampling_params import SamplingParams as SamplingParams

_HOMES = {
    "AsyncLLM": "async_llm",
    "EmbedSpan": "prompt",
    "EngineConfig": "config",
    "LLM": "llm",
    "Prompt": "prompt",
    "RequestFailed": "output",
    "RequestOutput": "output",
    "SamplingParams": "sampling_params",
    "UnsupportedModel": "model",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return list(__all__)
