"""The mini engine beside transformers' generate and vLLM: one checkpoint, the same prompts, medians of alternating
rounds.

python bench/engine.py MODEL [--dtype bfloat16] [--rounds 5] [--clock cpu] [--json]; vLLM's column where
GPUKEY_VLLM_PYTHON names a Python with vLLM. MODEL is a Qwen2.5-0.5B directory. 448 rows are the whole prompt of the
TTFT lines; eight prompts of 32 tokens make 32 more in the lines of concurrency.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))
from engine_workload import CONCURRENT, LONG, ROWS, medians, rows, seconds, texts

from gpukey.engine import LLM, Prompt, SamplingParams

ONE = SamplingParams(max_tokens=1)
MANY = SamplingParams(max_tokens=LONG, ignore_eos=True)
WHOLE = 16


def measure(model: str, dtype: torch.dtype, rounds: int, clock: str) -> dict[str, dict[str, float]]:
    """Seconds by engine and line, for the engine and for transformers in this process."""
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(model, dtype=dtype).eval()
    llm = LLM(model, dtype=dtype, num_blocks=512)
    shares: list[float] = []
    if clock == "cpu":
        torch.set_num_threads(1)
    cached: list[int] = []

    @torch.no_grad()
    def transformers(embeds: torch.Tensor, tokens: int) -> None:
        mask = torch.ones(1, len(embeds), dtype=torch.int64)
        reference.generate(
            inputs_embeds=embeds[None], attention_mask=mask, max_new_tokens=tokens, do_sample=False,
            repetition_penalty=1.0, eos_token_id=None, pad_token_id=0,
        )  # fmt: skip

    def ask(number: int, params: SamplingParams = ONE) -> None:
        out = llm.generate(Prompt([0] * ROWS, [(0, rows(number, dtype))]), params)[0]
        cached.append(out.num_cached_tokens)

    def warm(number: int) -> None:
        before = llm.stats.keying_seconds
        taken = seconds(lambda: ask(number), "wall")
        shares.append((llm.stats.keying_seconds - before) / taken)

    whole = SamplingParams(max_tokens=WHOLE, ignore_eos=True)
    figures = medians(
        rounds,
        {
            "gpukey cold": ask,
            "transformers cold": lambda n: transformers(rows(n, dtype), 1),
            "gpukey warm": warm,
            "gpukey whole": lambda n: ask(1000 + n, whole),
            "transformers whole": lambda n: transformers(rows(1000 + n, dtype), WHOLE),
            "gpukey sequential": lambda n: [llm.generate([p], MANY) for p in texts(2 * n)],
            "gpukey together": lambda n: llm.generate(texts(2 * n + 1), MANY),
        },
        clock,
    )
    result: dict[str, dict[str, float]] = {
        "gpukey": {"keys": sorted(shares[1:])[len(shares[1:]) // 2]},
        "transformers": {},
    }
    result["gpukey"]["cached"] = cached[-2]
    for name, value in figures.items():
        engine, line = name.split()
        result[engine][line] = value
    return result


def measure_vllm(python: str, model: str, dtype: str, rounds: int, clock: str) -> dict[str, float]:
    """The same lines from vLLM in its own process and environment."""
    env = {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1"}
    script = str(Path(__file__).with_name("engine_vllm.py"))
    done = subprocess.run(
        [python, script, model, dtype, str(rounds), clock],
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    figures: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


LINES = {
    "cold": f"cold, {ROWS} rows, first token, s",
    "whole": f"cold, {ROWS} rows, {WHOLE} tokens, s",
    "warm": "the same rows again, first token, s",
    "cached": "of them cached, tokens",
    "keys": "fingerprints and keys, share of the warm line",
    "sequential": f"{CONCURRENT} requests one after another, s",
    "together": f"{CONCURRENT} requests at once, s",
}


def table(results: dict[str, dict[str, float]]) -> str:
    """Lines of seconds, then the ratios that matter."""
    engines = list(results)
    lines = [f"{'':47}" + "".join(f"{name:>15}" for name in engines)]
    for key, title in LINES.items():
        cells = [results[name].get(key) for name in engines]
        form = "15.0f" if key == "cached" else "15.2%" if key == "keys" else "15.3f"
        lines.append(f"{title:47}" + "".join(f"{'':>15}" if cell is None else f"{cell:{form}}" for cell in cells))
    for title, over, under in (
        ("cold over warm", "cold", "warm"),
        ("one after another over at once", "sequential", "together"),
    ):
        cells = [figures[over] / figures[under] if under in figures else None for figures in results.values()]
        lines.append(f"{title:47}" + "".join(f"{'':>15}" if cell is None else f"{cell:14.2f}x" for cell in cells))
    ratio = [results["gpukey"][line] / results["transformers"][line] for line in ("cold", "whole")]
    lines.append(f"cold, gpukey over transformers: {ratio[0]:.3f} (first token), {ratio[1]:.3f} ({WHOLE} tokens)")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--clock", default="wall", choices=["wall", "cpu"], help="cpu: one thread, this process' own time"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    results = measure(options.model, getattr(torch, options.dtype), options.rounds, options.clock)
    python = os.environ.get("GPUKEY_VLLM_PYTHON")
    if python:
        results["vllm"] = measure_vllm(python, options.model, options.dtype, options.rounds, options.clock)
    print(json.dumps(results) if options.json else table(results))
    return results


if __name__ == "__main__":
    main()
