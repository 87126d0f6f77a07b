"""PrefixCache against a dumb model, under random requests; all invariants are checked after every operation."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gpukey.cache import NoFreeBlocks, PrefixCache

BLOCK_SIZE = 2


def key(path):
    return bytes(path).ljust(32, b"\xff")


class Request:
    """Blocks held, and the path of branch numbers that names each block's content."""

    def __init__(self, path, num_tokens, hit):
        self.path, self.num_tokens = path, num_tokens
        self.blocks = list(hit.block_ids)
        self.num_published = len(self.blocks)

    @property
    def held(self):
        """Without the front that a sliding window has given back (None)."""
        return [block for block in self.blocks if block is not None]


class Machine(RuleBasedStateMachine):
    """The model: which content each block holds, by what was written there, and who holds it. It knows no order of
    eviction."""

    @initialize(num_blocks=st.integers(1, 9))
    def start(self, num_blocks):
        self.cache = PrefixCache(num_blocks, BLOCK_SIZE)
        self.requests = []
        self.content = {}  # block -> the path whose KV was written there, for as long as it may be hit
        self.version = 0

    def held(self, block):
        return sum(request.held.count(block) for request in self.requests)

    def wrote(self, block, path):
        self.content[block] = (self.version, tuple(path))

    @rule(path=st.lists(st.integers(0, 2), max_size=6), extra=st.integers(0, 1))
    def arrive(self, path, extra):
        num_tokens = len(path) * BLOCK_SIZE + extra
        keys = [key(path[: i + 1]) for i in range(len(path))]
        hit = self.cache.match(keys, num_tokens)
        assert hit.num_cached_tokens == len(hit.block_ids) * BLOCK_SIZE
        assert hit.num_cached_tokens < max(num_tokens, 1)
        for i, block in enumerate(hit.block_ids):
            assert self.content[block] == (self.version, tuple(path[: i + 1])), "a hit on other content"
        published = self.cache._by_key
        if len(hit.block_ids) < (num_tokens - 1) // BLOCK_SIZE:
            assert keys[len(hit.block_ids)] not in published, "a longer prefix was there"
        self.requests.append(Request(path, num_tokens, hit))

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), count=st.integers(0, 4))
    def compute(self, data, count):
        """Allocate and write up to `count` of the next blocks; publish them now or never."""
        request = data.draw(st.sampled_from(self.requests))
        left = request.path[len(request.blocks) :][:count]
        free, total = self.cache.num_free, self.cache.num_blocks
        assert free == total - len({block for other in self.requests for block in other.held})
        if len(left) > free:
            with pytest.raises(NoFreeBlocks):
                self.cache.allocate(len(left))
            return
        for block in self.cache.allocate(len(left)):
            assert self.held(block) == 0, "a block in use was given out"
            request.blocks.append(block)
            self.wrote(block, request.path[: len(request.blocks)])

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def publish(self, data):
        """Every computed block of a request, as an engine does after its step."""
        request = data.draw(st.sampled_from(self.requests))
        for i in range(request.num_published, len(request.blocks)):
            parent = request.blocks[i - 1] if i else None
            if request.blocks[i] is None or (i and parent is None):
                continue
            block = self.cache.insert(key(request.path[: i + 1]), request.blocks[i], parent)
            if block != request.blocks[i]:
                assert self.content[block] == (self.version, tuple(request.path[: i + 1])), "moved to other content"
            request.blocks[i] = block
            self.cache.check()
        request.num_published = len(request.blocks)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def slide(self, data):
        """Like a sliding window: give the front back, keep the rest."""
        request = data.draw(st.sampled_from(self.requests))
        cut = data.draw(st.integers(0, len(request.blocks)))
        self.cache.free([block for block in request.blocks[:cut] if block is not None])
        request.blocks[:cut] = [None] * cut

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), backwards=st.booleans())
    def leave(self, data, backwards):
        request = self.requests.pop(data.draw(st.integers(0, len(self.requests) - 1)))
        self.cache.free(request.held[::-1] if backwards else request.held)

    @precondition(lambda self: not self.requests)
    @rule()
    def nothing_is_held(self):
        assert self.cache.num_free == self.cache.num_blocks

    @rule(block=st.integers(0, 8))
    def free_twice(self, block):
        if block < self.cache.num_blocks and self.held(block) == 0:
            with pytest.raises(ValueError, match="0 references"):
                self.cache.free([block])

    @rule()
    def reset(self):
        self.cache.reset()
        self.version += 1

    @invariant()
    def books_agree(self):
        self.cache.check()
        for block, state in enumerate(self.cache._blocks):
            assert state.refs == self.held(block)


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=200, stateful_step_count=30)
