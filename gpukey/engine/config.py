"""What an engine is built with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from gpukey._checks import integer, text

Identity = Literal["content", "tokens"]


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Sizes and policies of one engine; sizes are in tokens, blocks or requests as named.

    `identity="content"` keys replaced rows by their fingerprints. `"tokens"` keys token ids alone: it is blind to
    embeddings, gives wrong outputs on purpose, and exists for the audit's demonstration only.
    """

    block_size: int = 16
    num_blocks: int = 512
    max_num_batched_tokens: int = 2048
    max_num_seqs: int = 64
    identity: Identity = "content"
    prefix_caching: bool = True
    digest_size: int = 16
    weights_version: str = "0"
    model_name: str | None = None

    def __post_init__(self) -> None:
        for name in ("block_size", "num_blocks", "max_num_batched_tokens", "max_num_seqs"):
            object.__setattr__(self, name, integer(name, getattr(self, name), 1))
        if self.identity not in get_args(Identity):
            raise ValueError(f"identity is {self.identity!r}; 'content' or 'tokens' is needed")
        if self.digest_size not in (16, 32):
            raise ValueError(f"digest_size is {self.digest_size!r}; 16 or 32 is needed")
        if not isinstance(self.prefix_caching, bool):
            raise TypeError(f"prefix_caching is a {type(self.prefix_caching).__name__}; a bool is needed")
        for name in ("weights_version", "model_name"):
            value = getattr(self, name)
            if name != "model_name" or value is not None:
                object.__setattr__(self, name, text(name, value))
