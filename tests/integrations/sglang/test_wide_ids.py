"""wide_ids: per token, independent of how spans are cut, and never a vocabulary's id."""

from __future__ import annotations

import os

import numpy as np
import pytest

from gpukey.integrations.sglang.wide import WIDE, wide_ids
from gpukey.spans import EmbeddingSpan


def _rows(count, seed=0):
    return [bytes([seed]) * 8 + row.to_bytes(8, "little") for row in range(count)]


def test_text_alone_is_the_ids_themselves(secret):
    assert list(wide_ids([5, 6, 7], secret=secret)) == [5, 6, 7]
    assert list(wide_ids([], secret=secret)) == []


def test_replaced_positions_are_wide_and_the_others_stay(secret):
    ids = wide_ids([9] * 10, [EmbeddingSpan(3, _rows(4))], secret=secret)
    assert [i for i, token in enumerate(ids) if token & WIDE] == [3, 4, 5, 6]
    assert all(WIDE <= ids[i] < 1 << 63 for i in (3, 4, 5, 6))
    assert ids.typecode == "q"


def test_an_id_holds_62_bits(secret):
    ids = np.array(wide_ids([0] * 64, [EmbeddingSpan(0, _rows(64))], secret=secret), np.uint64)
    assert np.bitwise_or.reduce(ids) == 2**63 - 1
    assert np.bitwise_and.reduce(ids) == WIDE


def test_the_first_differing_row_ends_the_match_and_so_do_all_later_ones(secret):
    a = wide_ids([9] * 10, [EmbeddingSpan(2, _rows(6))], secret=secret)
    changed = _rows(6)
    changed[2] = os.urandom(16)
    b = wide_ids([9] * 10, [EmbeddingSpan(2, changed)], secret=secret)
    assert a[:4] == b[:4]
    assert all(a[i] != b[i] for i in range(4, 8))
    assert a[8:] == b[8:]


def test_touching_spans_are_one_run_however_they_are_cut(secret):
    rows = _rows(6)
    whole = wide_ids([9] * 8, [EmbeddingSpan(1, rows)], secret=secret)
    cut = wide_ids([9] * 8, [EmbeddingSpan(4, rows[3:]), EmbeddingSpan(1, rows[:3])], secret=secret)
    apart = wide_ids([9] * 8, [EmbeddingSpan(1, rows[:3]), EmbeddingSpan(5, rows[3:])], secret=secret)
    assert whole == cut
    assert apart[:4] == whole[:4]
    assert apart[5:8] != whole[4:7]


def test_arrays_of_ids_empty_runs_and_iterators_change_nothing(secret):
    expected = wide_ids([9] * 6, [EmbeddingSpan(2, _rows(2))], secret=secret)
    spans = [EmbeddingSpan(3, []), EmbeddingSpan(2, _rows(2)), EmbeddingSpan(2, [])]
    for ids in (np.full(6, 9), np.full(6, 9, np.int32), (9,) * 6, [np.int64(9)] * 6):
        assert wide_ids(ids, iter(spans), secret=secret) == expected


def test_digests_of_both_sizes_are_apart(secret):
    """32 bytes of one row are not 16 bytes each of two, at the start of a run and inside it."""
    digest = bytes(range(32))
    short = [EmbeddingSpan(0, [digest[:16], digest[16:]])]
    assert not set(wide_ids([0, 0], [EmbeddingSpan(0, [digest])], secret=secret)) & set(
        wide_ids([0, 0], short, secret=secret)
    ) - {0}
    inside = [EmbeddingSpan(0, [bytes(16)]), EmbeddingSpan(1, [digest])]
    cut = [EmbeddingSpan(0, [bytes(16)]), EmbeddingSpan(1, [digest[:16]])]
    assert wide_ids([0, 0], inside, secret=secret)[1] != wide_ids([0, 0], cut, secret=secret)[1]


def test_token_under_a_row_and_secret_are_bound(secret):
    from gpukey.secret import Secret

    span = EmbeddingSpan(0, _rows(2))
    ids = wide_ids([1, 1], [span], secret=secret)
    assert ids[0] != wide_ids([2, 1], [span], secret=secret)[0]
    assert ids[0] != wide_ids([1, 1], [span], secret=Secret.random())[0]


@pytest.mark.parametrize(
    ("ids", "embeds", "error", "message"),
    [
        ([1] * 4, [EmbeddingSpan(0, _rows(2)), EmbeddingSpan(1, _rows(2))], ValueError, "embeds overlap at position 1"),
        ([1] * 4, [EmbeddingSpan(3, _rows(2))], ValueError, "the prompt ends at 4"),
        ([1] * 4, [EmbeddingSpan(0, _rows(2), attention="bidirectional")], ValueError, "bidirectional or has a layout"),
        ([1] * 4, [EmbeddingSpan(0, _rows(2), layout=b"grid")], ValueError, "bidirectional or has a layout"),
        ([1, 1 << 62], [], ValueError, r"token_ids\[1\] is 4611686018427387904"),
        ([1, -1], [], ValueError, r"token_ids\[1\] is -1"),
        ([True], [], TypeError, r"token_ids\[0\] is a bool"),
        ([1], [b"x" * 16], TypeError, r"embeds\[0\] is a bytes"),
    ],
)
def test_hostile_arguments_are_named(secret, ids, embeds, error, message):
    with pytest.raises(error, match=message):
        wide_ids(ids, embeds, secret=secret)
