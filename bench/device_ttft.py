"""Time to first token of a Qwen2 of 0.5B's shape with random weights: content keys against token keys, and whether the
host waits for the device between submit and the first logits. `python bench/device_ttft.py OUT.json [--rehearse]`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch
from device_timing import machine, synchronize, write

import gpukey
from gpukey.engine import LLM, Prompt, SamplingParams
from gpukey.engine.tiny import tiny_model

SHAPE = {
    "vocab_size": 151_936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
}
TEXT, SPAN, TAIL = 64, 448, 20
ONE_TOKEN = SamplingParams(max_tokens=1, temperature=0.0)


def build(device: str, shape: dict[str, Any]) -> dict[str, LLM]:
    """One engine a kind of key, of the same weights."""
    secret = gpukey.Secret(b"a secret for benchmarks, nothing else")
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    return {
        identity: LLM(tiny_model(dtype=dtype, **shape), device=device, secret=secret, identity=identity)
        for identity in ("tokens", "content")
    }


def prompt(hidden: int, dtype: torch.dtype, device: str) -> Prompt:
    rows = torch.randn(SPAN, hidden, dtype=dtype, device=device)
    return Prompt([1 + i % 499 for i in range(TEXT + SPAN + TAIL)], embeds=[(TEXT, rows)])


def first_token_ms(llm: LLM, request: Prompt, device: str) -> float:
    llm.evict_all()
    synchronize(device)
    start = time.perf_counter()
    llm.generate([request], ONE_TOKEN)
    return (time.perf_counter() - start) * 1e3


def first_sync(llm: LLM, request: Prompt) -> str | None:
    """None when no call between submit and the first logits waits for the device, else what torch said."""
    runner = llm.engine.runner
    forward = runner.forward

    def watched(*arguments: Any) -> torch.Tensor:
        logits = forward(*arguments)
        torch.cuda.set_sync_debug_mode("default")
        return logits

    runner.forward = watched  # type: ignore[method-assign]
    llm.evict_all()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        llm.generate([request], ONE_TOKEN)
        return None
    except RuntimeError as error:
        return f"{error}; {error.__cause__}"
    finally:
        torch.cuda.set_sync_debug_mode("default")
        runner.forward = forward  # type: ignore[method-assign]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out")
    parser.add_argument("--rehearse", action="store_true", help="on a CPU, with a tiny model")
    options = parser.parse_args()
    device, shape, rounds = ("cpu", {}, 5) if options.rehearse else ("cuda", SHAPE, 40)
    llms = build(device, shape)
    report: dict[str, Any] = {"machine": machine(device)}
    times: dict[str, list[float]] = {identity: [] for identity in llms}
    for _ in range(rounds + 3):
        for identity, llm in llms.items():
            runner = llm.engine.runner
            times[identity].append(first_token_ms(llm, prompt(runner.hidden, runner.dtype, device), device))
    medians = {identity: statistics.median(values[3:]) for identity, values in times.items()}
    report |= {f"ttft_{identity}_ms": value for identity, value in medians.items()}
    report["content_over_tokens"] = medians["content"] / medians["tokens"]
    runner = llms["content"].engine.runner
    if device == "cuda":
        report["sync_before_first_logits"] = first_sync(llms["content"], prompt(runner.hidden, runner.dtype, device))
    else:
        report["sync_before_first_logits"] = "not measured: no GPU"
    write(options.out, report)
    print(report)


if __name__ == "__main__":
    main()
