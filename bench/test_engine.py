"""Cold against warm on the real checkpoint, in pytest-benchmark's terms; bench/engine.py has the whole table, beside transformers and vLLM."""

import os

import pytest
import torch

pytestmark = pytest.mark.skipif(
    not os.environ.get("GPUKEY_MODEL_DIR"),
    reason="needs a Qwen2.5-0.5B checkpoint; set GPUKEY_MODEL_DIR to its directory",
)
NUM_TOKENS = 448
WARM_ROUNDS = 7


@pytest.fixture(scope="module")
def llm():
    from gpukey.engine import LLM

    return LLM(os.environ["GPUKEY_MODEL_DIR"], dtype=torch.float32, num_blocks=256)


def ask(llm, number):
    from gpukey.engine import Prompt, SamplingParams

    rows = 0.02 * torch.randn(NUM_TOKENS, 896, generator=torch.Generator().manual_seed(number))
    prompt = Prompt([0] * NUM_TOKENS, [(0, rows)])
    return llm.generate(prompt, SamplingParams(max_tokens=1))[0].num_cached_tokens


@pytest.fixture(scope="module")
def cold():
    """Medians of the cold benchmark, for the warm one to print its ratio."""
    return []


@pytest.mark.benchmark(group="first token, 448 rows")
def test_cold(benchmark, llm, cold):
    numbers = iter(range(100))
    assert benchmark.pedantic(lambda: ask(llm, next(numbers)), rounds=3, warmup_rounds=1) == 0
    cold.append(benchmark.stats.stats.median)


@pytest.mark.benchmark(group="first token, 448 rows")
def test_warm(benchmark, llm, cold):
    ask(llm, 0)
    before = llm.stats.keying_seconds
    assert benchmark.pedantic(lambda: ask(llm, 0), rounds=WARM_ROUNDS) == 432
    median = benchmark.stats.stats.median
    share = (llm.stats.keying_seconds - before) / WARM_ROUNDS / median
    print(f"\nfirst token with 432 of 448 rows cached: {median:.3f} s; fingerprints and keys {share:.2%} of it")
    if cold:
        print(f"cold, of which nothing is cached: {cold[0]:.3f} s; cold over warm {cold[0] / median:.1f}x")
