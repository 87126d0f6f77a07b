"""gpukey.cache.PrefixCache, one behaviour at a time. Every test ends with `check()`, which verifies all of the
books."""

import re

import numpy as np
import pytest

from gpukey.cache import Hit, NoFreeBlocks, PrefixCache
from gpukey.keys import Root, block_keys
from gpukey.secret import Secret

SECRET = Secret(b"a secret for tests of the cache")
ROOT = Root(model="m", dtype="d")


def key(*path):
    """A key that stands for a chain of blocks: 32 bytes."""
    return bytes(path).ljust(32, b"\0")


def chain(length, branch=1):
    return [key(*[branch] * (i + 1)) for i in range(length)]


def publish(cache, keys, blocks, first=0):
    """Insert every block under its key, as an engine does; the blocks to use from now on."""
    blocks = list(blocks)
    for i in range(first, len(keys)):
        blocks[i] = cache.insert(keys[i], blocks[i], blocks[i - 1] if i else None)
        cache.check()
    return blocks


def run(cache, keys, num_tokens=None):
    """A request from `match` to `insert`: all of its blocks, and the hit."""
    num_tokens = len(keys) * cache.block_size + 1 if num_tokens is None else num_tokens
    hit = cache.match(keys, num_tokens)
    blocks = [*hit.block_ids, *cache.allocate(len(keys) - len(hit.block_ids))]
    return publish(cache, keys, blocks, len(hit.block_ids)), hit


@pytest.fixture
def cache():
    made = PrefixCache(8, 4)
    yield made
    made.check()


def test_cold_then_warm(cache):
    blocks, hit = run(cache, chain(3))
    assert hit == Hit([], 0)
    assert len(set(blocks)) == 3
    cache.free(blocks)
    assert (cache.num_free, cache.num_cached) == (8, 3)
    again, hit = run(cache, chain(3))
    assert again == blocks
    assert hit == Hit(blocks, 12)
    cache.free(again)


def test_the_longest_prefix_is_found(cache):
    blocks, _ = run(cache, chain(3))
    fork = [*chain(2), key(9)]
    assert cache.match(fork, 12).block_ids == blocks[:2]
    assert cache.match([key(9), *chain(3)[1:]], 12).block_ids == []
    assert cache.match([], 3).block_ids == []


@pytest.mark.parametrize(("num_tokens", "cached"), [(12, 8), (13, 12), (15, 12)])
def test_one_token_is_always_left_to_run(cache, num_tokens, cached):
    run(cache, chain(3))
    assert cache.match(chain(3), num_tokens).num_cached_tokens == cached


def test_no_tokens_no_hit(cache):
    """vllm#53495: an empty prompt has 0 hits, never a negative count."""
    run(cache, chain(1))
    for num_tokens in (0, 1):
        assert cache.match([], num_tokens) == Hit([], 0)
    assert cache.match(chain(1), 4) == Hit([], 0)


def test_a_partial_block_is_never_hit(cache):
    """vllm#49125: its block has no key until it is inserted, and goes back free."""
    partial = cache.allocate(1)
    assert cache.key_of(partial[0]) is None
    cache.free(partial)
    assert (cache.num_cached, cache.match(chain(1), 5).block_ids) == (0, [])


def test_equal_prompts_in_one_step_keep_one_block(cache):
    """nano-vllm#219: two identical prompts both insert: one block each is kept, none leaks, counts return to zero."""
    one, other = cache.allocate(2), cache.allocate(2)
    kept = publish(cache, chain(2), one)
    assert kept == one
    assert publish(cache, chain(2), other) == one
    assert cache.stats.duplicates == 2
    assert cache.num_free == 6
    cache.free(one)
    assert cache.num_free == 6
    cache.free(one)
    assert cache.num_free == 8
    assert cache.match(chain(2), 9).block_ids == one


def test_a_duplicate_of_an_idle_block_takes_it_into_use(cache):
    one, other = cache.allocate(1), cache.allocate(1)
    publish(cache, chain(1), one)
    cache.free(one)
    assert publish(cache, chain(1), other) == one
    assert cache.num_free == 7
    with pytest.raises(ValueError, match="not in use"):
        cache.insert(key(5), other[0], None)


