"""What block keys of `prompt_embeds` cost: vLLM's SHA-256 a block, against one pass of row fingerprints, in the same run on a CPU.

    python bench/peers/vllm_prompt_embeds.py [--threads 1 2] [--block-size 16] [--repeats 31]      in an environment with vLLM 0.31 to 0.33

Each figure is the median time of all block ranges of one fresh request, the two sides interleaved. The engine hashes with one thread; gpukey uses
torch's threads. `hashing` is the extra keys alone; `all` is what `Request` pays, with the engine's own hash over each block's ids and extra keys.
With one thread both are timed on that thread's own clock, which other load on the machine does not move; with more, on the wall clock.
"""

from __future__ import annotations

import argparse
import statistics
import time
from types import SimpleNamespace

import torch
from vllm.utils.hashing import sha256
from vllm.v1.core import kv_cache_utils

from gpukey.integrations.vllm.prompt_embeds import extra_keys

SHAPES = [(576, 4096), (4096, 4096)]
SIDES = {"vLLM": kv_cache_utils._gen_prompt_embeds_extra_hash_keys, "gpukey": extra_keys}


def fresh_request(embeds: torch.Tensor) -> SimpleNamespace:
    return SimpleNamespace(
        prompt_embeds=embeds,
        prompt_is_token_ids=None,
        sampling_params=None,
        _prompt_embeds_per_block_hashes={},
        mm_features=[],
        lora_request=None,
        cache_salt=None,
        block_hashes=[],
        num_tokens=len(embeds),
        all_token_ids=[0] * len(embeds),
    )


def clock() -> float:
    return time.thread_time() if torch.get_num_threads() == 1 else time.perf_counter()


def hashing(side: str, embeds: torch.Tensor, block_size: int) -> float:
    request, generate = fresh_request(embeds), SIDES[side]
    start = clock()
    for first in range(0, len(embeds), block_size):
        generate(request, first, first + block_size)
    return clock() - start


def everything(side: str, embeds: torch.Tensor, block_size: int) -> float:
    request, hasher = fresh_request(embeds), kv_cache_utils.get_request_block_hasher(block_size, sha256)
    kv_cache_utils._gen_prompt_embeds_extra_hash_keys = SIDES[side]
    start = clock()
    hasher(request)
    return clock() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=31)
    options = parser.parse_args()
    kv_cache_utils.init_none_hash(sha256)
    print(
        f"{'rows':>6} {'hidden':>6} {'threads':>7} {'measure':>8} {'vLLM ms':>8} {'gpukey ms':>9} {'times':>6} {'GB/s':>6}"
    )
    for num_rows, hidden in SHAPES:
        embeds = torch.randn(num_rows, hidden, generator=torch.Generator().manual_seed(num_rows)).bfloat16()
        for threads in options.threads:
            torch.set_num_threads(threads)
            for measure in (hashing, everything):
                times: dict[str, list[float]] = {side: [] for side in SIDES}
                for repeat in range(options.repeats + 2):
                    for side in SIDES:
                        taken = measure(side, embeds, options.block_size)
                        if repeat >= 2:  # the first two warm caches and threads
                            times[side].append(taken)
                vllm, ours = (statistics.median(times[side]) for side in SIDES)
                print(
                    f"{num_rows:6} {hidden:6} {threads:7} {'hashing' if measure is hashing else 'all':>8} {vllm * 1e3:8.2f} {ours * 1e3:9.2f} "
                    f"{vllm / ours:6.2f} {embeds.nbytes / ours / 1e9:6.2f}"
                )


if __name__ == "__main__":
    main()
