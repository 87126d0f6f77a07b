"""How tokens are chosen and when a request ends."""

from collections import Counter

import pytest
import torch

from gpukey.engine import SamplingParams
from gpukey.engine.request import Request
from gpukey.engine.sampler import logprobs, sample, uniform
from gpukey.engine.text import find_stop, settled


def requests(count, seed=0, **keywords):
    params = SamplingParams(temperature=keywords.pop("temperature", 1.0), **keywords)
    return [Request(str(i), i, [1], [], params, seed + i) for i in range(count)]


def test_greedy_is_argmax():
    logits = torch.randn(5, 40, generator=torch.Generator().manual_seed(0))
    assert sample(logits, requests(5, temperature=0.0)) == logits.argmax(-1).tolist()


def test_frequencies_follow_the_softmax():
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0])
    drawn = Counter(sample(logits.expand(4000, 4), requests(4000)))
    want = torch.softmax(logits, 0)
    assert all(abs(drawn[token] / 4000 - want[token]) < 0.03 for token in range(4))


@pytest.mark.parametrize(
    ("keywords", "kept"),
    [({"top_k": 1}, {2}), ({"top_k": 2}, {2, 0}), ({"top_p": 0.01}, {2}), ({"top_p": 0.7}, {2, 0}),
     ({"top_k": 3, "top_p": 0.99}, {2, 0, 3}), ({"top_k": 99}, {0, 1, 2, 3}), ({"temperature": 1e-6}, {2})],
)  # fmt: skip
def test_what_is_kept(keywords, kept):
    """Probabilities 0.3, 0.05, 0.5, 0.15: top-p keeps the fewest that reach it."""
    logits = torch.tensor([0.3, 0.05, 0.5, 0.15]).log().expand(500, 4)
    assert set(sample(logits, requests(500, **keywords))) == kept


def test_a_draw_depends_on_nothing_else_in_the_batch():
    logits = torch.randn(9, 30, generator=torch.Generator().manual_seed(1))
    batch = requests(9, top_p=0.9)
    together = sample(logits, batch)
    assert together == [sample(logits[i : i + 1], [batch[i]])[0] for i in range(9)]
    assert len({uniform(seed, index) for seed in range(30) for index in range(30)}) == 900


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_logits_that_are_not_finite_give_a_token(bad):
    logits = torch.full((3, 8), bad)
    assert all(0 <= token < 8 for token in sample(logits, requests(3)) + sample(logits, requests(3, temperature=0.0)))


def test_logprobs_are_of_the_raw_logits():
    logits = torch.randn(2, 10, generator=torch.Generator().manual_seed(2))
    logs = torch.log_softmax(logits.double(), -1)
    first, second = logprobs(logits, [*requests(1, logprobs=3), *requests(1)], [7, 1])
    assert second is None
    assert first == pytest.approx({int(i): float(logs[0, i]) for i in {7, *logs[0].topk(3).indices.tolist()}})


def test_seeds_and_batches(llm, ids):
    params = [SamplingParams(max_tokens=10, temperature=1.0, seed=seed) for seed in (1, 2, 1)]
    together = [out.token_ids for out in llm.generate([ids(9)] * 3, params)]
    alone = [llm.generate([ids(9)], param)[0].token_ids for param in params]
    assert together == alone
    assert together[0] == together[2] != together[1]
    unseeded = SamplingParams(max_tokens=10, temperature=1.0)
    assert len({tuple(out.token_ids) for out in llm.generate([ids(9)] * 4, unseeded)}) == 4


def test_stop_ids_and_eos(llm, ids):
    tokens = llm.generate([ids(9)], SamplingParams(max_tokens=10))[0].token_ids
    stop = tokens[4]
    cut = tokens[: tokens.index(stop) + 1]
    out = llm.generate([ids(9)], SamplingParams(max_tokens=10, stop_token_ids=[stop]))[0]
    assert (out.token_ids, out.finish_reason) == (cut, "stop")
    llm.engine.runner.eos_token_ids = frozenset([stop])
    assert llm.generate([ids(9)], SamplingParams(max_tokens=10))[0].token_ids == cut
    out = llm.generate([ids(9)], SamplingParams(max_tokens=10, ignore_eos=True))[0]
    assert (out.token_ids, out.finish_reason) == (tokens, "length")


def test_logprobs_of_a_request(llm, ids):
    out = llm.generate([ids(9)], SamplingParams(max_tokens=4, logprobs=2))[0]
    assert len(out.logprobs) == 4
    assert all(max(entry, key=entry.get) == token for entry, token in zip(out.logprobs, out.token_ids, strict=True))
    assert llm.generate([ids(9)])[0].logprobs is None


class Letters:
    """A tokenizer of one letter a token."""

    def decode(self, tokens, skip_special_tokens):
        return "".join(chr(97 + token % 26) for token in tokens)

    def encode(self, text):
        return [ord(letter) - 97 for letter in text]


def test_stop_strings(llm):
    llm.tokenizer = llm.engine.tokenizer = Letters()
    text = llm.generate(["hello"], SamplingParams(max_tokens=10))[0].text
    assert len(text) == 10
    stop = text[3:6]
    out = llm.generate(["hello"], SamplingParams(max_tokens=10, stop=stop))[0]
    assert (out.text, out.finish_reason) == (text[: text.index(stop)], "stop")
    parts = [part.text for part in llm.stream("hello", SamplingParams(max_tokens=10, stop=[stop, "?"]))]
    assert all(out.text.startswith(part) for part in parts)
    assert parts[-1] == out.text


def test_text_that_later_tokens_may_change_is_held_back():
    assert settled("abc", ["cd", "bcx"]) == "a"
    assert settled("abc\ufffd", ()) == "abc"
    assert settled("abc", ["x"]) == "abc"
    assert find_stop("abcabc", ["ca", "b"]) == 1
    assert find_stop("abc", []) is None
