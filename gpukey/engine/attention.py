"""Attention over paged pools, for a flattened batch of sequences.

Shapes everywhere: query [num_tokens, heads, dim]; key, value [num_tokens, kv_heads, dim]; pools [num_blocks,
block_size, kv_heads, dim]; slots [num_tokens] = block * block_size + offset of each new token; block_tables [num_seqs,
max_blocks]; query_start [num_seqs + 1]; context_lens [num_seqs], this step's tokens included. The first `num_decodes`
sequences have one new token each.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

Tensor = torch.Tensor
VARLEN_PAGE = 256  # the paged FlashAttention kernels take blocks of a multiple of this many tokens


def write_pools(key: Tensor, value: Tensor, key_pool: Tensor, value_pool: Tensor, slots: Tensor) -> None:
    """Store each new token's key and value in its slot."""
    key_pool.view(-1, *key_pool.shape[2:]).index_copy_(0, slots, key)
    value_pool.view(-1, *value_pool.shape[2:]).index_copy_(0, slots, value)


def slots_of(block_tables: Tensor, lens: Tensor, longest: int, block_size: int) -> Tensor:
    """Slots of each sequence's first `longest` positions, [num_seqs, longest].

    Behind its end a sequence repeats its own last slot: a masked key still meets the arithmetic, and 0 * NaN is NaN,
    so what pads one request must never be another one's KV.
    """
    position = torch.minimum(torch.arange(longest, device=lens.device), lens[:, None] - 1)
    return block_tables.gather(1, position // block_size) * block_size + position % block_size


def gather(pool: Tensor, slots: Tensor) -> Tensor:
    """Slots [num_seqs, length] of a pool as [num_seqs, kv_heads, length, dim]."""
    rows = pool.view(-1, *pool.shape[2:]).index_select(0, slots.reshape(-1))
    return rows.view(*slots.shape, *pool.shape[2:]).transpose(1, 2)


def decode(
    query: Tensor, key_pool: Tensor, value_pool: Tensor, tables: Tensor, lens: Tensor, longest: int, scale: float
) -> Tensor:
    """One query a sequence, all sequences in one padded call; the heads of a group stand as queries of their shared key
    head.
    """
    num_seqs, heads, dim = query.shape
    kv_heads = key_pool.shape[2]
    slots = slots_of(tables, lens, longest, key_pool.shape[1])
    keys, values = gather(key_pool, slots), gather(value_pool, slots)
    mask = (torch.arange(longest, device=lens.device) < lens[:, None])[:, None, None, :]
    out = sdpa(query.view(num_seqs, kv_heads, heads // kv_heads, dim), keys, values, attn_mask=mask, scale=scale)
    return out.reshape(num_seqs, heads, values.shape[-1])


def prefill_padded(
    query: Tensor,
    key_pool: Tensor,
    value_pool: Tensor,
    tables: Tensor,
    query_start: Tensor,
    lens: Tensor,
    max_query: int,
    longest: int,
    scale: float,
) -> Tensor:
    """Many queries a sequence, all sequences in one padded call without a host sync; query_start is relative to
    `query`.
    """
    device, heads = query.device, query.shape[1]
    step = torch.arange(max_query, device=device)
    counts = query_start[1:] - query_start[:-1]
    rows = query_start[:-1, None] + step
    padded = query[rows.clamp(max=query.shape[0] - 1)].transpose(1, 2)
    position = (lens - counts)[:, None] + step
    mask = torch.arange(longest, device=device) <= position[:, :, None]
    slots = slots_of(tables, lens, longest, key_pool.shape[1])
    keys, values = gather(key_pool, slots), gather(value_pool, slots)
    out = sdpa(padded, keys, values, attn_mask=mask[:, None], scale=scale, enable_gqa=heads != keys.shape[1])
    # Padding queries all land on one spare row behind the real ones.
    target = torch.where(step < counts[:, None], rows, query.shape[0])
    flat = query.new_empty((query.shape[0] + 1, heads, values.shape[-1]))
    flat[target] = out.transpose(1, 2)
    return flat[:-1]


def prefill_one(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_pool: Tensor,
    value_pool: Tensor,
    table: Tensor,
    context: int,
    scale: float,
) -> Tensor:
    """New tokens of one sequence; reads the pools only where there is something older than `key` and `value`."""
    count = query.shape[0]
    mask = None
    keys, values = key.transpose(0, 1)[None], value.transpose(0, 1)[None]
    if context > count:
        position, block_size = torch.arange(context, device=query.device), key_pool.shape[1]
        slots = (table[position // block_size] * block_size + position % block_size)[None]
        keys, values = gather(key_pool, slots), gather(value_pool, slots)
        mask = torch.ones(count, context, dtype=torch.bool, device=query.device).tril(context - count)
    gqa = query.shape[1] != key.shape[1]
    out = sdpa(query.transpose(0, 1)[None], keys, values, mask, is_causal=mask is None, scale=scale, enable_gqa=gqa)
    return out[0].transpose(0, 1)


def paged_attention_cpu(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_pool: Tensor,
    value_pool: Tensor,
    slots: Tensor,
    block_tables: Tensor,
    query_start: Tensor,
    context_lens: Tensor,
    num_decodes: int,
    max_query: int,
    max_context: int,
    scale: float,
) -> Tensor:
    """Decodes in one padded call, prefills one after another (their work is in the matrix products, not in the
    launches).
    """
    write_pools(key, value, key_pool, value_pool, slots)
    out = query.new_empty((query.shape[0], query.shape[1], value.shape[2]))
    starts, lens = query_start.tolist(), context_lens.tolist()
    if num_decodes:
        longest, n = max(lens[:num_decodes]), num_decodes
        out[:n] = decode(query[:n], key_pool, value_pool, block_tables[:n], context_lens[:n], longest, scale)
    for i in range(num_decodes, len(lens)):
        new = slice(starts[i], starts[i + 1])
        out[new] = prefill_one(query[new], key[new], value[new], key_pool, value_pool, block_tables[i], lens[i], scale)
    return out


def varlen_attn() -> Callable[..., Any] | None:
    """torch's variable-length attention with block tables, where this torch has it."""
    try:
        module = importlib.import_module("torch.nn.attention.varlen")
    except ImportError:
        return None
    function = module.varlen_attn
    return function if "block_table" in (function.__kwdefaults__ or {}) else None


def paged_attention_cuda(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_pool: Tensor,
    value_pool: Tensor,
    slots: Tensor,
    block_tables: Tensor,
    query_start: Tensor,
    context_lens: Tensor,
    num_decodes: int,
    max_query: int,
    max_context: int,
    scale: float,
) -> Tensor:
    """torch's paged varlen kernel where it serves, else one padded call for decodes and one for prefills; never a host
    sync.
    """
    write_pools(key, value, key_pool, value_pool, slots)
    kernel = varlen_attn()
    half = query.dtype in (torch.float16, torch.bfloat16)
    if kernel is not None and half and key_pool.shape[1] % VARLEN_PAGE == 0:
        # num_splits=1: a sequence's output must not depend on what else is in the batch.
        varlen_out: Tensor = kernel(
            query,
            key_pool,
            value_pool,
            query_start.int(),
            None,
            max_query,
            max_context,
            scale=scale,
            window_size=(-1, 0),
            enable_gqa=True,
            seqused_k=context_lens.int(),
            block_table=block_tables.int(),
            num_splits=1,
        )
        return varlen_out
    return padded_attention(
        query, key_pool, value_pool, block_tables, query_start, context_lens, num_decodes, max_query, max_context, scale
    )


def padded_attention(
    query: Tensor,
    key_pool: Tensor,
    value_pool: Tensor,
    block_tables: Tensor,
    query_start: Tensor,
    context_lens: Tensor,
    num_decodes: int,
    max_query: int,
    max_context: int,
    scale: float,
) -> Tensor:
    """The fallback on a GPU; runs on a CPU as well, where the tests compare it with the loop above."""
    n, parts = num_decodes, []
    if n:
        parts.append(decode(query[:n], key_pool, value_pool, block_tables[:n], context_lens[:n], max_context, scale))
    if n < context_lens.shape[0]:
        tables, starts, lens = block_tables[n:], query_start[n:] - n, context_lens[n:]
        parts.append(
            prefill_padded(query[n:], key_pool, value_pool, tables, starts, lens, max_query, max_context, scale)
        )
    return torch.cat(parts) if len(parts) > 1 else parts[0]
