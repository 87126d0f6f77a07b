"""Cold against warm on the real checkpoint, in pytest-benchmark's terms; bench/engine.py has the whole table."""

import os

import pytest
import torch

pytestmark = pytest.mark.skipif(
    not os.environ.get("GPUKEY_MODEL_DIR"),
    reason="needs a Qwen2.5-0.5B checkpoint; set GPUKEY_MODEL_DIR to its directory",
)
NUM_TOKENS = 448


@pytest.fixture(scope="module")
def llm():
    from gpukey.engine import LLM

    return LLM(os.environ["GPUKEY_MODEL_DIR"], dtype=torch.bfloat16, num_blocks=256)


def ask(llm, number):
    from gpukey.engine import Prompt, SamplingParams

    rows = 0.02 * torch.randn(NUM_TOKENS, 896, generator=torch.Generator().manual_seed(number))
    prompt = Prompt([0] * NUM_TOKENS, [(0, rows.bfloat16())])
    return llm.generate(prompt, SamplingParams(max_tokens=1))[0].num_cached_tokens


@pytest.mark.benchmark(group="first token, 448 rows")
def test_cold(benchmark, llm):
    numbers = iter(range(100))
    assert benchmark.pedantic(lambda: ask(llm, next(numbers)), rounds=3, warmup_rounds=1) == 0


@pytest.mark.benchmark(group="first token, 448 rows")
def test_warm(benchmark, llm):
    ask(llm, 0)
    assert benchmark.pedantic(lambda: ask(llm, 0), rounds=7, warmup_rounds=1) == 432
    benchmark.extra_info["keying_seconds"] = llm.stats.keying_seconds
