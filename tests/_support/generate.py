"""What transformers itself generates, for the engine to be compared with."""

from __future__ import annotations

from typing import Any

import torch


@torch.no_grad()
def greedy(model: Any, ids: list[int], spans: list[tuple[int, torch.Tensor]], max_tokens: int) -> list[int]:
    """Greedy `model.generate(inputs_embeds=...)` with rows in place of some embeddings."""
    embeds = model.get_input_embeddings()(torch.tensor(ids))[None].clone()
    for start, rows in spans:
        embeds[0, start : start + len(rows)] = rows.to(embeds.dtype)
    mask = torch.ones(1, len(ids), dtype=torch.int64)
    out = model.generate(
        inputs_embeds=embeds,
        attention_mask=mask,
        max_new_tokens=max_tokens,
        do_sample=False,
        repetition_penalty=1.0,
        eos_token_id=None,
        pad_token_id=0,
    )
    tokens: list[int] = out[0].tolist()
    return tokens
