"""usage: python vllm_scenario.py MODEL ROWS [STEP ...]    One vLLM engine, a row of requests (default all); prints one line of JSON.

GPUKEY_VLLM and VLLM_ENABLE_V1_MULTIPROCESSING in the environment choose the case. Without the hooks each request then runs again, cold. Each step
is [num_cached_tokens, output ids, finish reason].
"""

from __future__ import annotations

import json
import os
import sys

import torch

BLOCK = 32


def prompts(rows: int, hidden: int) -> dict[str, dict]:
    embeds = torch.randn(rows, hidden, generator=torch.Generator().manual_seed(1)).bfloat16()
    bit = embeds.clone()
    bit.view(torch.int16)[2 * BLOCK, 5] ^= 1 << 14  # the top bit of an exponent, in the third block
    zero = embeds.clone()
    zero[3] = 0
    mixed = {"prompt_embeds": zero, "prompt_token_ids": [0] * rows}
    return {
        "E": {"prompt_embeds": embeds},
        "-E": {"prompt_embeds": -embeds},
        "E again": {"prompt_embeds": embeds},
        "bit": {"prompt_embeds": bit},
        "float16": {"prompt_embeds": embeds.view(torch.float16)},
        "zero row": {**mixed, "prompt_is_token_ids": [False] * rows},
        "token 0": {**mixed, "prompt_is_token_ids": [position == 3 for position in range(rows)]},
        "ids alone": {"prompt_token_ids": [0] * rows},
    }


def from_http(value: object) -> dict:
    """extra_args of a completion request whose JSON sets our field, made by vLLM's own protocol class."""
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest

    body = json.dumps({"model": "m", "prompt": [1], "vllm_xargs": {"gpukey": value}})
    return CompletionRequest.model_validate_json(body).to_sampling_params(8, {}).extra_args


def main(model: str, rows: int, names: list[str]) -> dict[str, dict[str, list]]:
    from vllm import LLM, SamplingParams

    from gpukey.integrations.vllm import envelope

    with open(os.path.join(model, "config.json")) as file:
        hidden = json.load(file)["hidden_size"]
    llm = LLM(
        model,
        enable_prompt_embeds=True,
        enable_prefix_caching=True,
        enforce_eager=True,
        dtype="bfloat16",
        max_model_len=1024,
        max_num_seqs=8,
        block_size=BLOCK,
        skip_tokenizer_init=True,
    )

    def run(prompt: dict, extra: dict | None = None) -> list:
        params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, detokenize=False, extra_args=extra)
        (output,) = llm.generate([prompt], params, use_tqdm=False)
        return [output.num_cached_tokens, list(output.outputs[0].token_ids), output.outputs[0].finish_reason]

    steps = {name: prompt for name, prompt in prompts(rows, hidden).items() if name in names or not names}
    result = {"warm": {name: run(prompt) for name, prompt in steps.items()}}
    if os.environ.get("GPUKEY_VLLM") != "1":
        result["cold"] = {}
        for name, prompt in steps.items():
            assert llm.reset_prefix_cache()
            result["cold"][name] = run(prompt)
    elif not names:
        assert llm.reset_prefix_cache()
        run(steps["E"])
        theirs = envelope(steps["-E"]["prompt_embeds"])["gpukey"]
        result["extra"] = {
            "envelope": run(steps["E"], envelope(steps["E"]["prompt_embeds"])),
            "hex over http": run(steps["E"], from_http(theirs.hex())),
            "list over http": run(steps["E"], from_http(list(theirs))),
        }
        try:
            result["extra"]["forged"] = run(steps["E"], {"gpukey": theirs[:-1] + bytes([theirs[-1] ^ 1])})
        except ValueError as error:  # the engine core is this process
            result["extra"]["forged"] = [0, [], f"ValueError: {error}"]
    return result


if __name__ == "__main__":
    outcome = main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
    print("RESULT " + json.dumps(outcome), flush=True)
