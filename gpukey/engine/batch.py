"""One forward's input: the new tokens of many requests, flattened, with where each reads and writes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from gpukey.engine.request import Request

Scheduled = tuple[Request, int]
"""A request and how many of its tokens run in this step."""


@dataclass
class Batch:
    """Index tensors are int64 on the model's device; shapes as in gpukey/engine/attention.py."""

    token_ids: torch.Tensor  # [num_tokens]
    positions: torch.Tensor  # [num_tokens], index in the sequence
    rows: torch.Tensor | None  # [num_rows, hidden], what replaces the embeddings of the tokens row_index names
    row_index: torch.Tensor | None  # [num_rows]
    slots: torch.Tensor
    block_tables: torch.Tensor
    query_start: torch.Tensor
    context_lens: torch.Tensor
    output_index: torch.Tensor  # [num_outputs], tokens whose logits are wanted
    num_decodes: int
    max_query: int
    max_context: int


def order(scheduled: list[Scheduled]) -> list[Scheduled]:
    """Single-token requests first, as attention wants them."""
    return sorted(scheduled, key=lambda entry: entry[1] > 1)


def wants_output(entry: Scheduled) -> bool:
    """Whether this step reaches the request's last known token, so that the next one can be sampled."""
    request, count = entry
    return request.num_computed + count == request.num_tokens


def rows_between(request: Request, start: int, stop: int) -> list[tuple[int, torch.Tensor]]:
    """(first position, rows) of every replaced run inside positions start .. stop."""
    runs = []
    for span in request.spans:
        low, high = max(start, span.start), min(stop, span.stop)
        if low < high:
            runs.append((low, span.rows[low - span.start : high - span.start]))
    return runs


def build_batch(scheduled: list[Scheduled], block_size: int, device: torch.device) -> Batch:
    """The batch of `scheduled`, which is in the order that `order` gives."""
    ids: list[int] = []
    positions, slots, starts, lens, outputs, tables = [], [], [0], [], [], []
    rows: list[torch.Tensor] = []
    row_index: list[np.ndarray] = []
    for request, count in scheduled:
        start, stop = request.num_computed, request.num_computed + count
        position = np.arange(start, stop)
        table = np.asarray(request.block_ids, dtype=np.int64)
        for first, run in rows_between(request, start, stop):
            rows.append(run)
            row_index.append(np.arange(len(run)) + (len(ids) + first - start))
        ids += request.tokens(start, stop)
        positions.append(position)
        slots.append(table[position // block_size] * block_size + position % block_size)
        tables.append(table[: -(-stop // block_size)])
        starts.append(len(ids))
        lens.append(stop)
        if wants_output((request, count)):
            outputs.append(len(ids) - 1)
    padded = np.zeros((len(tables), max(map(len, tables))), dtype=np.int64)
    for i, table in enumerate(tables):
        padded[i, : len(table)] = table

    def put(array: np.ndarray | list[int]) -> torch.Tensor:
        return torch.from_numpy(np.asarray(array, dtype=np.int64)).to(device, non_blocking=True)

    return Batch(
        token_ids=put(ids),
        positions=put(np.concatenate(positions)),
        rows=(rows[0] if len(rows) == 1 else torch.cat(rows)) if rows else None,
        row_index=put(np.concatenate(row_index)) if rows else None,
        slots=put(np.concatenate(slots)),
        block_tables=put(padded),
        query_start=put(starts),
        context_lens=put(lens),
        output_index=put(outputs),
        num_decodes=sum(count == 1 for _, count in scheduled),
        max_query=max(count for _, count in scheduled),
        max_context=max(lens),
    )
