"""gpukey._chain against the reference, and that no wrong id passes. The op block_keys gives the same bytes."""

from __future__ import annotations

import array
import random

import numpy as np
import pytest
import torch

from gpukey import reference
from gpukey._chain import encode_ids, text_keys
from gpukey.secret import Secret

SECRET = b"a secret for tests, long enough"
KEY = Secret(SECRET).derive("block", bytes([16]))
PARENT = bytes(range(32))


def slow_keys(ids: list[int], block_size: int) -> list[bytes]:
    keys, parent = [], PARENT
    for start in range(0, len(ids) - block_size + 1, block_size):
        parent = reference.block_key(SECRET, parent, ids[start : start + block_size])
        keys.append(parent)
    return keys


# 36 bytes stand before the ids: blocks of 64 bytes end after 3 ids, chunks of 1024 after 123; then 2, 3, 4 chunks.
@pytest.mark.parametrize("block_size", [1, 2, 3, 4, 11, 12, 16, 64, 123, 124, 251, 252, 379, 380, 500])
def test_every_form_of_ids(block_size):
    numbers = random.Random(block_size)
    ids = [numbers.choice([0, 1, 2**63 - 1, numbers.randrange(2**63)]) for _ in range(2 * block_size + block_size // 2)]
    wanted = slow_keys(ids, block_size)
    assert len(wanted) == 2
    forms = [
        ids,
        tuple(ids),
        np.array(ids),
        array.array("q", ids),
        memoryview(np.array(ids)),
        [np.int64(i) for i in ids],
    ]
    for form in forms:
        assert text_keys(form, PARENT, KEY, block_size) == wanted
        assert encode_ids(form) == np.array(ids, "<i8").tobytes()
    assert text_keys(np.array([ids, ids]).T[:, 0], PARENT, KEY, block_size) == wanted  # not contiguous
    assert text_keys(token_ids=ids, parent=PARENT, key=KEY, block_size=block_size) == wanted


def test_the_op_gives_the_same_bytes():
    import gpukey.ops  # noqa: F401  loads the library

    ids = torch.arange(16 * 40) * 40503 % 151936
    parent, key = (torch.frombuffer(bytearray(data), dtype=torch.uint8) for data in (PARENT, KEY))
    digests = torch.ops.gpukey_cpu.block_keys(ids, parent, key, 16)
    assert [bytes(row) for row in digests.tolist()] == text_keys(ids.tolist(), PARENT, KEY, 16)


def test_only_full_blocks():
    assert text_keys([], PARENT, KEY, 16) == []
    assert text_keys([1] * 15, PARENT, KEY, 16) == []
    assert text_keys(np.array([], dtype=np.int64), PARENT, KEY, 16) == []
    assert len(text_keys([1] * 33, PARENT, KEY, 16)) == 2


class Lying:
    """Says that it is an integer, and is none."""

    def __index__(self) -> int:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [
        ([1, True], TypeError, r"token_ids\[1\] is a bool"),
        ([np.bool_(True)], TypeError, r"token_ids\[0\] is a bool"),
        ([torch.tensor(True)], TypeError, r"token_ids\[0\] is a Tensor"),
        ([np.array(True)], TypeError, r"token_ids\[0\] is a ndarray"),
        ([1, -1], ValueError, r"token_ids\[1\] is -1"),
        ([np.int64(-5)], ValueError, r"token_ids\[0\] is -5"),
        ([2**63], ValueError, r"token_ids\[0\] is 9223372036854775808"),
        ([-(2**70)], ValueError, r"token_ids\[0\] is -"),
        ((1, 2, 1.0), TypeError, r"token_ids\[2\] is a float"),
        (["a"], TypeError, r"token_ids\[0\] is a str"),
        ([None], TypeError, r"token_ids\[0\] is a NoneType"),
        (np.array([1, -2]), ValueError, r"token_ids\[1\] is -2"),
        (np.array([1.0]), TypeError, "format 'd'"),
        (np.array([True]), TypeError, "format"),
        (np.array([[1]]), TypeError, "2 dimensions"),
        (np.array([1], dtype=np.int32), TypeError, "format 'i'"),
        (np.array([1], dtype=np.uint64), TypeError, "format 'L'"),
        (np.array([1], dtype=">i8"), TypeError, "format '>"),
        (b"abc", TypeError, "format 'B'"),
        ({1: 2}, TypeError, "token_ids is a dict"),
        ({1}, TypeError, "token_ids is a set"),
        (5, TypeError, "token_ids is a int"),
        ([Lying()], RuntimeError, "no"),
        ([1, 2, -1], ValueError, r"token_ids\[2\]"),  # past the last full block of 2
    ],
)
def test_wrong_ids(ids, error, message):
    with pytest.raises(error, match=message):
        text_keys(ids, PARENT, KEY, 2)
    with pytest.raises(error, match=message):
        encode_ids(ids)


@pytest.mark.parametrize(
    ("parent", "key", "block_size", "error", "message"),
    [
        (PARENT[:31], KEY, 1, ValueError, "parent has 31 bytes"),
        (PARENT, KEY + b"0", 1, ValueError, "key has 33 bytes"),
        (bytearray(PARENT), KEY, 1, TypeError, "parent is not bytes"),
        (PARENT, "k" * 32, 1, TypeError, "key is not bytes"),
        (PARENT, KEY, 0, ValueError, "block_size is 0"),
        (PARENT, KEY, -1, ValueError, "block_size is -1"),
        (PARENT, KEY, 2**32, ValueError, "block_size is 4294967296"),
        (PARENT, KEY, 2**64, OverflowError, ""),
        (PARENT, KEY, 1.0, TypeError, ""),
    ],
)
def test_wrong_arguments(parent, key, block_size, error, message):
    with pytest.raises(error, match=message or None):
        text_keys([1], parent, key, block_size)


def test_a_list_that_shrinks_while_it_is_read():
    """Ids of foreign types run Python code, which may do anything to the list."""
    ids: list[object] = []

    class Shrinking:
        def __index__(self) -> int:
            ids.clear()
            return 1

    ids += [Shrinking(), 2, 3]
    with pytest.raises(IndexError):
        text_keys(ids, PARENT, KEY, 1)


class Nameless(type):
    """A metaclass may give anything where the name of a type is looked up."""

    @property
    def __name__(cls):
        return 5


class Odd(metaclass=Nameless):
    pass


class OddIndex(metaclass=Nameless):
    def __index__(self):
        return 3


def test_a_type_whose_name_is_no_text_is_no_way_into_memory():
    assert encode_ids([OddIndex()]) == encode_ids([3])
    for ids in ([1, Odd()], Odd()):
        with pytest.raises(TypeError, match="token_ids"):
            encode_ids(ids)


def test_a_released_buffer_is_an_error():
    """Python 3.11 reads one as a sequence, with a format from freed memory."""
    view = memoryview(np.arange(4))
    view.release()
    with pytest.raises(ValueError, match="released"):
        encode_ids(view)
