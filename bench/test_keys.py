"""What does a block key cost? 131,072 ids at block size 16, on one core, beside a SHA-256 chain over pickled tuples
(vLLM's default form).

The bound is the BLAKE3 package alone, over messages of the same length that are ready in memory. Figures a block stand
in `us_per_block`.
"""

import hashlib
import pickle

import numpy as np
import pytest
from blake3 import blake3

from gpukey import keys as module
from gpukey.keys import EmbeddingSpan, KeyChain, Root, block_keys
from gpukey.secret import Secret

NUM_IDS, BLOCK_SIZE = 131_072, 16
NUM_BLOCKS = NUM_IDS // BLOCK_SIZE
IDS = np.random.default_rng(0).integers(0, 151_936, NUM_IDS)
ROWS = np.random.default_rng(1).integers(0, 256, (NUM_IDS, 16), np.uint8)
HOW = {
    "block_size": BLOCK_SIZE,
    "root": Root(model="Qwen/Qwen2.5-0.5B-Instruct", dtype="bfloat16"),
    "secret": Secret(b"a secret for benchmarks"),
}


def sha256_chain(ids):
    """The peer: SHA-256 of a pickled (parent, tuple of ids, extra keys)."""
    keys, parent = [], bytes(32)
    for i in range(0, len(ids), BLOCK_SIZE):
        message = pickle.dumps((parent, tuple(ids[i : i + BLOCK_SIZE]), None), protocol=pickle.HIGHEST_PROTOCOL)
        parent = hashlib.sha256(message).digest()
        keys.append(parent)
    return keys


def blake3_alone(messages, key):
    return [blake3(message, key=key).digest() for message in messages]


CASES = {
    "block_keys, int64 array": lambda: (block_keys, (IDS,), HOW),
    "block_keys, list": lambda: (block_keys, (IDS.tolist(),), HOW),
    "SHA-256 chain, list (peer)": lambda: (sha256_chain, (IDS.tolist(),), {}),
    "BLAKE3 alone (bound)": lambda: (blake3_alone, ([bytes(36 + 8 * BLOCK_SIZE)] * NUM_BLOCKS, bytes(32)), {}),
}


def measure(benchmark, capsys, name, call, args, how):
    benchmark.extra_info["us_per_block"] = None
    keys = benchmark.pedantic(call, args, how, rounds=15, warmup_rounds=1)
    assert len(keys) == NUM_BLOCKS
    found = benchmark.stats.stats.median / NUM_BLOCKS * 1e6
    benchmark.extra_info["us_per_block"] = found
    with capsys.disabled():
        print(f"\n{name}: {found:.2f} µs a block (median of 15)")


@pytest.mark.benchmark(group="block keys of 131,072 ids")
@pytest.mark.parametrize("name", CASES)
def test_text(benchmark, capsys, name):
    measure(benchmark, capsys, name, *CASES[name]())


@pytest.mark.benchmark(group="block keys of 131,072 ids")
def test_text_without_the_compiled_chain(benchmark, capsys, monkeypatch):
    monkeypatch.setattr(module, "text_keys", module.python_text_keys)
    measure(benchmark, capsys, "block_keys, int64 array, pure Python", block_keys, (IDS,), HOW)


@pytest.mark.benchmark(group="block keys of 131,072 replaced positions")
@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
def test_rows(benchmark, capsys, attention):
    how = {**HOW, "embeds": [EmbeddingSpan(0, ROWS, attention=attention)]}
    measure(benchmark, capsys, f"all positions replaced, {attention}", block_keys, (IDS,), how)


@pytest.mark.benchmark(group="one decoded token")
def test_decode(benchmark, capsys):
    chain = KeyChain(**HOW, token_ids=IDS[:4096])
    benchmark.pedantic(chain.append, ([7],), rounds=20_000)
    with capsys.disabled():
        mean = benchmark.stats.stats.mean * 1e6
        print(f"\nKeyChain.append of one token: {mean:.2f} µs (mean, one block key in {BLOCK_SIZE} included)")
