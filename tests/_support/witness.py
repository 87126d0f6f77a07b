"""A stand-in for a transformers model: exact, fast, and unforgiving about which slots are read.

Each KV slot stores one 64-bit number. A token's number is a hash of its id or row, its position, the adapter, the
weights' epoch and every slot before it in its sequence, read through the block table; it is written to the slot that
the batch names. The next token is a hash of all of them. A slot that is stale, shifted or another request's changes
every later token.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch

MASK = (1 << 64) - 1
POISON = 0xDEADBEEFDEADBEEF


def mix(*values: int) -> int:
    """64 bits that depend on every bit and on the order."""
    state = 0x9E3779B97F4A7C15
    for value in values:
        state = ((state ^ (value & MASK)) * 0xBF58476D1CE4E5B9) & MASK
        state ^= state >> 29
        state = (state * 0x94D049BB133111EB) & MASK
        state ^= state >> 32
    return state


def digest(data: bytes) -> int:
    """64 bits of arbitrary bytes."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


class Witness:
    """A `Runner` (gpukey/engine/model.py). `fail_at` names the forwards, counted from 0, that raise halfway through
    their writes.
    """

    def __init__(
        self, *, vocab_size: int = 50, hidden: int = 4, eos: tuple[int, ...] = (), max_positions: int | None = None
    ) -> None:
        self.vocab_size, self.hidden = vocab_size, hidden
        self.dtype, self.device = torch.float64, torch.device("cpu")
        self.max_positions = max_positions
        self.eos_token_ids = frozenset(eos)
        self.identity: dict[str, Any] = {"model": "witness", "dtype": "float64", "config": b""}
        self.epoch = 0
        self.fail_at: frozenset[int] = frozenset()
        self.num_forwards = 0
        self.adapters: dict[str, int] = {}

    def allocate(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.pool = [POISON] * (num_blocks * block_size)

    def finite(self, block_ids: list[int]) -> list[bool]:
        return [True] * len(block_ids)

    def load_adapter(self, name: str, path: str, scale: float | None) -> None:
        self.adapters[name] = digest(repr((path, scale)).encode())

    def delete_adapter(self, name: str) -> None:
        del self.adapters[name]

    def forward(self, batch: Any, adapter: str | None) -> torch.Tensor:
        self.num_forwards += 1
        fails = self.num_forwards - 1 in self.fail_at
        who = mix(self.epoch, 0 if adapter is None else self.adapters[adapter])
        rows = {}
        if batch.rows is not None:
            assert batch.rows.shape == (len(batch.row_index), self.hidden)
            raw = batch.rows.numpy()
            rows = {index: digest(raw[i].tobytes()) for i, index in enumerate(batch.row_index.tolist())}
        ids, positions, slots = batch.token_ids.tolist(), batch.positions.tolist(), batch.slots.tolist()
        starts, lens, tables = batch.query_start.tolist(), batch.context_lens.tolist(), batch.block_tables.tolist()
        finals = {}
        for i, length in enumerate(lens):
            if fails and i >= len(lens) // 2:
                raise RuntimeError("the witness was told to fail")
            first, last = starts[i], starts[i + 1]
            assert i >= batch.num_decodes or last - first == 1
            state = 0
            for position in range(length):
                j = first + position - (length - (last - first))
                if j >= first:
                    content = rows[j] if j in rows else ids[j]
                    self.pool[slots[j]] = mix(who, j in rows, content, positions[j], state)
                block, offset = divmod(position, self.block_size)
                state = mix(state, self.pool[tables[i][block] * self.block_size + offset])
            finals[last - 1] = state
        logits = np.zeros((len(batch.output_index), self.vocab_size))
        for row, index in zip(logits, batch.output_index.tolist(), strict=True):
            row[finals[index] % self.vocab_size] = 4.0
            row[(finals[index] >> 32) % self.vocab_size] += 3.0
        return torch.from_numpy(logits)
