"""lmdeploy#4933: the same ids with E, then with -E. Keyed by content the second is a miss; keyed by ids it is wrong."""

import pytest
import torch

from gpukey.engine import LLM, Prompt, SamplingParams

TEXT, SPAN, TAIL, BLOCK = 8, 32, 6, 4
PARAMS = SamplingParams(max_tokens=8)


def flipped(rows: torch.Tensor, bit: int) -> torch.Tensor:
    """One bit of the last value changed."""
    words = rows.clone().view(torch.int64)
    words[-1, -1] ^= 1 << bit
    return words.view(torch.float64)


@pytest.fixture
def ask(llm, ids):
    def run(rows, engine=llm):
        spans = [] if rows is None else [(TEXT, rows)]
        return engine.generate(Prompt(ids(TEXT + SPAN + TAIL), spans), PARAMS)[0]

    return run


def test_content_reuses_what_stands_before_the_span(ask, llm, rows):
    first, second = ask(rows(SPAN)), ask(-rows(SPAN))
    assert (first.num_cached_tokens, second.num_cached_tokens) == (0, TEXT)
    llm.evict_all()
    assert ask(-rows(SPAN)).token_ids == second.token_ids
    again = ask(rows(SPAN))
    assert again.token_ids == first.token_ids != second.token_ids
    assert ask(rows(SPAN)).num_cached_tokens == (TEXT + SPAN + TAIL - 1) // BLOCK * BLOCK


@pytest.mark.parametrize("bit", [0, 31, 51, 63])
def test_one_bit_is_another_content(ask, rows, bit):
    """The bit is in the last row, so all blocks before that row's are shared and none from it on."""
    ask(rows(SPAN))
    assert ask(flipped(rows(SPAN), bit)).num_cached_tokens == TEXT + SPAN - BLOCK


def test_no_rows_is_another_content(ask, rows):
    with_rows, without = ask(rows(SPAN)), ask(None)
    assert without.num_cached_tokens == TEXT
    assert without.token_ids != with_rows.token_ids


def test_tokens_identity_is_blind_and_says_so(ask, rows, secret, caplog):
    blind = LLM(dtype=torch.float64, secret=secret, block_size=BLOCK, num_blocks=64, identity="tokens")
    assert "blind to embeddings" in caplog.text
    ask(rows(SPAN), blind)
    wrong = ask(-rows(SPAN), blind)
    assert wrong.num_cached_tokens >= TEXT + SPAN
    blind.evict_all()
    assert ask(-rows(SPAN), blind).token_ids != wrong.token_ids


def test_the_snapshot_is_taken_at_submit(llm, rows, ids):
    """What the caller does to its tensor after submit changes neither the output nor the key."""
    given, prompt = rows(SPAN), ids(TEXT + SPAN)
    want = llm.generate(Prompt(prompt, [(TEXT, given.clone())]), PARAMS)[0]
    for tensor in (given, given.float()):
        request = llm.submit(Prompt(prompt, [(TEXT, tensor)]), PARAMS)
        tensor.zero_()
        while request.finish_reason is None:
            llm.engine.step()
        if tensor is given:
            assert request.num_cached_tokens >= TEXT + SPAN - BLOCK
            assert request.output_ids == want.token_ids


def test_the_key_is_of_the_cast_rows(rows, ids, secret):
    """float32 rows and the bfloat16 rows that the model sees them as are one content."""
    llm = LLM(dtype=torch.bfloat16, secret=secret, block_size=BLOCK, num_blocks=64)
    given = rows(SPAN).float()
    llm.generate(Prompt(ids(TEXT + SPAN), [(TEXT, given)]), PARAMS)
    out = llm.generate(Prompt(ids(TEXT + SPAN), [(TEXT, given.bfloat16())]), PARAMS)[0]
    assert out.num_cached_tokens == TEXT + SPAN - BLOCK


def test_views_and_strides_are_their_values(llm, rows, ids):
    prompt, wide = ids(TEXT + SPAN), torch.zeros(SPAN, 130, dtype=torch.float64)
    wide[:, 1:65] = rows(SPAN)
    forms = [rows(SPAN), wide[:, 1:65], rows(SPAN).t().contiguous().t(), torch.view_as_complex(
        torch.stack([torch.zeros(SPAN, 64, dtype=torch.float64), -rows(SPAN)], -1)
    ).conj().imag]  # fmt: skip
    outs = [llm.generate(Prompt(prompt, [(TEXT, form)]), PARAMS)[0] for form in forms]
    assert all(out.token_ids == outs[0].token_ids for out in outs)
    assert [out.num_cached_tokens for out in outs[1:]] == [TEXT + SPAN - BLOCK] * 3
