"""A cold engine is transformers: the same tokens, greedily, with rows in place of some embeddings."""

import os

import pytest
import torch
from generate import greedy

from gpukey.engine import LLM, Prompt, SamplingParams
from gpukey.engine.tiny import tiny_model

SHAPES = [(1, 0, 1), (5, 1, 3), (16, 4, 8), (33, 8, 20), (64, 0, 64), (100, 25, 50)]  # tokens, start, rows


@pytest.mark.parametrize("architecture", ["Qwen2", "Llama", "Qwen3"])
@pytest.mark.parametrize(("length", "start", "count"), SHAPES)
def test_tiny_models(architecture, length, start, count, ids, rows, secret):
    spans = [(start, rows(count, seed=length))]
    want = greedy(tiny_model(architecture, dtype=torch.float64), ids(length), spans, 12)
    llm = LLM(tiny_model(architecture, dtype=torch.float64), secret=secret, num_blocks=64)
    for _ in range(2):
        assert llm.generate(Prompt(ids(length), spans), SamplingParams(max_tokens=12))[0].token_ids == want
    assert llm.generate(Prompt(ids(length)), SamplingParams(max_tokens=12))[0].token_ids == greedy(
        tiny_model(architecture, dtype=torch.float64), ids(length), [], 12
    )


def test_many_at_once_equal_transformers(ids, rows, reference, llm):
    spans = [(i, rows(2 + 3 * i, seed=i)) for i in range(8)]
    prompts = [Prompt(ids(8 + 5 * i, seed=i), [span]) for i, span in enumerate(spans)]
    want = [greedy(reference, list(p.token_ids), [s], 9) for p, s in zip(prompts, spans, strict=True)]
    assert [out.token_ids for out in llm.generate(prompts, SamplingParams(max_tokens=9))] == want


@pytest.mark.model
def test_the_real_model_in_float32(secret):
    """Five prompts, text and rows, cold and warm, against generate on the same checkpoint."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    directory = os.environ["GPUKEY_MODEL_DIR"]
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(directory)
    texts = [
        "The capital of France is",
        "def fibonacci(n):",
        "Water boils at a temperature of",
        "One, two, three, four,",
        "The opposite of hot is",
    ]
    generator = torch.Generator().manual_seed(0)
    prompts = []
    for i, text in enumerate(texts):
        ids = tokenizer.encode(text)
        picked = torch.randint(0, 150_000, (24,), generator=generator)
        rows = model.get_input_embeddings()(picked).detach() * (-1) ** i
        prompts.append(Prompt([*ids, *[0] * 24, *ids], [(len(ids), rows)]) if i % 2 else Prompt(ids))
    want = [greedy(model, list(p.token_ids), list(p.embeds), 8) for p in prompts]
    del model
    llm = LLM(directory, dtype=torch.float32, secret=secret, num_blocks=64)
    params = SamplingParams(max_tokens=8, ignore_eos=True)
    assert [llm.generate(p, params)[0].token_ids for p in prompts] == want
    warm = llm.generate(prompts, params)
    assert [out.token_ids for out in warm] == want
    assert warm[1].num_cached_tokens > 0


@pytest.mark.model
def test_text_and_stop_strings_of_the_real_model(secret):
    llm = LLM(os.environ["GPUKEY_MODEL_DIR"], secret=secret, num_blocks=32)
    prompt, params = "The capital of France is", SamplingParams(max_tokens=8, stop=".")
    parts = [part.text for part in llm.stream(prompt, params)]
    out = llm.generate(prompt, params)[0]
    assert (out.text, out.finish_reason, parts[-1]) == (" Paris", "stop", " Paris")
