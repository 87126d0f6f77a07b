"""vLLM's block hash of text, in vLLM's own environment: one line in, one chain over all blocks timed, microseconds a block out.

The caller asks for a round whenever it wants one, so that rounds of both sides alternate. The loop is the one of vLLM's request
hasher: a slice of the list of ids a block, each hash chained to the one before.
"""

from __future__ import annotations

import sys
import time

from vllm.utils.hashing import sha256
from vllm.v1.core import kv_cache_utils

BLOCK_SIZE = 16


def chain(token_ids: list[int]) -> float:
    """CPU seconds for the hashes of all full blocks."""
    hashes, parent, start = [], kv_cache_utils.NONE_HASH, time.thread_time()
    for i in range(0, len(token_ids) - BLOCK_SIZE + 1, BLOCK_SIZE):
        parent = kv_cache_utils.hash_block_tokens(sha256, parent, token_ids[i : i + BLOCK_SIZE])
        hashes.append(parent)
    return time.thread_time() - start


def main() -> None:
    num_tokens = int(sys.argv[1])
    token_ids = [i * 40503 % 151936 for i in range(num_tokens)]
    kv_cache_utils.init_none_hash(sha256)
    for _ in sys.stdin:
        print(f"{chain(token_ids) / (num_tokens // BLOCK_SIZE) * 1e6:.4f}", flush=True)


if __name__ == "__main__":
    main()
