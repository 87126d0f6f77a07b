"""What the audit needs of an engine: run a prompt, say how many tokens were reused, forget everything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

Embeds = Sequence[tuple[int, torch.Tensor]]
"""(start, rows [num_rows, hidden]): rows stand in place of the embeddings of positions start .. start + num_rows."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What `gpukey audit` was asked; a driver reads what it has a use for."""

    engine: str = "gpukey"
    model: str | None = None
    identity: str = "content"
    block_size: int = 16
    dtype: str | None = None
    device: str = "cpu"
    max_tokens: int = 16
    lora_salt: bool = False
    plugin: bool | None = None


class Driver(Protocol):
    """One engine, greedy decoding, prefix caching on. A driver module has `create(options) -> Driver`."""

    name: str
    """Engine and version, as the report prints it."""
    note: str | None
    """What the reader must know about how this engine was driven, or None."""
    vocab_size: int
    hidden: int
    dtype: torch.dtype
    """Of the rows that it is given."""
    scale: float
    """Standard deviation of an element of the model's own embeddings, so that the rows are of their size."""
    block_size: int

    def run(self, token_ids: list[int], embeds: Embeds | None) -> tuple[list[int] | None, int]:
        """(output ids, prompt tokens reused from the cache). Outputs are None where this driver computes none."""

    def evict(self) -> None:
        """Forgets every cached block."""

    def lora_against_salt(self, token_ids: list[int]) -> int | None:
        """Tokens that a request with the cache salt "X" reuses of one with an adapter named "X"; None in an engine that
        has not both."""

    def close(self) -> None:
        """Frees what the engine holds."""
