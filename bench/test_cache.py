"""What do the cache's books cost? Prompts of 8,192 blocks; the bound of a match is one dict lookup a block."""

import pytest

from gpukey.cache import PrefixCache

NUM_BLOCKS = 8192
KEYS = [[i.to_bytes(31, "big") + bytes([prompt]) for i in range(NUM_BLOCKS)] for prompt in range(2)]
NUM_TOKENS = NUM_BLOCKS * 16 + 1


def fill(cache, keys):
    """A cold request from `match` to `free`."""
    hit = cache.match(keys, NUM_TOKENS)
    blocks = [*hit.block_ids, *cache.allocate(NUM_BLOCKS - len(hit.block_ids))]
    for i in range(len(hit.block_ids), NUM_BLOCKS):
        blocks[i] = cache.insert(keys[i], blocks[i], blocks[i - 1] if i else None)
    cache.free(blocks)


def match_and_free(cache, keys):
    """A warm request: every block is found, taken and given back."""
    cache.free(cache.match(keys, NUM_TOKENS).block_ids)


def lookups(table, keys):
    return [table.get(key) for key in keys]


def show(benchmark, capsys, name):
    median = benchmark.stats.stats.median / NUM_BLOCKS * 1e6
    benchmark.extra_info["us_per_block"] = median
    with capsys.disabled():
        print(f"\n{name}: {median:.2f} µs a block (median)")


@pytest.mark.benchmark(group="cache, 8,192 blocks")
def test_warm(benchmark, capsys):
    cache = PrefixCache(NUM_BLOCKS, 16)
    fill(cache, KEYS[0])
    benchmark.pedantic(match_and_free, (cache, KEYS[0]), rounds=15, warmup_rounds=1)
    assert cache.stats.hit_tokens == 16 * NUM_BLOCKS * 16
    show(benchmark, capsys, "match and free, all cached")


@pytest.mark.benchmark(group="cache, 8,192 blocks")
def test_cold_in_a_full_pool(benchmark, capsys):
    """Every block is evicted, allocated, inserted and freed."""
    cache, turns = PrefixCache(NUM_BLOCKS, 16), iter(range(100))
    benchmark.pedantic(lambda: fill(cache, KEYS[next(turns) % 2]), rounds=15, warmup_rounds=2)
    assert cache.stats.evictions == 16 * NUM_BLOCKS
    show(benchmark, capsys, "evict, allocate, insert and free")


@pytest.mark.benchmark(group="cache, 8,192 blocks")
def test_dict_lookups(benchmark, capsys):
    benchmark.pedantic(lookups, ({key: i for i, key in enumerate(KEYS[0])}, KEYS[0]), rounds=15, warmup_rounds=1)
    show(benchmark, capsys, "a dict lookup each (bound of match)")
