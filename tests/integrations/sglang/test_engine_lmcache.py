"""LMCache's own hasher and object keys, from its wheel without a GPU: one embedding row apart is one key without our salt, two with it."""

from __future__ import annotations

import pytest

from gpukey.integrations.stores import StoreKeys
from gpukey.root import Root
from gpukey.spans import EmbeddingSpan

pytestmark = pytest.mark.engine
ROOT = Root(model="m", dtype="bfloat16", revision="r1", config=b"c" * 32, kv_layout="vllm-0.32 tp1 rank0")


@pytest.fixture
def lmcache():
    """(token ids, salt) -> LMCache's keys of the whole chunks of 16 tokens."""
    from lmcache.v1.distributed.api import ObjectKey
    from lmcache.v1.multiprocess.token_hasher import TokenHasher

    hasher = TokenHasher(chunk_size=16)

    def keys(token_ids, salt=""):
        return [
            ObjectKey(chunk_hash=one, model_name="m", kv_rank=0, cache_salt=salt)
            for one in hasher.compute_chunk_hashes(token_ids)
        ]

    return keys


def _rows(last):
    return [EmbeddingSpan(8, [bytes([row]) * 16 for row in (*range(30), last)])]


def test_one_row_apart_is_two_keys(lmcache, secret):
    store = StoreKeys(ROOT, block_size=16, secret=secret)
    ids = [0] * 64
    assert lmcache(ids) == lmcache(ids)
    ours, other = (lmcache(ids, store.lmcache_cache_salt(_rows(last))) for last in (30, 31))
    assert len(ours) == 4
    assert not set(ours) & set(other)
    assert ours == lmcache(ids, store.lmcache_cache_salt(_rows(30)))


def test_object_keys_take_whole_block_keys(secret):
    from lmcache.v1.distributed.api import ObjectKey

    store = StoreKeys(ROOT, block_size=16, secret=secret)
    chunks = [store.lmcache_chunk_hashes(store.chain([0] * 64, _rows(last)).keys, chunk_size=32) for last in (30, 31)]
    keys = [[ObjectKey(chunk_hash=one, model_name="m", kv_rank=0) for one in chunk] for chunk in chunks]
    # Position 38 holds the row that differs: the first chunk of 32 tokens is shared, the second is not.
    assert keys[0][0] == keys[1][0]
    assert keys[0][1] != keys[1][1]
    assert keys[0][1].to_encoded_object_key().to_object_key() == keys[0][1]
