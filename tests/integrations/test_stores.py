"""Keys in the forms of LMCache, Mooncake and Dynamo, and the comparison at start."""

from __future__ import annotations

import json

import pytest

from gpukey.integrations import stores
from gpukey.integrations.agreement import require_same_secret
from gpukey.integrations.stores import StoreKeys, dynamo_block_hashes, mooncake_keys, multimodal_uuid
from gpukey.keys import block_keys
from gpukey.root import Root
from gpukey.secret import Secret
from gpukey.spans import EmbeddingSpan, MultimodalItem

ROOT = Root(model="m", dtype="bfloat16", revision="r1", config=b"c" * 32, kv_layout="vllm-0.33 tp1 rank0")
OTHER = Secret(b"another secret of enough bytes")


@pytest.fixture
def store(secret):
    return StoreKeys(ROOT, block_size=4, secret=secret)


def _span(start, *rows):
    return EmbeddingSpan(start, [bytes([row]) * 16 for row in rows])


def test_chain_is_the_engines_own_key_byte_for_byte(store, secret):
    """vllm#42119, sglang#24568, vllm#44250: one key builder for engine and connector."""
    ids, embeds = list(range(16)), [_span(3, 1, 2, 3)]
    expected = block_keys(ids, block_size=4, root=ROOT, secret=secret, embeds=embeds)
    assert store.chain(ids, embeds).keys == expected


@pytest.mark.parametrize("missing", ["revision", "config", "kv_layout"])
def test_a_store_needs_all_that_changes_the_kv(secret, missing):
    with pytest.raises(ValueError, match=missing):
        StoreKeys(ROOT.replace(**{missing: None}), block_size=4, secret=secret)


def test_a_random_secret_is_never_shared_silently():
    """vllm PR#51875."""
    with pytest.raises(ValueError, match="GPUKEY_SECRET"):
        StoreKeys(ROOT, block_size=4, secret=Secret.random())
    with pytest.raises(ValueError, match="random one of this process"):
        require_same_secret([], secret=Secret.random())


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"secret": OTHER}, "key_id"),
        ({"root": ROOT.replace(revision="r2")}, "root"),
        ({"block_size": 8}, "root"),
        ({"digest_size": 32}, "digest_size"),
    ],
)
def test_start_refuses_another_side(store, secret, change, named):
    other = StoreKeys(**{"root": ROOT, "block_size": 4, "secret": secret, **change})
    store.check(json.loads(json.dumps(StoreKeys(ROOT, block_size=4, secret=secret).hello())))
    with pytest.raises(ValueError, match=f"{named} of the other side is"):
        store.check(other.hello())


@pytest.mark.parametrize("hello", [{}, {"scheme": "gpukey2"}, {"scheme": None}])
def test_start_refuses_what_is_no_hello(store, hello):
    with pytest.raises(ValueError, match="scheme of the other side is"):
        store.check(hello)
    with pytest.raises(TypeError, match="hello is a list"):
        store.check([hello])


def test_a_digest_size_is_checked_at_start(secret):
    with pytest.raises(ValueError, match="digest_size is 20; 16 or 32 is needed"):
        StoreKeys(ROOT, block_size=4, secret=secret, digest_size=20)


def test_spans_of_no_rows_add_nothing_to_a_salt_and_long_ones_are_refused(store):
    empty = EmbeddingSpan(9, [])
    assert store.lmcache_cache_salt([empty]) == store.lmcache_cache_salt()
    assert store.lmcache_cache_salt([_span(1, 5), empty]) == store.lmcache_cache_salt(iter([_span(1, 5)]))
    with pytest.raises(ValueError, match="the end of the last span or item is 1099511627777; 1 to 16777216 is needed"):
        store.lmcache_cache_salt([_span(1 << 40, 1)])


def test_hello_gives_neither_secret_nor_root_away(store, secret, secret_bytes):
    said = json.dumps(store.hello())
    assert secret_bytes.decode() not in said
    assert ROOT.key(secret, block_size=4).hex() not in said


def test_lmcache_chunks_are_named_by_their_last_block(store):
    keys = store.chain(range(40)).keys
    assert store.lmcache_chunk_hashes(keys, chunk_size=12) == [keys[2], keys[5], keys[8]]
    assert store.lmcache_chunk_hashes(keys, chunk_size=4) == keys
    assert store.lmcache_chunk_hashes(keys[:2], chunk_size=12) == []
    with pytest.raises(ValueError, match="chunk_size is 10; a multiple of the block size 4"):
        store.lmcache_chunk_hashes(keys, chunk_size=10)


