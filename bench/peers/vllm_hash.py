"""vLLM's block hash of text, timed in vLLM's own environment: `GPUKEY_VLLM_PYTHON bench/peers/vllm_hash.py` prints JSON, µs a block.

The loop is the one of its request hasher: a slice of the list of ids a block, each hash chained to the one before.
"""

from __future__ import annotations

import json
import statistics
import sys
import time

from vllm.utils.hashing import sha256, sha256_cbor
from vllm.v1.core import kv_cache_utils

BLOCK_SIZE = 16


def microseconds(function, token_ids: list[int], rounds: int) -> float:
    times = []
    for _ in range(rounds):
        parent, start = kv_cache_utils.NONE_HASH, time.perf_counter()
        for i in range(0, len(token_ids) - BLOCK_SIZE + 1, BLOCK_SIZE):
            parent = kv_cache_utils.hash_block_tokens(function, parent, token_ids[i : i + BLOCK_SIZE])
        times.append(time.perf_counter() - start)
    return statistics.median(times) / (len(token_ids) // BLOCK_SIZE) * 1e6


def main() -> None:
    num_tokens, rounds = int(sys.argv[1]), int(sys.argv[2])
    token_ids = [i * 40503 % 151936 for i in range(num_tokens)]
    kv_cache_utils.init_none_hash(sha256)
    figures = {function.__name__: microseconds(function, token_ids, rounds) for function in (sha256, sha256_cbor)}
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
