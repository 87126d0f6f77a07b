"""The invariants of `PrefixCache`, in full: what `check()` verifies after every operation of a test."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpukey.cache import PrefixCache


def check(cache: PrefixCache) -> None:
    """AssertionError that names the first broken invariant and its block."""
    free, idle, blocks = set(cache._free), list(cache._idle), cache._blocks
    order = {block_id: place for place, block_id in enumerate(idle)}
    _require(len(free) == len(cache._free), "a block is on the free list twice")
    _require(len(blocks) == cache.num_blocks, "the number of blocks changed")
    _require(len(set(cache._by_key.values())) == len(cache._by_key), "a block can be found under two keys")
    for key, block_id in cache._by_key.items():
        _require(blocks[block_id].key == key, f"block {block_id} can be found under a key that it does not hold")
    for block_id, block in enumerate(blocks):
        states = (block.refs > 0) + (block_id in order) + (block_id in free)
        _require(block.refs >= 0, f"block {block_id} has {block.refs} references")
        _require(states == 1, f"block {block_id} is in {states} of the states in use, idle, free")
        _require(block_id not in free or block.key is None, f"block {block_id} is free and still has a key")
        _require(block_id not in order or block.key is not None, f"block {block_id} is idle without a key")
        _require(block.key is None or cache._by_key.get(block.key) == block_id, f"block {block_id} has a lost key")
        _require(block.key is None or block.generation == cache._generation, f"block {block_id} outlived a reset")
        _require(block.key is not None or block.parent_key is None, f"block {block_id} has a parent and no key")
        _require(block_id in order or not block.waits_for, f"block {block_id} waits for children and is not idle")
        for child in block.waits_for:
            _require(child in order, f"block {block_id} waits for block {child}, which is not idle")
            _require(blocks[child].parent_key == block.key, f"block {block_id} waits for block {child}, not its child")
        parent = None if block.parent_key is None else cache._by_key.get(block.parent_key)
        if block_id in order and parent in order:
            first = order[block_id] < order[parent] or block_id in blocks[parent].waits_for
            _require(first, f"block {parent} would be evicted before its idle child {block_id}")
    stats = cache.stats
    _require(stats.hits <= stats.queries, "more hits than queries")
    _require(stats.hit_tokens <= stats.query_tokens, "more tokens hit than asked for")
    _require(stats.evictions <= stats.inserted, "more evictions than insertions")


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise AssertionError(otherwise)