def test_lmcache_salt_binds_every_row_item_position_and_the_root(store, secret):
    item = MultimodalItem(0, 4, "image", bytes(range(16)))
    salts = [
        store.lmcache_cache_salt(),
        store.lmcache_cache_salt([_span(0, 1, 2)]),
        store.lmcache_cache_salt([_span(0, 1, 3)]),
        store.lmcache_cache_salt([_span(1, 1, 2)]),
        store.lmcache_cache_salt([_span(0, 1, 2), _span(8, 1)]),
        store.lmcache_cache_salt(items=[item]),
        StoreKeys(ROOT.replace(cache_salt="t"), block_size=4, secret=secret).lmcache_cache_salt(),
        StoreKeys(ROOT, block_size=4, secret=OTHER).lmcache_cache_salt(),
    ]
    assert len(set(salts)) == len(salts)
    assert store.lmcache_cache_salt([_span(0, 1), _span(1, 2)]) == salts[1]
    for salt in salts:
        assert len(salt) == 64
        assert not set(salt) - set("0123456789abcdef")
    block = store.chain([0, 0], [_span(0, 1, 2)])
    assert salts[1] not in [key.hex() for key in block.keys]


def test_mooncake_names_and_dynamo_hints_stay_distinct_where_halves_are_equal():
    """LMCache#3301, dynamo PR#9561: names keep all 32 bytes; the 64-bit hint is documented as one."""
    low, high = bytes(24) + b"\1" * 8, b"\1" * 8 + bytes(24)
    assert len(set(mooncake_keys([bytes(32), low, high]))) == 3
    assert mooncake_keys([low]) == ["gpukey1-" + "00" * 24 + "01" * 8]
    assert dynamo_block_hashes([bytes(32), high]) == [0, 0x0101010101010101]
    assert all(0 <= one < 1 << 64 for one in dynamo_block_hashes([b"\xff" * 32]))


@pytest.mark.parametrize("function", [mooncake_keys, dynamo_block_hashes])
def test_keys_that_are_no_block_keys_are_refused(function):
    with pytest.raises(ValueError, match=r"keys\[1\] has 16 bytes"):
        function([bytes(32), bytes(16)])
    with pytest.raises(TypeError, match=r"keys\[0\] is a str"):
        function(["00" * 32])
    with pytest.raises(TypeError, match=r"keys\[0\] is a int"):
        function(bytes(32))
    assert function(iter([bytes(32)])) == function([bytes(32)])


def test_uuids_are_whole_item_ids():
    assert multimodal_uuid(bytes(range(32))) == bytes(range(32)).hex()
    with pytest.raises(ValueError, match="has 16 bytes; 32 are needed"):
        multimodal_uuid(bytes(16))
    with pytest.raises(TypeError, match="is a str"):
        multimodal_uuid("00" * 32)


def test_peers_are_compared_by_key_id(secret):
    require_same_secret([secret.key_id] * 3, secret=secret)
    with pytest.raises(ValueError, match=rf"key_ids\[1\] is '{OTHER.key_id}'"):
        require_same_secret([secret.key_id, OTHER.key_id], secret=secret)


def test_a_router_needs_no_torch_and_reads_its_secret_from_a_file(secret_bytes, secret, tmp_path, fresh_python):
    code = """
import sys
sys.modules["torch"] = None
from gpukey import Root
from gpukey.integrations.stores import StoreKeys, mooncake_keys
root = Root(model="m", dtype="bfloat16", revision="r1", config=b"c" * 32, kv_layout="vllm-0.33 tp1 rank0")
print(mooncake_keys(StoreKeys(root, block_size=4).chain(range(9)).keys))
"""
    file = tmp_path / "secret"
    file.write_bytes(secret_bytes + b"\n")
    expected = mooncake_keys(block_keys(range(9), block_size=4, root=ROOT, secret=secret))
    assert fresh_python(code, GPUKEY_SECRET_FILE=str(file)).strip() == str(expected)
    assert "torch" not in vars(stores)


@pytest.mark.parametrize("wrong", [None, {"model": "m"}, "m"])
def test_a_root_is_a_root(wrong, secret):
    with pytest.raises(TypeError, match=f"root is a {type(wrong).__name__}; a gpukey.Root is needed"):
        StoreKeys(wrong, block_size=4, secret=secret)
