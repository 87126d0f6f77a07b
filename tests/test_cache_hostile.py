"""What a caller may hand to PrefixCache by mistake leaves the books as they were."""

import pytest

from gpukey.cache import PrefixCache

KEYS = [bytes([i]) * 32 for i in range(3)]


class Unhashable(bytes):
    def __hash__(self):
        raise RuntimeError("no hash")


@pytest.mark.parametrize("keys", [[KEYS[0], []], [KEYS[0], bytearray(KEYS[1])], [KEYS[0], Unhashable(KEYS[1])]])
def test_a_key_that_cannot_be_looked_up_holds_no_blocks(keys):
    cache = PrefixCache(num_blocks=4, block_size=2)
    block_ids, parent = cache.allocate(3), None
    for key, block_id in zip(KEYS, block_ids, strict=True):
        parent = cache.insert(key, block_id, parent)
    cache.free(block_ids)
    with pytest.raises((TypeError, RuntimeError)):
        cache.match(keys, 8)
    cache.check()
    assert cache.allocate(4)
