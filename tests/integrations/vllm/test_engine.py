"""vLLM itself on the CPU, with and without the hooks, in both multiprocessing modes: what it reuses, and whether its answers are right."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest

pytestmark = pytest.mark.engine

SCENARIO = pathlib.Path(__file__).parents[2] / "_support" / "vllm_scenario.py"
CASES = {
    "plain": {"GPUKEY_VLLM": "0", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
    "hooks, one process": {"GPUKEY_VLLM": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
    "hooks, engine core apart": {"GPUKEY_VLLM": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "1"},
}
HOOKED = [case for case in CASES if case != "plain"]
BLOCK = 32


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """A random Qwen2 of 2 layers whose weights are large enough for prompts to matter."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.3,
        tie_word_embeddings=False,
    )
    folder = tmp_path_factory.mktemp("model")
    Qwen2ForCausalLM(config).bfloat16().save_pretrained(folder)
    return folder


class Runs:
    """The scenario's outcome in each case, run when first asked for."""

    def __init__(self, model, rows, *steps, **settings):
        self.arguments, self.rows, self.settings, self._done = [str(model), str(rows), *steps], rows, settings, {}

    def __getitem__(self, case):
        if case not in self._done:
            self._done[case] = self._run(CASES[case])
        return self._done[case]

    def _run(self, case):
        settings = {
            "HF_HUB_OFFLINE": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "GPUKEY_SECRET": "a secret for tests, long enough",
            **self.settings,
        }
        command = [sys.executable, str(SCENARIO), *self.arguments]
        done = subprocess.run(
            command, capture_output=True, text=True, env={**os.environ, **settings, **case}, timeout=900
        )
        lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
        return json.loads(lines[-1].removeprefix("RESULT "))


@pytest.fixture(scope="session")
def tiny(tiny_model):
    return Runs(tiny_model, 100)


@pytest.fixture(scope="session")
def real():
    return Runs(os.environ["GPUKEY_MODEL_DIR"], 448, "E", "-E", "E again", OMP_NUM_THREADS="2")


def _reused(run):
    return {name: step[0] for name, step in run["warm"].items()}


def _answers(run, temperature):
    return {name: step[1] for name, step in run[temperature].items()}


def _check(run, plain, reused):
    assert _reused(run) == reused
    assert _answers(run, "warm") == _answers(plain, "cold")


def test_without_the_hooks_answers_come_from_another_prompt(tiny):
    run = tiny["plain"]
    assert _reused(run)["float16"] == _reused(run)["token 0"] == 96
    wrong = {name for name, answer in _answers(run, "warm").items() if answer != _answers(run, "cold")[name]}
    assert wrong == {"float16", "token 0"}


@pytest.mark.parametrize("case", HOOKED)
def test_with_the_hooks_every_answer_is_its_own(tiny, case):
    others = dict.fromkeys(["E", "-E", "float16", "zero row", "token 0", "ids alone"], 0)
    _check(tiny[case], tiny["plain"], {**others, "E again": 96, "bit": 2 * BLOCK})
    cold = _answers(tiny["plain"], "cold")
    assert len({tuple(answer) for answer in cold.values()}) >= 6, "the prompts must matter to this model"


@pytest.mark.parametrize("case", HOOKED)
def test_only_an_authentic_envelope_is_read(tiny, case):
    extra, right = tiny[case]["extra"], tiny["plain"]["cold"]["E"]
    assert extra["envelope"] == [96, right[1], "length"]
    assert extra["hex over http"] == extra["list over http"] == [96, right[1], "length"]
    cached, answer, reason = extra["forged"]
    assert (cached, answer) == (0, [])
    assert reason == "error" or "MAC" in reason


@pytest.mark.model
@pytest.mark.parametrize("case", HOOKED)
def test_the_real_checkpoint(real, case):
    _check(real[case], real["plain"], {"E": 0, "-E": 0, "E again": 416})
