"""gpukey's block keys as shared stores and routers take them: LMCache, Mooncake, Dynamo. Runs without torch and without any of them.

docs/stores.md says which field of each takes what, how wide it is and what its limits are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from gpukey._checks import U32, integer
from gpukey.keys import KeyChain
from gpukey.root import Root
from gpukey.secret import Secret, check_digest_size, resolve
from gpukey.spans import EmbeddingSpan, MultimodalItem

KEY_BYTES = 32
SCHEME = "gpukey1"
LONGEST = 1 << 24
"""Tokens of the longest prompt that a salt is made for."""


class StoreKeys:
    """One engine's or router's side of a shared store: what it announces at start, and keys in each store's form.

    Needs a configured secret, and a root with `weights_version` or `revision`, `config` and `kv_layout` (ValueError names what is missing): a
    store outlives the process, so nothing that changes the KV may be left out.
    """

    def __init__(self, root: Root, *, block_size: int, secret: Secret | None = None, digest_size: int = 16) -> None:
        if not isinstance(root, Root):
            raise TypeError(f"root is a {type(root).__name__}; a gpukey.Root is needed")
        self.secret = resolve(secret)
        self.root = root.require_shared(self.secret)
        self.block_size = integer("block_size", block_size, 1, U32)
        self.digest_size = check_digest_size(digest_size)

    def hello(self) -> dict[str, str]:
        """What to send to the other side at start. Public: it tells secrets and roots apart and gives neither away."""
        return {
            "scheme": SCHEME,
            "key_id": self.secret.key_id,
            "root": self.root.key(self.secret, block_size=self.block_size)[:8].hex(),
            "digest_size": str(self.digest_size),
        }

    def check(self, hello: Mapping[str, Any]) -> None:
        """ValueError, naming the field, unless the other side's `hello()` equals ours: its keys would never match, or mean another model.

        The comparison guards against mistakes, not against a liar: whoever holds no secret can repeat a hello, and still makes no key.
        """
        if not isinstance(hello, Mapping):
            raise TypeError(f"hello is a {type(hello).__name__}; what hello() of the other side returned is needed")
        for name, mine in self.hello().items():
            if hello.get(name) != mine:
                raise ValueError(
                    f"{name} of the other side is {hello.get(name)!r}; {mine!r} is needed: {_REASONS[name]}"
                )

    def chain(
        self, token_ids: Any = (), embeds: Iterable[EmbeddingSpan] = (), items: Iterable[MultimodalItem] = ()
    ) -> KeyChain:
        """A `KeyChain` of one sequence under this root."""
        return KeyChain(
            block_size=self.block_size,
            root=self.root,
            secret=self.secret,
            digest_size=self.digest_size,
            token_ids=token_ids,
            embeds=embeds,
            items=items,
        )

    def lmcache_chunk_hashes(self, keys: Iterable[bytes], *, chunk_size: int = 256) -> list[bytes]:
        """`ObjectKey.chunk_hash` of each whole chunk of `chunk_size` tokens, 32 bytes: the key of its last block, which names all before."""
        chunk_size = integer("chunk_size", chunk_size, 1, U32)
        if chunk_size % self.block_size:
            raise ValueError(f"chunk_size is {chunk_size}; a multiple of the block size {self.block_size} is needed")
        step = chunk_size // self.block_size
        return _checked(keys)[step - 1 :: step]

    def lmcache_cache_salt(self, embeds: Iterable[EmbeddingSpan] = (), items: Iterable[MultimodalItem] = ()) -> str:
        """`cache_salt` for a server that hashes token ids itself: 64 hex digits (at most 128 characters, no @ / \\ NUL are allowed there).

        It binds the root and every row and item with its position, for the whole request: prompts share only when all of these are equal.
        """
        embeds, items = [span for span in embeds if span.num_rows], list(items)
        parts: list[EmbeddingSpan | MultimodalItem] = [*embeds, *items]
        end = integer(
            "the end of the last span or item", max((p.start + p.length for p in parts), default=1), 1, LONGEST
        )
        # One block as long as the last span: its key holds every overlay at its place. Ids are the store's own part, so none stands here.
        chain = KeyChain(
            block_size=end,
            root=self.root.replace(**{"x-gpukey": "lmcache cache_salt"}),
            secret=self.secret,
            digest_size=self.digest_size,
            token_ids=np.zeros(end, np.int64),
            embeds=embeds,
            items=items,
        )
        return chain.keys[0].hex()


_REASONS = {
    "scheme": "another version of the scheme spells other bytes",
    "key_id": "another secret; both sides read GPUKEY_SECRET_FILE with the same content",
    "root": "another model, weights, configuration, layout, salt or block size",
    "digest_size": "fingerprints of another size give other keys",
}


def mooncake_keys(keys: Iterable[bytes]) -> list[str]:
    """Object names for `store.put(name, …)`: "gpukey1-" and 64 hex digits. The root's `kv_layout` tells ranks apart."""
    return [f"{SCHEME}-{key.hex()}" for key in _checked(keys)]


def dynamo_block_hashes(keys: Iterable[bytes]) -> list[int]:
    """`block_hash` and `parent_hash` of KV events: the first 64 bits. A hint for routing only: whoever reuses a block compares all 32 bytes."""
    return [int.from_bytes(key[:8], "little") for key in _checked(keys)]


def multimodal_uuid(identifier: bytes) -> str:
    """64 hex digits from a 32-byte item id, for `multi_modal_uuids`. Dynamo keeps the first 16 digits, LMCache's adapter in vLLM 16 bits."""
    if not isinstance(identifier, bytes):
        raise TypeError(
            f"identifier is a {type(identifier).__name__}; the bytes of item_id(…, digest_size=32) are needed"
        )
    if len(identifier) != KEY_BYTES:
        raise ValueError(f"identifier has {len(identifier)} bytes; 32 are needed: item_id(…, digest_size=32)")
    return identifier.hex()


def _checked(keys: Iterable[bytes]) -> list[bytes]:
    keys = list(keys)
    for i, key in enumerate(keys):
        if not isinstance(key, bytes):
            raise TypeError(f"keys[{i}] is a {type(key).__name__}; block keys of {KEY_BYTES} bytes are needed")
        if len(key) != KEY_BYTES:
            raise ValueError(f"keys[{i}] has {len(key)} bytes; block keys of {KEY_BYTES} bytes are needed")
    return keys
