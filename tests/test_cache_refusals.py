"""gpukey.cache.PrefixCache: what it refuses, named, without a change to its books."""

import copy

import pytest

from gpukey.cache import PrefixCache


def test_a_shallow_copy_is_refused():
    """It would allocate the same blocks, and each would believe that they are its own."""
    cache = PrefixCache(4, 2)
    with pytest.raises(TypeError, match="a PrefixCache keeps the books of one pool"):
        copy.copy(cache)
    other = copy.deepcopy(cache)
    other.allocate(3)
    assert (cache.num_free, other.num_free) == (4, 1)
    cache.check()
    other.check()


@pytest.mark.parametrize("wrong", [None, 7])
def test_what_is_no_list(wrong):
    cache = PrefixCache(4, 2)
    with pytest.raises(TypeError, match="block_ids is a"):
        cache.free(wrong)
    for keys in (wrong, "key", b"key", iter([bytes(32)])):
        with pytest.raises(TypeError, match="keys is a"):
            cache.match(keys, 8)
    cache.check()
