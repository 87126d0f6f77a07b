"""The compiled key chain (csrc/chain_module.cpp)."""

from collections.abc import Sequence

from typing_extensions import Buffer

def text_keys(token_ids: Sequence[int] | Buffer, parent: bytes, key: bytes, block_size: int) -> list[bytes]:
    """Keys of all full blocks, 32 bytes each; TypeError or ValueError names the id that is none."""

def encode_ids(token_ids: Sequence[int] | Buffer) -> bytes:
    """The ids as a block key hashes them, 8 bytes each; the same errors."""
