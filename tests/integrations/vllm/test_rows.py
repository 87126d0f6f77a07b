"""Block keys of prompt_embeds: what aliases in vLLM, and no longer with the hooks."""

from __future__ import annotations

import pytest
import torch

from gpukey import reference

pytestmark = pytest.mark.engine

ROWS, HIDDEN = 40, 24


@pytest.fixture
def embeds():
    return torch.randn(ROWS, HIDDEN, generator=torch.Generator().manual_seed(5)).bfloat16()


def _pairs(embeds):
    """Two prompts that the model reads differently, and that differ from position 3 on or earlier."""
    zero = embeds.clone()
    zero[3] = 0
    token = [position == 3 for position in range(ROWS)]
    return {
        "a token against a zero row": ((([0] * ROWS), zero, token), (([0] * ROWS), zero, [False] * ROWS)),
        "bfloat16 against float16 bits": ((None, embeds, None), (None, embeds.view(torch.float16), None)),
    }


@pytest.mark.parametrize("case", ["a token against a zero row", "bfloat16 against float16 bits"])
def test_without_the_hooks_two_prompts_share_every_key(admit, embeds, case):
    one, two = (admit(*prompt).block_hashes for prompt in _pairs(embeds)[case])
    assert one == two
    assert len(one) == ROWS // 16


@pytest.mark.parametrize("case", ["a token against a zero row", "bfloat16 against float16 bits"])
def test_with_the_hooks_they_share_none(admit, hooks, embeds, case):
    one, two = (admit(*prompt).block_hashes for prompt in _pairs(embeds)[case])
    assert len(one) == len(two) == ROWS // 16
    assert not set(one) & set(two)


def _bit(embeds, row):
    other = embeds.clone()
    other.view(torch.int16)[row, 7] ^= 1
    return other


@pytest.mark.parametrize(
    ("change", "shared"),
    [
        (lambda e: e.clone(), 2),
        (lambda e: -e, 0),
        (lambda e: _bit(e, 0), 0),
        (lambda e: _bit(e, 15), 0),
        (lambda e: _bit(e, 16), 1),
        (lambda e: _bit(e, 35), 2),  # in no full block
        (lambda e: e[[1, 0, *range(2, ROWS)]], 0),
        (lambda e: e.reshape(HIDDEN, ROWS), 0),  # the same bytes as rows of another width
        (lambda e: e.repeat_interleave(2, 1)[:, ::2], 2),  # a strided view of the same values
    ],
)
def test_blocks_are_shared_up_to_the_first_row_that_differs(admit, hooks, embeds, change, shared):
    one, two = admit(None, embeds).block_hashes, admit(None, change(embeds)).block_hashes
    assert [a == b for a, b in zip(one, two, strict=False)][:2] == [index < shared for index in range(min(2, len(two)))]


@pytest.mark.parametrize("block_size", [1, 4, 16, 32])
def test_any_block_size_folds_the_same_fingerprints(kv, admit, hooks, embeds, secret_bytes, monkeypatch, block_size):
    """The engine asks for ranges past the rows, empty ones, overlapping ones (look-ahead), and again at another block size (events)."""
    calls = []
    original = hooks.prompt_embeds.fingerprint_rows
    monkeypatch.setattr(hooks.prompt_embeds, "fingerprint_rows", lambda *a, **k: calls.append(a) or original(*a, **k))
    request = admit(None, embeds, block_size=block_size)
    rows = [bytes(row.view(torch.uint8).tolist()) for row in embeds]
    prints = [reference.row_fingerprint(secret_bytes, row, "bfloat16", HIDDEN) for row in rows]
    for start in range(0, ROWS + 2 * block_size, block_size):
        for end in (start + block_size, start + block_size + 1, start):
            expected = prints[start : min(end, ROWS)]
            (found,) = kv._gen_prompt_embeds_extra_hash_keys(request, start, end) or [None]
            if not expected:
                assert found is None
            else:
                fold = reference.span_fingerprint(secret_bytes, expected, "bfloat16", HIDDEN)
                assert found == ("prompt_embeds", bytes(4) + len(expected).to_bytes(4, "little") + fold)
    assert len(calls) == 1


def test_a_block_of_tokens_under_the_mask_is_a_text_block(admit, hooks, embeds):
    """The model never reads a row under a token, so its content is no part of the key."""
    ids, mask = list(range(100, 100 + ROWS)), [True] * 20 + [False] * 20
    mixed = admit(ids, embeds, mask)
    other = embeds.clone()
    other[:20] = 7
    assert admit(ids, other, mask).block_hashes == mixed.block_hashes
    assert mixed.block_hashes[0] == admit(ids).block_hashes[0]
    assert mixed.block_hashes[1] != admit(ids).block_hashes[1]


def test_the_mask_has_a_position_a_row(admit, hooks, embeds):
    with pytest.raises(ValueError, match="prompt_is_token_ids has 39 positions; prompt_embeds has 40 rows"):
        admit([0] * 40, embeds, [False] * 39)


def test_in_one_process_the_engine_runs_what_was_keyed(admit, hooks, one_process, embeds):
    mine, before = embeds.clone(), admit(None, embeds)
    request = admit(None, mine)
    mine.zero_()
    assert torch.equal(request.prompt_embeds, embeds)
    assert request.block_hashes == before.block_hashes


def test_a_short_prompt_is_read_at_admission(kv, admit, hooks, one_process, embeds):
    """Its first block fills in decode, on the scheduler's loop, when the caller may long have written to its tensor."""
    mine = embeds[:10].clone()
    requests = [admit(None, mine), admit(None, embeds[:10])]
    mine.zero_()
    for request in requests:
        request.append_output_token_ids([5] * 6)
    one, two = (request.block_hashes for request in requests)
    assert one == two
    assert len(one) == 1


def test_text_costs_nothing(admit, hooks, monkeypatch):
    """No secret, no digest, no attribute, and the keys that vLLM gives without the hooks."""

    def forbidden(*_):
        raise AssertionError("a text request reached gpukey")

    hooks.uninstall()
    plain = admit(list(range(64)), salt="tenant").block_hashes
    hooks.install()
    for name in ("default_secret", "fingerprint_rows", "rows_of"):
        monkeypatch.setattr(hooks.prompt_embeds, name, forbidden)
    request = admit(list(range(64)), salt="tenant")
    assert request.block_hashes == plain
    assert not [name for name in request.__dict__ if "gpukey" in name]