def test_the_same_insert_twice_changes_nothing(cache):
    blocks, _ = run(cache, chain(1))
    assert cache.insert(chain(1)[0], blocks[0], None) == blocks[0]
    assert (cache.stats.inserted, cache.stats.duplicates) == (1, 0)


def test_a_recycled_block_is_unreachable_under_its_old_key():
    """kvcached#362: a small pool, refilled 200 times; an old key never finds new content."""
    cache = PrefixCache(2, 4)
    for i in range(1, 201):
        blocks, hit = run(cache, chain(2, i))
        assert hit.block_ids == []
        for old in range(max(1, i - 3), i):
            assert cache.match(chain(2, old), 9).block_ids == []
        cache.free(blocks)
        cache.check()
    assert cache.stats.evictions == 398


def test_blocks_without_a_key_go_first_then_the_least_recently_used():
    cache = PrefixCache(4, 4)
    a, _ = run(cache, chain(1, 1))
    b, _ = run(cache, chain(1, 2))
    c, _ = run(cache, chain(1, 3))
    for blocks in (a, b, c):
        cache.free(blocks)
    cache.free(cache.match(chain(1, 1), 5).block_ids)
    assert cache.allocate(1) == [3]
    assert cache.allocate(3) == [*b, *c, *a]


@pytest.mark.parametrize("how", ["in order", "reversed", "one by one", "one by one, reversed"])
def test_leaves_go_first(how):
    """However the blocks of a chain are given back, it is evicted from its end."""
    cache = PrefixCache(5, 4)
    blocks, _ = run(cache, chain(5))
    given = blocks[::-1] if "reversed" in how else blocks
    for part in [[b] for b in given] if "one" in how else [given]:
        cache.free(part)
        cache.check()
    for left in range(4, -1, -1):
        assert cache.allocate(1) == [blocks[left]]
        cache.check()
        assert cache.num_cached == left


def test_a_branch_goes_before_its_trunk():
    cache = PrefixCache(5, 4)
    trunk, _ = run(cache, [key(1), key(1, 1)])
    branches = []
    for i in (2, 3):
        made, _ = run(cache, [key(1), key(1, 1), key(1, 1, i)])
        branches.append(made)
    cache.free(trunk)
    cache.free(branches[0])
    cache.free(branches[1])
    cache.check()
    assert cache.allocate(1) == [4]
    assert cache.allocate(4) == [branches[0][2], branches[1][2], trunk[1], trunk[0]]


def test_an_idle_parent_of_a_block_in_use_can_go(cache):
    """A sliding window gives the front of a chain back first. What is left behind is found again only with its
    parent."""
    blocks, _ = run(cache, chain(3))
    cache.free(blocks[:2])
    cache.check()
    assert cache.num_free == 7
    taken = cache.allocate(7)
    cache.check()
    assert set(taken[-2:]) == set(blocks[:2])
    assert cache.match(chain(3), 13).block_ids == []
    cache.free(taken)
    again, _ = run(cache, chain(3))
    assert again[2] == blocks[2]
    cache.free(again)
    cache.free(blocks[2:])


def test_an_idle_parent_that_waits_for_its_child_comes_back(cache):
    """Given back front first, so that the front waits; then the front alone is hit, or everything is forgotten."""
    blocks, _ = run(cache, chain(3))
    for block in blocks:
        cache.free([block])
    front = cache.match(chain(2), 8).block_ids
    cache.check()
    assert front == blocks[:1]
    cache.free(front)
    cache.check()
    cache.reset()
    cache.check()
    assert sorted(cache.allocate(8)) == list(range(8))


def test_allocate_gives_all_or_nothing(cache):
    held = cache.allocate(6)
    with pytest.raises(NoFreeBlocks, match="n is 3; 2 of 8 blocks are free or idle"):
        cache.allocate(3)
    assert cache.num_free == 2
    assert cache.allocate(0) == []
    assert sorted([*held, *cache.allocate(2)]) == list(range(8))


