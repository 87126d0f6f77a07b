"""The engine's own torch ops: what stands between a transformers model and the paged pools, opaque to torch.compile.

gpukey::replace_rows(Tensor(a!) embeds, Tensor rows, Tensor index) -> ()
gpukey::paged_attention(...) -> Tensor      writes this step's keys and values to the pools, then attends over them
"""

from __future__ import annotations

from typing import Any

import torch

from gpukey.engine import attention

library: Any = torch.library  # without types in some releases
LIBRARY = library.Library("gpukey", "FRAGMENT")

LIBRARY.define("replace_rows(Tensor(a!) embeds, Tensor rows, Tensor index) -> ()")
LIBRARY.define(
    "paged_attention(Tensor query, Tensor key, Tensor value, Tensor(a!) key_pool, Tensor(b!) value_pool, "
    "Tensor slots, Tensor block_tables, Tensor query_start, Tensor context_lens, SymInt num_decodes, SymInt max_query, "
    "SymInt max_context, float scale) -> Tensor"
)


def _replace_rows(embeds: torch.Tensor, rows: torch.Tensor, index: torch.Tensor) -> None:
    """embeds [num_tokens, hidden]; rows [num_rows, hidden] of its dtype go to positions index [num_rows]."""
    embeds.index_copy_(0, index, rows)


def _replace_rows_fake(embeds: torch.Tensor, rows: torch.Tensor, index: torch.Tensor) -> None:
    return None


def _paged_attention_fake(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: object) -> torch.Tensor:
    return query.new_empty((query.shape[0], query.shape[1], value.shape[2]))


for _device in ("CPU", "CUDA"):
    LIBRARY.impl("replace_rows", _replace_rows, _device)
LIBRARY.impl("paged_attention", attention.paged_attention_cpu, "CPU")
LIBRARY.impl("paged_attention", attention.paged_attention_cuda, "CUDA")
library.register_fake("gpukey::replace_rows", _replace_rows_fake, lib=LIBRARY)
library.register_fake("gpukey::paged_attention", _paged_attention_fake, lib=LIBRARY)
