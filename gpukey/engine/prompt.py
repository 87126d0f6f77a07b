"""What a caller asks: token ids, rows that replace some of their embeddings, and whatever else fixes the KV."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gpukey._checks import integer
from gpukey.checks import check_stored

if TYPE_CHECKING:
    from gpukey.keys import MultimodalItem


@dataclass(frozen=True)
class EmbedSpan:
    """Rows [num_rows, hidden] that replace the embeddings of positions start .. start + num_rows."""

    start: int
    rows: torch.Tensor
    attention: str = "causal"
    layout: bytes = b""


@dataclass(frozen=True)
class Prompt:
    """Token ids as the model is fed them (0 where there is none, under replaced rows), with `embeds` as (start, rows)
    pairs or `EmbedSpan`s.

    `cache_salt` separates tenants, `lora_name` names a loaded adapter, `items` are bound into the block keys
    (gpukey.MultimodalItem).
    """

    token_ids: Sequence[int]
    embeds: Sequence[EmbedSpan | tuple[int, torch.Tensor]] = ()
    cache_salt: str | bytes | None = field(default=None, repr=False)
    lora_name: str | None = None
    items: Sequence[MultimodalItem] = field(default=(), kw_only=True)


def checked_ids(token_ids: Any, vocab_size: int) -> list[int]:
    """Non-empty list of ints below `vocab_size`."""
    if isinstance(token_ids, (str, bytes)):
        raise TypeError(f"token_ids is a {type(token_ids).__name__}; a sequence of integers is needed")
    if isinstance(token_ids, torch.Tensor):
        token_ids = token_ids.detach().cpu().numpy()
    if isinstance(token_ids, np.ndarray):
        if token_ids.ndim != 1 or token_ids.dtype.kind not in "iu":
            raise TypeError(f"token_ids is {token_ids.ndim}-D of {token_ids.dtype}; 1-D of an integer dtype is needed")
        token_ids = token_ids.tolist()
    ids = list(token_ids)
    if not ids:
        raise ValueError("token_ids is empty; at least one token is needed")
    if all(type(token) is int for token in ids) and min(ids) >= 0 and max(ids) < vocab_size:
        return ids
    return [integer(f"token_ids[{i}]", token, 0, vocab_size - 1) for i, token in enumerate(ids)]


def checked_spans(embeds: Any, num_tokens: int, hidden: int) -> list[EmbedSpan]:
    """Spans sorted by start, without the empty ones; rows are [num_rows, hidden], inside the prompt, and do not
    overlap.
    """
    spans = []
    for i, entry in enumerate(embeds):
        span = entry if isinstance(entry, EmbedSpan) else EmbedSpan(*entry)
        name = f"embeds[{i}]"
        start = integer(f"{name}.start", span.start)
        rows = span.rows
        if not isinstance(rows, torch.Tensor):
            raise TypeError(f"{name}.rows is a {type(rows).__name__}; a torch.Tensor is needed")
        if rows.is_nested or rows.layout != torch.strided or rows.device.type == "meta" or rows.is_quantized:
            raise TypeError(f"{name}.rows is {rows.layout} on {rows.device.type}; a strided tensor with data is needed")
        if not rows.dtype.is_floating_point:
            raise TypeError(f"{name}.rows is of {rows.dtype}; a floating-point dtype is needed")
        if rows.dim() != 2 or rows.shape[1] != hidden:
            raise ValueError(f"{name}.rows has shape {list(rows.shape)}; [num_rows, {hidden}] is needed")
        check_stored(f"{name}.rows", rows)
        if start + rows.shape[0] > num_tokens:
            raise ValueError(
                f"{name} covers positions {start} to {start + rows.shape[0]}; the prompt has {num_tokens} tokens"
            )
        if span.attention != "causal":
            raise ValueError(
                f"{name}.attention is {span.attention!r}; this model attends causally, so only 'causal' would be true"
            )
        if not isinstance(span.layout, bytes):
            raise TypeError(f"{name}.layout is a {type(span.layout).__name__}; bytes are needed")
        if rows.shape[0]:
            spans.append(EmbedSpan(start, rows, span.attention, span.layout))
    spans.sort(key=lambda span: span.start)
    for before, after in itertools.pairwise(spans):
        if before.start + before.rows.shape[0] > after.start:
            raise ValueError(
                f"embeds overlap: positions {before.start} to {before.start + before.rows.shape[0]}, then {after.start}"
            )
    return spans
