"""Tiny random LoRA adapters on disk, in peft's layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch


def write_lora(directory: Path, config: Any, *, seed: int, rank: int = 2, size: float = 0.5) -> str:
    """An adapter on q_proj and v_proj of a tiny Qwen2 with `config`, as peft saves it; its path."""
    from peft import LoraConfig, get_peft_model

    from gpukey.engine.tiny import tiny_model

    sizes = (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
    )
    base = tiny_model(**{name: getattr(config, name) for name in sizes})
    model = get_peft_model(base, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=["q_proj", "v_proj"]))
    generator = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        if "lora_" in name:
            weight.data = size * torch.randn(weight.shape, generator=generator)
    model.save_pretrained(directory, save_embedding_layers=False)
    return str(directory)
