"""The prefix cache's books: which block holds which key, who uses it, which one goes next. No KV is touched here.
Imports without torch.

A block is in one of three states: in use (one reference or more), idle (no reference, keyed, may be hit again), free
(no reference, no key). Idle blocks are evicted least recently used first, and never before their own idle children
(leaf first), so a chain shrinks from its end. Every operation costs O(1) a block.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn

from gpukey._checks import U32, integer

KEY_BYTES = 32


class NoFreeBlocks(RuntimeError):
    """`allocate` asked for more blocks than are free or idle; nothing was taken. Ask `num_free` first."""


class Hit(NamedTuple):
    """The longest cached prefix: its blocks in order, each with a reference of the caller's, and the tokens in them."""

    block_ids: list[int]
    num_cached_tokens: int


@dataclass
class CacheStats:
    """Counters since the cache was made; `reset()` of the cache does not clear them."""

    queries: int = 0  # calls of match
    hits: int = 0  # of them, those that found a block or more
    query_tokens: int = 0
    hit_tokens: int = 0
    allocated: int = 0  # blocks handed out
    inserted: int = 0  # blocks that got a key
    duplicates: int = 0  # inserts that found their key on another block
    refused: int = 0  # inserts that left the block without a key: older than a reset, or after a block without a key
    evictions: int = 0
    resets: int = 0


@dataclass(slots=True)
class _Block:
    refs: int = 0
    key: bytes | None = None
    parent_key: bytes | None = None
    generation: int = -1  # of the cache, when the block was allocated
    waits_for: dict[int, None] = field(default_factory=dict)  # idle children that went idle after this idle block


