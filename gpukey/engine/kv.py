"""The paged pools that hold keys and values."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class LayerShape:
    """Elements of one token's key and value in one attention layer."""

    kv_heads: int
    key_dim: int
    value_dim: int


class KVPool:
    """For each attention layer, `keys[layer]` and `values[layer]`: [num_blocks, block_size, kv_heads, dim].

    A slot is block * block_size + offset. Pools start as zeros: what a bug would read is then finite, and tests poison
    them.
    """

    def __init__(
        self,
        layers: dict[int, LayerShape],
        *,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        def pool(heads: int, dim: int) -> torch.Tensor:
            return torch.zeros(num_blocks, block_size, heads, dim, dtype=dtype, device=device)

        self.keys = {i: pool(shape.kv_heads, shape.key_dim) for i, shape in layers.items()}
        self.values = {i: pool(shape.kv_heads, shape.value_dim) for i, shape in layers.items()}

    @property
    def nbytes(self) -> int:
        """Bytes of all pools."""
        return sum(pool.nbytes for pools in (self.keys, self.values) for pool in pools.values())
