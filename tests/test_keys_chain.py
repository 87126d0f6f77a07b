"""gpukey.keys.KeyChain: what is appended piece by piece has the keys of one call, and what is cut off is forgotten."""

import copy
import re
from itertools import pairwise

import numpy as np
import pytest
import slow_keys
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from vectors import pattern

from gpukey.keys import EmbeddingSpan, KeyChain, MultimodalItem, Root, block_keys
from gpukey.secret import Secret

FIELDS = {"model": "m", "dtype": "bfloat16"}
ROOT = Root(**FIELDS)
SECRET_BYTES = b"a secret for tests of chains"
SECRET = Secret(SECRET_BYTES)
IDENT = bytes(range(100, 116))


def rows(n, seed=0):
    return [pattern(16, 17 * i + 101 * seed) for i in range(n)]


def chain(**how):
    return KeyChain(**{"block_size": 4, "root": ROOT, "secret": SECRET, **how})


def keys(token_ids, **how):
    return block_keys(token_ids, **{"block_size": 4, "root": ROOT, "secret": SECRET, **how})


IDS = list(range(100, 131))
EMBEDS = [
    EmbeddingSpan(2, rows(7)),
    EmbeddingSpan(9, rows(6, 1), attention="bidirectional"),
    EmbeddingSpan(17, rows(5, 2), layout=b"grid"),
    EmbeddingSpan(24, rows(3, 3)),
]
ITEMS = [MultimodalItem(3, 9, "image", IDENT), MultimodalItem(20, 8, "audio", "uuid", named=True)]
WHOLE = keys(IDS, embeds=EMBEDS, items=ITEMS)


