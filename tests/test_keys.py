"""gpukey.keys.block_keys: what is in a key, and which prompts share blocks."""

import itertools

import numpy as np
import pytest
import slow_keys
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st
from vectors import pattern

from gpukey import keys as module
from gpukey import reference
from gpukey.keys import EmbeddingSpan, MultimodalItem, Root, block_keys, item_id
from gpukey.secret import Secret

FIELDS = {"model": "m", "dtype": "bfloat16"}
ROOT = Root(**FIELDS)
SECRET_BYTES = b"a secret for tests of keys"
SECRET = Secret(SECRET_BYTES)
IDENT = bytes(range(100, 116))
ATTENTION = ("causal", "bidirectional")


def rows(n, seed=0, size=16):
    """`n` row fingerprints that differ between seeds."""
    return [pattern(size, 17 * i + 101 * seed) for i in range(n)]


def span(start, n, seed=0, **how):
    return EmbeddingSpan(start, rows(n, seed), **how)


def item(start, length, identifier=IDENT, modality="image", **how):
    return MultimodalItem(start, length, modality, identifier, **how)


def keys(token_ids=range(64), *, block_size=16, **how):
    return block_keys(token_ids, **{"block_size": block_size, "root": ROOT, "secret": SECRET, **how})


def shared(one, other):
    """Blocks that two prompts share: equal keys from the start. After the first difference nothing may be equal."""
    count = next((i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), len(one))
    assert not set(one[count:]) & set(other)
    return count


# --- against a slow construction through the reference ----------------------------------------------------------------


@st.composite
def prompts(draw):
    """A prompt with spans and items, as `slow_keys` wants them."""
    size = draw(st.sampled_from([16, 32]))
    n = draw(st.integers(0, 40))
    token_ids = draw(st.lists(st.integers(0, 2**63 - 1), min_size=n, max_size=n))
    layouts = st.sampled_from([b"", b"layout"])
    spans, at = [], 0
    while at <= n and len(spans) < 4:
        start = at + draw(st.integers(0, 6))
        length = draw(st.integers(0, 9))
        if start + length > n:
            break
        spans.append((start, rows(length, len(spans), size), draw(st.integers(0, 1)), draw(layouts)))
        at = start + length
    items = {}
    for _ in range(draw(st.integers(0, 3)) if n else 0):
        start = draw(st.integers(0, n - 1))
        length = draw(st.integers(1, n - start))
        named = draw(st.booleans())
        identifier = (
            draw(st.sampled_from([IDENT, IDENT + b"\xff"])) if not named else draw(st.sampled_from([b"a", b"b"]))
        )
        found = (start, length, draw(st.sampled_from(["image", "audio"])), identifier, named, draw(layouts))
        items[found] = None
    return token_ids, size, spans, list(items)


def as_public(spans, items):
    """The same spans and items as block_keys takes them."""
    embeds = [EmbeddingSpan(s, r, attention=ATTENTION[a], layout=lay) for s, r, a, lay in spans]
    found = [
        MultimodalItem(s, n, m, i.decode() if named else i, named=named, layout=lay) for s, n, m, i, named, lay in items
    ]
    return embeds, found


@settings(max_examples=150)
@given(prompts(), st.integers(1, 9), st.randoms(use_true_random=False))
def test_equals_the_slow_construction(prompt, block_size, random):
    token_ids, size, spans, items = prompt
    wanted = slow_keys.block_keys(
        SECRET_BYTES, token_ids, block_size=block_size, fields=FIELDS, digest_size=size, spans=spans, items=items
    )
    embeds, found = as_public(spans, items)
    random.shuffle(embeds)
    random.shuffle(found)
    assert keys(token_ids, block_size=block_size, digest_size=size, embeds=embeds, items=found) == wanted