def test_blocks_in_use_are_never_evicted(cache):
    blocks, _ = run(cache, chain(3))
    cache.allocate(5)
    with pytest.raises(NoFreeBlocks):
        cache.allocate(1)
    assert cache.match(chain(3), 13).block_ids == blocks


def test_a_failed_step_leaves_nothing(cache):
    """vllm PR#26813: the forward raises before any insert: no later hit, and the pool is whole."""
    hit = cache.match(chain(3), 13)
    blocks = [*hit.block_ids, *cache.allocate(3)]
    cache.free(blocks)
    assert (cache.num_free, cache.num_cached) == (8, 0)
    assert cache.match(chain(3), 13) == Hit([], 0)


# --- after an update of the weights -----------------------------------------------------------------------------------


def test_reset_forgets_every_key(cache):
    """lmdeploy#4917: 0 hits after new weights."""
    cache.free(run(cache, chain(3))[0])
    held, _ = run(cache, chain(2, 2))
    cache.reset()
    cache.check()
    assert (cache.num_cached, cache.num_free, cache.stats.resets) == (0, 6, 1)
    for branch in (1, 2):
        assert cache.match(chain(2, branch), 9) == Hit([], 0)
    cache.free(held)
    assert cache.num_free == 8


def test_what_was_computed_before_a_reset_is_never_published(cache):
    """Blocks of old weights, and new blocks that follow them, even where the key of their parent is known again."""
    old = cache.allocate(1)
    keyed, _ = run(cache, chain(1, 2))
    cache.reset()
    assert cache.insert(key(1), old[0], None) == old[0]
    assert cache.insert(chain(1, 2)[0], keyed[0], None) == keyed[0]
    late = cache.allocate(1)
    fresh, _ = run(cache, chain(1))
    assert cache.insert(key(1, 1), late[0], old[0]) == late[0]
    assert cache.stats.refused == 3
    assert cache.match(chain(2), 9).block_ids == fresh


# --- statistics -------------------------------------------------------------------------------------------------------


def test_statistics():
    cache = PrefixCache(4, 4)
    cache.free(run(cache, chain(3), 14)[0])
    cache.free(run(cache, chain(3), 14)[0])
    cache.allocate(3)
    stats = cache.stats
    assert (stats.queries, stats.hits, stats.query_tokens, stats.hit_tokens) == (2, 1, 28, 12)
    assert (stats.allocated, stats.inserted, stats.evictions, stats.duplicates) == (6, 3, 2, 0)


# --- errors -----------------------------------------------------------------------------------------------------------


def test_a_block_is_given_back_once(cache):
    blocks, _ = run(cache, chain(2))
    with pytest.raises(ValueError, match=re.escape("gives block 0 back 2 times; it has 1 references")):
        cache.free([blocks[0], blocks[1], blocks[0]])
    assert cache.num_free == 6
    cache.free(blocks)
    with pytest.raises(ValueError, match="gives block 0 back 1 times; it has 0"):
        cache.free(blocks[:1])


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda c: PrefixCache(0, 4), ValueError, "num_blocks is 0; 1 to"),
        (lambda c: PrefixCache(4, -1), ValueError, "block_size is -1; 1 to"),
        (lambda c: PrefixCache(True, 4), TypeError, "num_blocks is a bool"),
        (lambda c: PrefixCache(4, 4.0), TypeError, "block_size is a float"),
        (lambda c: c.allocate(-1), ValueError, "n is -1; 0 to"),
        (lambda c: c.allocate(1.0), TypeError, "n is a float"),
        (lambda c: c.match([], -1), ValueError, "num_tokens is -1; 0 to"),
        (lambda c: c.match([], True), TypeError, "num_tokens is a bool"),
        (lambda c: c.match(chain(3), 11), ValueError, "keys has 3 blocks of 4; num_tokens is 11"),
        (lambda c: c.free([8]), ValueError, "a block of block_ids is 8; 0 to 7"),
        (lambda c: c.free([-1]), ValueError, "a block of block_ids is -1; 0 to 7"),
        (lambda c: c.free(["0"]), TypeError, "a block of block_ids is a str"),
        (lambda c: c.free([True]), TypeError, "a block of block_ids is a bool"),
        (lambda c: c.key_of(8), ValueError, "block_id is 8"),
        (lambda c: c.insert(key(7), 7, None), ValueError, "block_id is 7, which is not in use"),
        (lambda c: c.insert(key(7), 0, None), ValueError, "block 0 has another key already"),
        (lambda c: c.insert(key(7), 3, 7), ValueError, "parent is 7, which is not in use"),
        (lambda c: c.insert(key(7), 3, 3), ValueError, "parent is 3, block_id itself"),
        (lambda c: c.insert(key(7), 3, key(1)), TypeError, "parent is a bytes; an integer"),
        (lambda c: c.insert(b"short", 3, 2), ValueError, "key has 5 bytes; the 32 bytes of a block key"),
        (lambda c: c.insert("0" * 32, 3, 2), TypeError, "key is a str"),
        (lambda c: c.insert(chain(3)[2], 3, 0), ValueError, "key is that of block 2, which has another parent"),
    ],
)
def test_misuse_is_a_clear_error_and_changes_nothing(cache, call, error, says):
    run(cache, chain(3))
    cache.allocate(1)
    before = (cache.num_free, cache.num_cached)
    with pytest.raises(error, match=re.escape(says)):
        call(cache)
    cache.check()
    assert (cache.num_free, cache.num_cached) == before