@pytest.mark.parametrize("ahead", [True, False])
def test_every_cut_equals_one_call(ahead):
    """vllm PR#51694, #49619: two appends, at every cut; spans and items all known at first, or each with the piece
    where it starts."""
    for cut in range(len(IDS) + 1):
        first = [thing for thing in EMBEDS if ahead or thing.start < cut]
        items = [thing for thing in ITEMS if ahead or thing.start < cut]
        made = chain(token_ids=IDS[:cut], embeds=first, items=items)
        assert made.keys == WHOLE[: cut // 4]
        late = [thing for thing in EMBEDS if thing not in first], [thing for thing in ITEMS if thing not in items]
        assert made.append(IDS[cut:], *late) == WHOLE[cut // 4 :]
        assert made.keys == WHOLE
        assert made.num_tokens == len(IDS)


@pytest.mark.parametrize("step", [1, 2, 3, 5, 7])
def test_many_small_appends_equal_one_call(step):
    made, new = chain(embeds=EMBEDS, items=ITEMS), []
    for at in range(0, len(IDS), step):
        new += made.append(np.array(IDS[at : at + step]))
    assert new == made.keys == WHOLE


def test_truncated_and_appended_again_equals_one_call():
    """A span or item that the cut went through is given again whole, or, where nothing binds the whole, from the cut
    on."""
    for cut in range(len(IDS) + 1):
        made = chain(token_ids=IDS, embeds=EMBEDS, items=ITEMS)
        made.truncate(cut)
        assert made.num_tokens == cut
        assert made.keys == WHOLE[: cut // 4]
        made.append(
            IDS[cut:], [e for e in EMBEDS if e.start + e.length > cut], [i for i in ITEMS if i.start + i.length > cut]
        )
        assert made.keys == WHOLE
    made = chain(token_ids=IDS[:10], embeds=[EmbeddingSpan(2, rows(8))])
    made.truncate(5)
    made.append(IDS[5:], [EmbeddingSpan(5, rows(8)[3:])])
    assert made.keys == keys(IDS, embeds=[EmbeddingSpan(2, rows(8))])


def test_truncation_forgets():
    """vllm PR#51694: after a cut the chain is that of the tokens that are left, whatever follows."""
    for cut in range(len(IDS) + 1):
        made = chain(token_ids=IDS, embeds=[EMBEDS[0], EMBEDS[3]])
        made.truncate(cut)
        made.append([7] * 9)
        left = [EmbeddingSpan(2, rows(7)[: max(cut - 2, 0)]), EmbeddingSpan(24, rows(3, 3)[: max(cut - 24, 0)])]
        assert made.keys == keys([*IDS[:cut], *[7] * 9], embeds=left)
        made.require_complete()


def test_truncation_forgets_what_lies_ahead():
    made = chain(token_ids=IDS[:6], embeds=[EmbeddingSpan(10, rows(3))], items=[MultimodalItem(12, 2, "image", IDENT)])
    made.truncate(6)
    made.append(IDS[6:])
    assert made.keys == keys(IDS)


def test_a_cut_item_is_not_the_whole_item():
    """The positions that are left still say of which item they were; the ones after the cut say nothing."""
    made = chain(token_ids=IDS[:12], items=[MultimodalItem(2, 9, "image", IDENT)])
    made.truncate(6)
    made.append(IDS[6:12])
    whole = keys(IDS[:12], items=[MultimodalItem(2, 9, "image", IDENT)])
    short = keys(IDS[:12], items=[MultimodalItem(2, 4, "image", IDENT)])
    assert made.keys[0] == whole[0]
    assert len({made.keys[1], whole[1], short[1], keys(IDS[:12])[1]}) == 4


def test_a_failed_append_changes_nothing():
    made = chain(token_ids=IDS[:6], embeds=[EmbeddingSpan(5, rows(3))])
    wrong = [
        ([1, -1], [], []),
        ([1], [EmbeddingSpan(7, rows(3))], []),
        ([1], [EmbeddingSpan(8, rows(3))], ["x"]),
        ([1], [EmbeddingSpan(8, rows(3)), EmbeddingSpan(3, rows(1))], []),
    ]
    for token_ids, embeds, items in wrong:
        with pytest.raises((TypeError, ValueError)):
            made.append(token_ids, embeds, items)
        assert made.num_tokens == 6
    made.append(IDS[6:])
    assert made.keys == keys(IDS, embeds=[EmbeddingSpan(5, rows(3))])


@pytest.mark.parametrize(
    ("embeds", "items", "says"),
    [
        (
            [EmbeddingSpan(3, rows(1))],
            [],
            "embeds[0] starts at 3; the blocks before position 4 have their keys already",
        ),
        ([], [MultimodalItem(0, 9, "image", IDENT)], "items[0] starts at 0; the blocks before position 4"),
    ],
)
def test_nothing_changes_under_a_key(embeds, items, says):
    made = chain(token_ids=IDS[:6])
    with pytest.raises(ValueError, match=re.escape(says)):
        made.append([], embeds, items)
    made.append(IDS[6:], [EmbeddingSpan(4, rows(1))])
    assert made.keys == keys(IDS, embeds=[EmbeddingSpan(4, rows(1))])


def test_a_cut_span_does_not_come_back_under_a_key():
    made = chain(token_ids=IDS[:10], embeds=[EmbeddingSpan(2, rows(8))])
    made.truncate(5)
    made.append([7] * 5)
    with pytest.raises(ValueError, match=re.escape("embeds[0] goes on at 5; the blocks before position 8")):
        made.append([], [EmbeddingSpan(2, rows(8))])


def test_truncate_checks_its_argument():
    made = chain(token_ids=IDS)
    for bad, error in ((-1, ValueError), (len(IDS) + 1, ValueError), (True, TypeError), (1.0, TypeError)):
        with pytest.raises(error, match="num_tokens is"):
            made.truncate(bad)
    assert made.keys == keys(IDS)


def test_keys_are_a_copy():
    made = chain(token_ids=IDS)
    made.keys.clear()
    made.append([1])[:] = []
    assert made.keys == keys([*IDS, 1])


def test_a_span_past_the_tokens_is_known_and_not_complete():
    made = chain(token_ids=IDS[:6], embeds=[EmbeddingSpan(5, rows(3))])
    with pytest.raises(ValueError, match="embeds has positions 5 to 8; token_ids has 6"):
        made.require_complete()
    made.append(IDS[6:8])
    made.require_complete()


class Machine(RuleBasedStateMachine):
    """A chain against the slow construction, under any appends and cuts of plain rows and tokens."""

    @initialize(block_size=st.integers(1, 5))
    def start(self, block_size):
        self.block_size = block_size
        self.chain = chain(block_size=block_size)
        self.ids, self.rows = [], {}

    @rule(data=st.data(), ids=st.lists(st.integers(0, 2**63 - 1), max_size=12))
    def append(self, data, ids):
        first = max([*self.rows, len(self.ids) // self.block_size * self.block_size - 1]) + 1
        embeds = []
        if data.draw(st.booleans()):
            start = first + data.draw(st.integers(0, 3))
            found = rows(data.draw(st.integers(0, 6)), data.draw(st.integers(0, 9)))
            embeds.append(EmbeddingSpan(start, found))
            self.rows |= {start + i: row for i, row in enumerate(found)}
        self.chain.append(ids, embeds)
        self.ids += ids

    @rule(data=st.data())
    def truncate(self, data):
        cut = data.draw(st.integers(0, len(self.ids)))
        self.chain.truncate(cut)
        del self.ids[cut:]
        self.rows = {position: row for position, row in self.rows.items() if position < cut}

    @invariant()
    def equals_the_slow_construction(self):
        spans = [(position, [row], 0, b"") for position, row in self.rows.items()]
        wanted = slow_keys.block_keys(SECRET_BYTES, self.ids, block_size=self.block_size, fields=FIELDS, spans=spans)
        assert self.chain.keys == wanted
        assert self.chain.num_tokens == len(self.ids)


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=25, stateful_step_count=12)


@settings(max_examples=30)
@given(st.lists(st.integers(0, 40), max_size=6), st.integers(1, 9))
def test_text_in_any_pieces(cuts, block_size):
    ids = list(range(40))
    bounds = [0, *sorted(cuts), 40]
    made = chain(block_size=block_size)
    for begin, end in pairwise(bounds):
        made.append(ids[begin:end])
    assert made.keys == keys(ids, block_size=block_size)


@pytest.mark.parametrize("copier", [copy.copy, copy.deepcopy])
def test_a_copy_goes_its_own_way(copier):
    """Two beams of one prompt: what one appends or cuts off, the other does not see."""
    one = chain(token_ids=IDS[:22], embeds=EMBEDS[:2])
    other = copier(one)
    one.append([1, 2, 3], [EmbeddingSpan(23, rows(2))])
    other.append([7, 8, 9, 10, 11, 12])
    one.truncate(24)
    assert other.keys == keys([*IDS[:22], 7, 8, 9, 10, 11, 12], embeds=EMBEDS[:2])
    one.append([4])
    assert one.keys == keys([*IDS[:22], 1, 2, 4], embeds=[*EMBEDS[:2], EmbeddingSpan(23, rows(1))])
