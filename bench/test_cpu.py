"""The compiled CPU half beside its peers, in one run: the blake3 package on one buffer, vLLM's hash of text blocks.

A peer runs before each round of ours, so that a slow moment of the machine meets both. Medians. vLLM needs an environment of
its own: GPUKEY_VLLM_PYTHON is its interpreter.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from blake3 import blake3

import gpukey
from gpukey._chain import text_keys
from gpukey.backends import cpu

BYTES = 32 << 20
ROUNDS = 31
SECRET = gpukey.Secret(b"a secret for benchmarks, nothing else")
KEY = torch.arange(32, dtype=torch.uint8)
NUM_TOKENS, BLOCK_SIZE = 131_072, 16


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def beside(
    benchmark, ours: Callable[[], object], peer: Callable[[], object], rounds: int = ROUNDS
) -> tuple[float, float]:
    """Median seconds of (ours, peer), a round of the peer before each of ours."""
    own, other = [], []

    def timed(times: list[float], function: Callable[[], object]) -> None:
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)

    benchmark.pedantic(timed, (own, ours), setup=lambda: timed(other, peer), rounds=rounds, warmup_rounds=2)
    return statistics.median(own[2:]), statistics.median(other[2:])


def rows_of(hidden: int) -> torch.Tensor:
    return torch.randn(BYTES // 2 // hidden, hidden).to(torch.bfloat16)


@pytest.mark.parametrize("hidden", [896, 2048, 4096])
def test_rows_on_one_core(benchmark, hidden):
    rows = rows_of(hidden)
    size, buffer, key = rows.numel() * 2, memoryview(rows.view(torch.int16).numpy()).cast("B"), bytes(KEY.tolist())
    own, peer = beside(benchmark, lambda: cpu.fingerprint_rows(rows, KEY, 16), lambda: blake3(buffer, key=key).digest())
    print(
        f"\nrows, hidden {hidden}, {cpu.instruction_set()}: {size / own / 1e9:.2f} GB/s; blake3 package on one buffer: "
        f"{size / peer / 1e9:.2f} GB/s; ratio {peer / own:.2f}"
    )


@pytest.mark.parametrize("isa", ["avx2", "baseline"])
def test_smaller_instruction_sets(benchmark, isa):
    env = {**os.environ, "GPUKEY_CPU_ISA": isa}
    figures = benchmark.pedantic(
        lambda: subprocess.check_output([sys.executable, __file__], env=env, text=True), rounds=1
    )
    print(f"\nrows, one core, GB/s by hidden: {figures.strip()}")


def test_two_threads(benchmark):
    rows = rows_of(896)

    def on(threads: int) -> None:
        torch.set_num_threads(threads)
        cpu.fingerprint_rows(rows, KEY, 16)

    two, one = beside(benchmark, lambda: on(2), lambda: on(1))
    print(f"\ntwo threads: {one / two:.2f} times one ({os.cpu_count()} CPUs)")


def test_one_row(benchmark):
    row = torch.randn(1, 896).to(torch.bfloat16)
    benchmark(gpukey.fingerprint_rows, row, secret=SECRET)
    print(f"\nfingerprint_rows of one row: {benchmark.stats['median'] * 1e6:.1f} µs")


def test_stage(benchmark):
    rows, staged = rows_of(2048), torch.empty(BYTES // 4096, 2048, dtype=torch.bfloat16)

    def apart() -> None:
        staged.copy_(rows)
        cpu.fingerprint_rows(staged, KEY, 16)

    own, peer = beside(benchmark, lambda: cpu.stage_rows(rows, staged, KEY, 16), apart)
    print(f"\nstage_rows: {peer / own:.2f} times as fast as a copy and fingerprint_rows after it")


@pytest.mark.parametrize("form", ["list", "array", "tensor"])
def test_text_blocks(benchmark, form):
    ids = np.arange(NUM_TOKENS, dtype=np.int64) * 40503 % 151936
    key, num_blocks = bytes(32), NUM_TOKENS // BLOCK_SIZE
    token_ids = {"list": ids.tolist, "array": lambda: ids, "tensor": lambda: torch.from_numpy(ids)}[form]()
    zeros = torch.zeros(32, dtype=torch.uint8)
    ours = {
        "list": lambda: text_keys(token_ids, key, key, BLOCK_SIZE),
        "array": lambda: text_keys(token_ids, key, key, BLOCK_SIZE),
        "tensor": lambda: torch.ops.gpukey_cpu.block_keys(token_ids, zeros, zeros, BLOCK_SIZE),
    }[form]
    benchmark.pedantic(ours, rounds=ROUNDS, warmup_rounds=2)
    own = benchmark.stats["median"] / num_blocks * 1e6
    peer = vllm_microseconds()
    ratio = (
        f"{peer / own:.1f} times as fast as vLLM's SHA-256, {peer:.2f} µs" if peer else "vLLM: set GPUKEY_VLLM_PYTHON"
    )
    print(f"\nblock keys of text from {form}: {own:.3f} µs a block of {BLOCK_SIZE}; {ratio}")


def vllm_microseconds() -> float | None:
    python = os.environ.get("GPUKEY_VLLM_PYTHON")
    if not python:
        return None
    script = Path(__file__).with_name("peers") / "vllm_hash.py"
    done = subprocess.run([python, script, str(NUM_TOKENS), "7"], capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout.splitlines()[-1])["sha256"])


def main() -> None:
    torch.set_num_threads(1)
    figures: dict[str, object] = {"isa": cpu.instruction_set()}
    for hidden in (896, 2048, 4096):
        rows, times = rows_of(hidden), []
        for _ in range(11):
            start = time.perf_counter()
            cpu.fingerprint_rows(rows, KEY, 16)
            times.append(time.perf_counter() - start)
        figures[str(hidden)] = round(rows.numel() * 2 / statistics.median(times) / 1e9, 2)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