def test_numpy_integers_are_block_ids(cache):
    blocks = np.array(cache.allocate(2))
    assert cache.insert(key(1), blocks[0], None) == 0
    cache.free(blocks)
    assert all(type(block) is int for block in cache.match(chain(1), 5).block_ids)


# --- check() itself ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda c: c._free.append(c._free[0]), "twice"),
        (lambda c: c._free.pop(), "in 0 of the states"),
        (lambda c: c._free.append(0), "in 2 of the states"),
        (lambda c: c._idle.clear(), "in 0 of the states"),
        (lambda c: setattr(c._blocks[0], "refs", -1), "has -1 references"),
        (lambda c: setattr(c._blocks[0], "key", key(9)), "under a key that it does not hold"),
        (lambda c: setattr(c._blocks[7], "key", key(9)), "is free and still has a key"),
        (lambda c: c._by_key.pop(key(1)), "has a lost key"),
        (lambda c: c._by_key.__setitem__(key(9), 0), "under two keys"),
        (lambda c: setattr(c, "_generation", 5), "outlived a reset"),
        (lambda c: setattr(c._blocks[7], "parent_key", key(1)), "a parent and no key"),
        (lambda c: c._idle.move_to_end(5, last=False), "block 5 would be evicted before its idle child 6"),
        (lambda c: c._blocks[5].waits_for.__setitem__(0, None), "waits for block 0, which is not idle"),
        (lambda c: c._blocks[6].waits_for.__setitem__(5, None), "waits for block 5, not its child"),
        (lambda c: c._blocks[0].waits_for.__setitem__(5, None), "waits for children and is not idle"),
        (lambda c: c._blocks.pop(), "number of blocks changed"),
        (lambda c: setattr(c.stats, "hits", 9), "more hits than queries"),
        (lambda c: setattr(c.stats, "hit_tokens", 900), "more tokens hit"),
        (lambda c: setattr(c.stats, "evictions", 9), "more evictions"),
    ],
)
def test_check_sees_every_kind_of_damage(damage, says):
    cache = PrefixCache(8, 4)
    run(cache, chain(5))
    cache.free(run(cache, chain(2, 2))[0])
    cache.check()
    damage(cache)
    with pytest.raises(AssertionError, match=says):
        cache.check()


def test_with_real_keys():
    """Mooncake#4153: prompts that diverge inside a block share none of it. vllm#42119: one builder of keys for all."""
    cache = PrefixCache(16, 16)

    def keys(ids):
        return block_keys(ids, block_size=16, root=ROOT, secret=SECRET)

    blocks, _ = run(cache, keys(range(64)))
    assert [cache.key_of(block) for block in blocks] == keys(range(64)), "what a connector exports is the engine's key"
    cache.free(blocks)
    assert cache.match(keys([*range(40), 7, *range(41, 64)]), 64).num_cached_tokens == 32
    assert cache.match(keys(range(64)), 64).num_cached_tokens == 48
