"""Tiny random models, made in memory from a seed: the default model, and what the tests run."""

from __future__ import annotations

from typing import Any

import torch

SIZES: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


def tiny_model(
    architecture: str = "Qwen2", *, seed: int = 0, dtype: torch.dtype = torch.float32, **overrides: Any
) -> torch.nn.Module:
    """`<architecture>ForCausalLM` of transformers with `SIZES`; the same seed gives the same weights, and no global
    seed is touched.
    """
    import transformers

    config_class = getattr(transformers, f"{architecture}Config")
    model_class = getattr(transformers, f"{architecture}ForCausalLM")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        # Wide weights: with transformers' default of 0.02 every prompt's greedy output would be one repeated token.
        model = model_class(config_class(**{**SIZES, "initializer_range": 0.2, **overrides}))
    model.name_or_path = f"gpukey/tiny-random-{architecture.lower()}-seed{seed}"
    result: torch.nn.Module = model.to(dtype).eval()
    return result
