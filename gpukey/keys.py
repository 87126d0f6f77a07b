"""Block keys: who may reuse which KV block. An embedding row is just a wide token. Imports without torch."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from blake3 import blake3

from gpukey._checks import U32, U63, integer
from gpukey.overlays import Overlays
from gpukey.root import Root
from gpukey.secret import Secret, check_digest_size, resolve
from gpukey.spans import EmbeddingSpan, MultimodalItem, item_id
from gpukey.token_ids import encode_token_ids

__all__ = ["EmbeddingSpan", "KeyChain", "MultimodalItem", "Root", "block_keys", "item_id"]

ID_BYTES = 8
PIECE = 1 << 16


def block_keys(
    token_ids: Any,
    *,
    block_size: int,
    root: Root,
    secret: Secret | None = None,
    digest_size: int = 16,
    embeds: Iterable[EmbeddingSpan] = (),
    items: Iterable[MultimodalItem] = (),
) -> list[bytes]:
    """Keys of the prompt's full blocks, 32 bytes each.

    `token_ids`: integers 0 to 2^63 - 1, the ids that the model is fed, also under replaced embeddings; 0 where there is
    none. A list or an int64 array. `embeds` and `items` give what else stands at some positions; all of it lies inside
    the prompt. `digest_size`: of the fingerprints in `embeds`.
    """
    chain = KeyChain(
        block_size=block_size,
        root=root,
        secret=secret,
        digest_size=digest_size,
        token_ids=token_ids,
        embeds=embeds,
        items=items,
    )
    chain.require_complete()
    return chain.keys


class KeyChain:
    """The keys of one growing sequence: the same as `block_keys` of all its tokens, one `append` at a time.

    Starts of spans and items are absolute positions. They may lie ahead of the tokens (a prompt that arrives in
    chunks), never in a block that has its key. `append` changes nothing when it raises.
    """

    __slots__ = ("_ids", "_key", "_keys", "_overlays", "_size", "block_size", "root_key")

    def __init__(
        self,
        *,
        block_size: int,
        root: Root,
        secret: Secret | None = None,
        digest_size: int = 16,
        token_ids: Any = (),
        embeds: Iterable[EmbeddingSpan] = (),
        items: Iterable[MultimodalItem] = (),
    ) -> None:
        if not isinstance(root, Root):
            raise TypeError(f"root is a {type(root).__name__}; a gpukey.Root is needed")
        size = check_digest_size(digest_size)
        secret = resolve(secret)
        self.block_size = integer("block_size", block_size, 1, U32)
        self.root_key = root.key(secret, block_size=self.block_size)
        """The parent of block 0, 32 bytes."""
        self._size = struct.pack("<I", self.block_size)
        self._key = secret.derive("block", bytes([size]))
        self._overlays = Overlays(secret, size)
        self._ids = bytearray()
        self._keys: list[bytes] = []
        self.append(token_ids, embeds, items)

    @property
    def keys(self) -> list[bytes]:
        """Keys of the full blocks so far; a copy."""
        return self._keys.copy()

    @property
    def num_tokens(self) -> int:
        """Tokens so far, those of the last, partial block included."""
        return len(self._ids) // ID_BYTES

    def append(
        self, token_ids: Any, embeds: Iterable[EmbeddingSpan] = (), items: Iterable[MultimodalItem] = ()
    ) -> list[bytes]:
        """More tokens, and spans and items of blocks that have no key yet; the keys of the blocks that became full."""
        ids = encode_token_ids(token_ids)
        overlays = self._overlays
        if not (_is_empty(embeds) and _is_empty(items)):
            overlays = overlays.add(embeds, items, len(self._keys) * self.block_size)
        if self.num_tokens + len(ids) // ID_BYTES > U63:
            raise ValueError("token_ids makes the sequence longer than 2^63 - 1 tokens")
        self._overlays = overlays
        self._ids += ids
        first = len(self._keys)
        self._extend()
        return self._keys[first:]

    def truncate(self, num_tokens: int) -> None:
        """Keep the first `num_tokens` tokens and forget what stood after them: rows, items, keys. Blocks that stay full
        keep their keys.

        A span or item that the cut goes through may be given again, unchanged, when its tokens are appended again.
        """
        num_tokens = integer("num_tokens", num_tokens, 0, self.num_tokens)
        del self._ids[num_tokens * ID_BYTES :]
        del self._keys[num_tokens // self.block_size :]
        self._overlays = self._overlays.cut(num_tokens)

    def __copy__(self) -> KeyChain:
        """A chain of its own that goes on from here, for another beam or candidate: neither sees what the other
        appends."""
        other = KeyChain.__new__(KeyChain)
        for name in self.__slots__:
            setattr(other, name, getattr(self, name))
        other._ids, other._keys = self._ids.copy(), self._keys.copy()
        return other

    def __deepcopy__(self, memo: dict[int, Any]) -> KeyChain:
        return self.__copy__()

    def require_complete(self) -> None:
        """ValueError when a span or item goes past the tokens so far."""
        self._overlays.require_before(self.num_tokens)

    def _extend(self) -> None:
        """Key the blocks that are full and have no key."""
        first, last = len(self._keys), self.num_tokens // self.block_size
        if first == last:
            return
        begin, end = first * self.block_size, last * self.block_size
        overlays = self._overlays.encode(begin, end, self.block_size) if self._overlays.stop > begin else {}
        for block in sorted(overlays):
            if len(self._keys) < block:
                self._extend_text(block)
            self._extend_one(overlays[block])
        self._extend_text(last)

    def _extend_text(self, last: int) -> None:
        """Key the blocks before number `last`, which have no overlays."""
        step = self.block_size * ID_BYTES
        if last - len(self._keys) == 1:
            self._extend_one(b"")
        while (first := len(self._keys)) < last:
            # In pieces that fit the allocator's small blocks: fresh pages cost more than the hash.
            stop = min(last, first + max(PIECE // step, 1))
            ids = np.frombuffer(self._ids[first * step : stop * step], "<i8")
            self._keys += text_keys(ids, self._parent(), self._key, self.block_size)

    def _extend_one(self, overlays: bytes) -> None:
        first, step = len(self._keys), self.block_size * ID_BYTES
        message = self._parent() + self._size + self._ids[first * step : (first + 1) * step] + overlays
        self._keys.append(blake3(message, key=self._key).digest())

    def _parent(self) -> bytes:
        return self._keys[-1] if self._keys else self.root_key


def _is_empty(things: Any) -> bool:
    return isinstance(things, (tuple, list)) and not things


def python_text_keys(token_ids: Any, parent: bytes, key: bytes, block_size: int) -> list[bytes]:
    """Keys of blocks of nothing but tokens: int64 [num_blocks × block_size] → 32 bytes each. All messages but their
    parents are made at once."""
    num_blocks = len(token_ids) // block_size
    messages = np.empty((num_blocks, 4 + block_size * ID_BYTES), np.uint8)
    messages[:, :4] = np.frombuffer(struct.pack("<I", block_size), np.uint8)
    messages[:, 4:] = token_ids.view(np.uint8).reshape(num_blocks, block_size * ID_BYTES)
    keys = []
    for (message,) in struct.iter_unpack(f"{messages.shape[1]}s", messages.tobytes()):
        parent = blake3(parent + message, key=key).digest()
        keys.append(parent)
    return keys


def _best_text_keys() -> Callable[[Any, bytes, bytes, int], list[bytes]]:
    """The compiled one where it was built; GPUKEY_PURE_PYTHON=1 leaves it out. The bytes are the same."""
    if os.environ.get("GPUKEY_PURE_PYTHON") == "1":
        return python_text_keys
    try:
        from gpukey import _chain
    except ImportError:
        return python_text_keys
    return _chain.text_keys  # type: ignore[no-any-return, unused-ignore]


text_keys = _best_text_keys()
