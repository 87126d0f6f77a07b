"""vLLM's row of bench/engine.py: run by it with the Python that has vLLM. `engine_vllm.py MODEL DTYPE ROUNDS CLOCK`
prints JSON last.
"""

import json
import sys

import torch
from engine_workload import LONG, medians, rows, texts
from vllm import LLM, SamplingParams


def main(model: str, dtype: str, rounds: int, clock: str) -> None:
    if clock == "cpu":
        torch.set_num_threads(1)
    llm = LLM(
        model,
        dtype=dtype,
        enable_prompt_embeds=True,
        enable_prefix_caching=True,
        enforce_eager=True,
        max_model_len=1024,
    )
    one, long = (
        SamplingParams(max_tokens=1, temperature=0),
        SamplingParams(max_tokens=LONG, temperature=0, ignore_eos=True),
    )
    cached = []

    def embeds(number: int) -> None:
        out = llm.generate([{"prompt_embeds": rows(number, getattr(torch, dtype))}], one, use_tqdm=False)
        cached.append(out[0].num_cached_tokens)

    def ids(number: int) -> list[dict]:
        return [{"prompt_token_ids": text} for text in texts(number)]

    figures = medians(
        rounds,
        {
            "cold": embeds,
            "warm": embeds,
            "sequential": lambda n: [llm.generate([p], long, use_tqdm=False) for p in ids(2 * n)],
            "together": lambda n: llm.generate(ids(2 * n + 1), long, use_tqdm=False),
        },
        clock,
    )
    print(json.dumps({**figures, "cached": cached[-1]}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