class PrefixCache:
    """PrefixCache(num_blocks, block_size): block ids 0 … num_blocks - 1, `block_size` tokens each. Not thread-safe: one
    scheduler owns it.

    A request's life: `match`, `allocate` for the rest, run, `insert` each block that is full and computed, `free` all
    of them. Each block that a request holds is one reference, whether it came from `match`, `allocate` or `insert`.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = integer("num_blocks", num_blocks, 1, U32)
        self.block_size = integer("block_size", block_size, 1, U32)
        self.stats = CacheStats()
        self._generation = 0
        self._blocks = [_Block() for _ in range(self.num_blocks)]
        self._by_key: dict[bytes, int] = {}
        self._free = list(range(self.num_blocks - 1, -1, -1))  # a stack: the lowest id first
        self._idle: OrderedDict[int, None] = OrderedDict()  # the next to evict first

    @property
    def num_free(self) -> int:
        """Blocks that `allocate` can give now: free and idle ones."""
        return len(self._free) + len(self._idle)

    @property
    def num_cached(self) -> int:
        """Blocks that a `match` can find."""
        return len(self._by_key)

    def key_of(self, block_id: int) -> bytes | None:
        """The key under which the block can be found, or None."""
        return self._blocks[self._id("block_id", block_id)].key

    def match(self, keys: Sequence[bytes], num_tokens: int) -> Hit:
        """Longest cached prefix of `keys` (the prompt's full blocks, in order), and one reference to each of its
        blocks.

        At least one of the `num_tokens` tokens of the prompt is left to run, since its logits are needed.
        """
        num_tokens = integer("num_tokens", num_tokens)
        came: object = keys
        if isinstance(came, (str, bytes)) or not isinstance(came, Sequence):
            raise TypeError(f"keys is a {type(came).__name__}; a list of block keys is needed")
        if len(keys) * self.block_size > num_tokens:
            raise ValueError(
                f"keys has {len(keys)} blocks of {self.block_size}; num_tokens is {num_tokens}, too few to fill them"
            )
        block_ids: list[int] = []
        for key in keys[: max(num_tokens - 1, 0) // self.block_size]:
            block_id = self._by_key.get(key)
            if block_id is None:
                break
            block_ids.append(block_id)
        # Not before every key was looked up: one that cannot be raises, and nobody would give the references back.
        for block_id in block_ids:
            self._acquire(block_id)
        cached = len(block_ids) * self.block_size
        self.stats.queries += 1
        self.stats.hits += bool(block_ids)
        self.stats.query_tokens += num_tokens
        self.stats.hit_tokens += cached
        return Hit(block_ids, cached)

    def allocate(self, n: int) -> list[int]:
        """`n` blocks without a key, one reference each; idle blocks are evicted as needed. NoFreeBlocks when there are
        not enough: all or none."""
        n = integer("n", n)
        if n > self.num_free:
            raise NoFreeBlocks(f"n is {n}; {self.num_free} of {self.num_blocks} blocks are free or idle")
        taken = [self._free.pop() if self._free else self._evict() for _ in range(n)]
        for block_id in taken:
            block = self._blocks[block_id]
            block.refs, block.generation = 1, self._generation
        self.stats.allocated += n
        return taken

    def insert(self, key: bytes, block_id: int, parent: int | None) -> int:
        """Publish a full, computed block under its key; the block to use from now on is returned.

        `parent`: the caller's block before this one, None for the first of a prompt. Where another block has the key
        already (two equal prompts in one step), the caller's reference moves there and its own block is freed: put the
        returned id in its place in the block table. A block that was allocated before the last `reset()`, or whose
        parent has no key, holds or follows KV that must not be found: it stays without a key (`stats.refused`).
        """
        if not isinstance(key, bytes):
            raise TypeError(f"key is a {type(key).__name__}; the {KEY_BYTES} bytes of a block key are needed")
        if len(key) != KEY_BYTES:
            raise ValueError(f"key has {len(key)} bytes; the {KEY_BYTES} bytes of a block key are needed")
        block_id = self._id("block_id", block_id)
        block = self._held("block_id", block_id)
        before = None if parent is None else self._held("parent", self._id("parent", parent))
        if before is block:
            raise ValueError(f"parent is {parent}, block_id itself; the block before it is needed")
        if block.key is not None:
            if block.key == key:
                return block_id
            raise ValueError(
                f"block {block_id} has another key already; a block's content does not change while it is in use"
            )
        parent_key = None if before is None else before.key
        if block.generation != self._generation or (before is not None and parent_key is None):
            self.stats.refused += 1
            return block_id
        known = self._by_key.get(key)
        if known is not None:
            if self._blocks[known].parent_key != parent_key:
                raise ValueError(
                    f"key is that of block {known}, which has another parent; a block key fixes the whole prefix"
                )
            self._acquire(known)
            self._release(block_id)
            self.stats.duplicates += 1
            return known
        self._by_key[key] = block_id
        block.key, block.parent_key = key, parent_key
        self.stats.inserted += 1
        return block_id

    def free(self, block_ids: Iterable[int]) -> None:
        """Give back one reference to each block, listed first to last as in the block table; all or none. ValueError
        for a block that is not in use."""
        if not isinstance(block_ids, Iterable):
            raise TypeError(
                f"block_ids is a {type(block_ids).__name__}; the ids of blocks, one after another, are needed"
            )
        listed = [self._id("a block of block_ids", block_id) for block_id in block_ids]
        given: dict[int, int] = {}
        for block_id in listed:
            given[block_id] = given.get(block_id, 0) + 1
        for block_id, times in given.items():
            refs = self._blocks[block_id].refs
            if times > refs:
                raise ValueError(f"block_ids gives block {block_id} back {times} times; it has {refs} references")
        for block_id in reversed(listed):
            self._release(block_id)

    def reset(self) -> None:
        """Forget every key, after an update of the weights. Blocks in use stay with their holders, and can never be
        published."""
        for block_id in self._by_key.values():
            block = self._blocks[block_id]
            block.key = block.parent_key = None
            block.waits_for.clear()
        self._free.extend(reversed(self._idle))
        self._idle.clear()
        self._by_key.clear()
        self._generation += 1
        self.stats.resets += 1

    def _acquire(self, block_id: int) -> None:
        block = self._blocks[block_id]
        if block.refs == 0:
            self._leave_idle(block_id, block)
        block.refs += 1

    def _release(self, block_id: int) -> None:
        block = self._blocks[block_id]
        block.refs -= 1
        if block.refs:
            return
        if block.key is None:
            self._free.append(block_id)
            return
        self._idle[block_id] = None
        parent = self._parent_of(block)
        if parent is not None and parent in self._idle:
            self._blocks[parent].waits_for[block_id] = None

    def _leave_idle(self, block_id: int, block: _Block) -> None:
        del self._idle[block_id]
        block.waits_for.clear()
        parent = self._parent_of(block)
        if parent is not None:
            self._blocks[parent].waits_for.pop(block_id, None)

    def _parent_of(self, block: _Block) -> int | None:
        """By key, not by id: the parent may have been evicted since, and its block recycled."""
        return None if block.parent_key is None else self._by_key.get(block.parent_key)

    def _evict(self) -> int:
        """Take the least recently used block, after moving idle descendants that were freed later in front of it."""
        block_id = next(iter(self._idle))
        while waits_for := self._blocks[block_id].waits_for:
            block_id = waits_for.popitem()[0]
            self._idle.move_to_end(block_id, last=False)
        block = self._blocks[block_id]
        self._leave_idle(block_id, block)
        assert block.key is not None
        del self._by_key[block.key]
        block.key = block.parent_key = None
        self.stats.evictions += 1
        return block_id

    def _id(self, name: str, block_id: int) -> int:
        """`block_id` as a Python int between 0 and num_blocks."""
        if type(block_id) is int and 0 <= block_id < self.num_blocks:
            return block_id
        return integer(name, block_id, 0, self.num_blocks - 1)

    def _held(self, name: str, block_id: int) -> _Block:
        block = self._blocks[block_id]
        if block.refs == 0:
            raise ValueError(f"{name} is {block_id}, which is not in use; a block that the caller holds is needed")
        return block

    def __copy__(self) -> NoReturn:
        raise TypeError("a PrefixCache keeps the books of one pool of blocks; a shallow copy would write in them")

    def check(self) -> None:
        """AssertionError unless the books agree with each other. O(num_blocks); for tests."""
        from gpukey._cache_check import check

        check(self)
