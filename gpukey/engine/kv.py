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

    def finite(self, block_ids: list[int]) -> list[bool]:
        """Which of the blocks, all full, hold neither NaN nor infinity in any layer (a sum that overflows counts too)."""
        index = torch.tensor(block_ids, device=next(iter(self.keys.values())).device)
        sums = [
            pool.index_select(0, index).flatten(1).sum(1)
            for pools in (self.keys, self.values)
            for pool in pools.values()
        ]
        result: list[bool] = torch.isfinite(torch.stack(sums)).all(0).tolist()
        return result

    @property
    def nbytes(self) -> int:
        """Bytes of all pools."""
        return sum(pool.nbytes for pools in (self.keys, self.values) for pool in pools.values())