@settings(max_examples=60)
@given(st.integers(0, 200), st.integers(1, 33), st.integers(0, 2**32 - 1))
def test_text_keys_of_both_paths_are_equal(n, block_size, seed):
    """The compiled chain, where it was built, and the Python one; from a list, a tuple, a range and arrays of every
    integer dtype."""
    ids = np.random.default_rng(seed).integers(0, 1 << 7, n)
    wanted = slow_keys.block_keys(SECRET_BYTES, ids.tolist(), block_size=block_size, fields=FIELDS)
    for form in (ids, ids.tolist(), tuple(ids.tolist()), list(ids), ids.astype(object)):
        assert keys(form, block_size=block_size) == wanted
    for dtype in ("i1", "u1", "i2", "u2", "i4", "u4", "u8", ">i8", ">u4"):
        assert keys(ids.astype(dtype), block_size=block_size) == wanted
    doubled = np.repeat(ids, 2)
    assert keys(doubled[::2], block_size=block_size) == wanted
    full = n // block_size * block_size
    chain = module.KeyChain(block_size=block_size, root=ROOT, secret=SECRET)
    for text_keys in (module.text_keys, module.python_text_keys):
        assert text_keys(ids[:full].copy(), chain.root_key, chain._key, block_size) == wanted


@pytest.mark.parametrize("block_size", [16, 1000, 10_000])
def test_a_long_prompt_is_one_chain(block_size):
    """Longer than the pieces in which it is hashed, with blocks shorter and longer than a piece."""
    ids = np.random.default_rng(0).integers(0, 2**63 - 1, 30_500)
    parent = reference.root_key(SECRET_BYTES, {**FIELDS, "block_size": block_size})
    key = reference.derive_key("block", reference.master(SECRET_BYTES) + b"\x10")
    wanted = []
    for start in range(0, len(ids) // block_size * block_size, block_size):
        head = parent + block_size.to_bytes(4, "little")
        parent = blake3(head + ids[start : start + block_size].tobytes(), key=key).digest()
        wanted.append(parent)
    assert keys(ids, block_size=block_size) == keys(ids.tolist(), block_size=block_size) == wanted


def test_pure_python_by_environment(fresh_python):
    code = "from gpukey import keys; print(keys.text_keys is keys.python_text_keys)"
    assert fresh_python(code, GPUKEY_PURE_PYTHON="1").strip() == "True"


def test_other_forms_of_token_ids():
    import torch

    wanted = keys(list(range(64)))
    assert keys(range(64)) == keys(torch.arange(64)) == keys(torch.arange(64, dtype=torch.int32)) == wanted
    assert keys(np.arange(64, dtype=np.uint64)) == wanted
    mixed = [np.int64(i) if i % 2 else i for i in range(64)]
    assert keys(mixed) == wanted


# --- shape of the result ----------------------------------------------------------------------------------------------


def test_full_blocks_only():
    """vllm#49125: a partial block has no key, so none can survive. vllm#53495: no tokens, no keys."""
    assert keys([]) == keys(np.array([], np.int64)) == keys(range(15)) == []
    assert len(keys(range(16))) == len(keys(range(31))) == 1
    assert keys(range(40)) == keys(range(32))


def test_keys_are_32_bytes_and_unlike_each_other():
    """vllm PR#12621, LMCache PR#2999: the parent is always 32 bytes; equal blocks at two places have two keys."""
    made = keys([7] * 160)
    assert {len(key) for key in made} == {32}
    assert all(type(key) is bytes for key in made)
    assert len(set(made)) == 10


@pytest.mark.parametrize("delta", [1, 1 << 8, 1 << 16, 1 << 32, 1 << 62])
@pytest.mark.parametrize("position", [0, 7, 15, 16, 63])
def test_every_bit_of_every_id_counts(delta, position):
    """vllm-mlx PR#444, PR#126: ids are not cut, and not only a prefix of a block is hashed."""
    ids = list(range(1000, 1064))
    other = ids.copy()
    other[position] += delta
    assert shared(keys(ids), keys(other)) == position // 16


def test_prompts_that_diverge_inside_a_block_share_nothing_of_it():
    """Mooncake#4153: the unit that is hashed is the block that is shared."""
    assert shared(keys(range(64)), keys([*range(31), 99, *range(32, 64)])) == 1


def test_another_block_size_is_another_key_space():
    """lmdeploy#4930: one block of 16 and the first 16 tokens under another size have nothing in common."""
    made = [keys(range(64), block_size=size) for size in (1, 2, 8, 16, 32, 64)]
    assert len(set(itertools.chain(*made))) == sum(map(len, made))


def test_everything_in_the_call_is_in_the_key():
    base = keys(embeds=[span(20, 4)])
    assert shared(base, keys(embeds=[span(20, 4)], secret=Secret(bytes(16)))) == 0
    assert shared(base, keys(embeds=[span(20, 4)], root=ROOT.replace(cache_salt="t"))) == 0
    wide = keys(embeds=[EmbeddingSpan(20, rows(4, size=32))], digest_size=32)
    assert shared(base, wide) == 0
    assert shared(keys(), keys(digest_size=32)) == 0


# --- replaced rows ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [0, 5, 16, 30, 60])
def test_content_of_rows_is_keyed_from_the_first_block_that_they_touch(start):
    """lmdeploy#4933, the seed's own bug: the same ids with other rows, or none, share only what comes before."""
    base, other, none = (keys(embeds=embeds) for embeds in ([span(start, 4)], [span(start, 4, seed=1)], []))
    for one, two in itertools.combinations((base, other, none), 2):
        assert shared(one, two) == start // 16


def test_ids_under_rows_are_keyed():
    """Some models read them."""
    ids = list(range(64))
    ids[21] = 0
    assert shared(keys(ids, embeds=[span(20, 4)]), keys(embeds=[span(20, 4)])) == 1


def test_one_row_in_the_middle_of_a_long_span():
    """sglang#8342: a row swapped, doubled or changed in its last bit changes its block and all after it."""
    made = rows(48)
    base = keys(embeds=[EmbeddingSpan(8, made)])
    swapped = [*made[:30], made[31], made[30], *made[32:]]
    doubled = [*made[:31], made[30], *made[32:]]
    flipped = [*made[:30], made[30][:15] + bytes([made[30][15] ^ 1]), *made[31:]]
    for other in (swapped, doubled, flipped):
        assert shared(base, keys(embeds=[EmbeddingSpan(8, other)])) == 2


def test_how_the_caller_cut_the_rows_does_not_count():
    made = rows(40)
    base = keys(embeds=[EmbeddingSpan(8, made)])
    for cut in range(41):
        parts = [EmbeddingSpan(8, made[:cut]), EmbeddingSpan(8 + cut, made[cut:])]
        assert keys(embeds=parts) == keys(embeds=parts[::-1]) == base
    assert keys(embeds=[EmbeddingSpan(8 + i, [row]) for i, row in enumerate(made)]) == base


def test_how_the_fingerprints_are_held_does_not_count():
    made = rows(8)
    array = np.frombuffer(b"".join(made), np.uint8).reshape(8, 16)
    wide = np.zeros((16, 32), np.uint8)
    wide[::2, :16] = array
    base = keys(embeds=[EmbeddingSpan(8, made)])
    import torch

    for form in (array, wide[::2, :16], torch.from_numpy(array.copy()), list(array), tuple(map(bytearray, made))):
        assert keys(embeds=[EmbeddingSpan(8, form)]) == base


def test_a_gap_is_not_a_run():
    one = keys(embeds=[EmbeddingSpan(4, rows(4))])
    gap = keys(embeds=[EmbeddingSpan(4, rows(2)), EmbeddingSpan(7, rows(4)[2:])])
    moved = keys(embeds=[EmbeddingSpan(5, rows(4))])
    assert len({one[0], gap[0], moved[0]}) == 3


def test_no_rows_add_nothing():
    assert keys(embeds=[EmbeddingSpan(5, []), EmbeddingSpan(5, np.empty((0, 32), np.uint8), layout=b"x")]) == keys()
    assert keys(embeds=[EmbeddingSpan(500, [], attention="bidirectional")]) == keys()


def test_a_span_is_a_copy_of_its_rows():
    array = np.frombuffer(b"".join(rows(4)), np.uint8).reshape(4, 16).copy()
    made = EmbeddingSpan(0, array)
    base = keys(embeds=[made])
    array[:] = 0
    assert keys(embeds=[made]) == base


def test_a_bidirectional_span_is_keyed_whole_from_its_first_block():
    """4 rows against the same 4 rows and 4 more, both ways: distinct from the first block; causal: only from the
    second."""
    for attention, first in (("causal", 1), ("bidirectional", 0)):
        few, more = (keys(embeds=[span(12, n, attention=attention)]) for n in (4, 8))
        assert shared(few, more) == first
    assert shared(keys(embeds=[span(12, 8)]), keys(embeds=[span(12, 8, attention="bidirectional")])) == 0


def test_where_the_model_is_told_that_rows_stand_is_keyed():
    """dynamo PR#8341, sglang set_pad_value: equal rows as a 2 × 8 and a 4 × 4 grid have distinct block keys through the
    layout."""

    def grid(height, width):
        return np.array([(0, i // width, i % width) for i in range(height * width)], "<i8").tobytes()

    tall, wide = (keys(embeds=[span(20, 16, layout=grid(*shape))]) for shape in ((4, 4), (2, 8)))
    assert shared(tall, wide) == 1
    assert shared(tall, keys(embeds=[span(20, 16)])) == 1


# --- items ------------------------------------------------------------------------------------------------------------


def test_placeholders_are_told_apart_by_their_items():
    """LMCache#690, sglang-omni#258: equal placeholder ids, other content: no hit in or after the item."""
    one, other = (keys([5] * 64, items=[item(20, 30, identifier)]) for identifier in (IDENT, IDENT[::-1]))
    assert shared(one, other) == 1
    assert shared(one, keys([5] * 64)) == 1


def test_every_part_of_an_item_is_keyed():
    made = [
        item(20, 8),
        item(20, 9),
        item(21, 8),
        item(20, 8, modality="video"),
        item(20, 8, layout=b"g"),
        item(20, 8, IDENT + b"\0"),
        item(20, 8, IDENT.decode(), named=True),
    ]
    found = {keys(items=[one])[1] for one in made}
    assert len(found) == len(made)


def test_names_and_digests_are_two_namespaces():
    """vllm#55547: the same bytes as a caller's name and as a digest."""
    raw = b"sixteen bytes ok"
    assert shared(keys(items=[item(0, 4, raw)]), keys(items=[item(0, 4, raw.decode(), named=True)])) == 0


@pytest.mark.parametrize("same", [slice(0, 8), slice(-8, None)])
def test_the_whole_identifier_counts(same):
    """LMCache#3301, dynamo PR#9561: identifiers that share their low or high 64 bits."""
    one = pattern(32)
    other = bytearray(pattern(32, 100))
    other[same] = one[same]
    assert shared(keys(items=[item(0, 4, one)]), keys(items=[item(0, 4, bytes(other))])) == 0


def test_order_of_items():
    """dynamo PR#4577: A then B is not B then A; the order in the list does not count."""
    a, b = IDENT, IDENT[::-1]
    one, other = (keys(items=[item(0, 8, first), item(8, 8, second)]) for first, second in ((a, b), (b, a)))
    assert shared(one, other) == 0
    assert keys(items=[item(8, 8, b), item(0, 8, a)]) == one


def test_length_of_an_item_is_keyed_in_its_first_block():
    """One item of 8 against two of 4 with the same identifier, block size 4."""
    one = keys(range(8), block_size=4, items=[item(0, 8)])
    two = keys(range(8), block_size=4, items=[item(0, 4), item(4, 4)])
    assert shared(one, two) == 0


def test_items_may_overlap_items_and_rows():
    made = keys(embeds=[span(20, 8)], items=[item(18, 20), item(20, 8), item(20, 8, modality="audio")])
    assert len({made[1], keys()[1], keys(embeds=[span(20, 8)])[1]}) == 3


def test_equal_rows_under_two_grids_are_two_items():
    """dynamo PR#8341: the same bytes as 30 × 150 and as 150 × 30."""
    one, other = (item_id(IDENT, "image", secret=SECRET, grid_h=h, grid_w=w) for h, w in ((30, 150), (150, 30)))
    assert one != other
    assert shared(keys(items=[item(0, 4, one)]), keys(items=[item(0, 4, other)])) == 0
