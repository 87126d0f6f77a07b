"""The compiled CPU half beside its peers, in one run: the blake3 package on one buffer, vLLM's hash of text blocks.

A peer runs before each round of ours, so that a slow moment of the machine meets both. Medians. vLLM needs an
environment of its own: GPUKEY_VLLM_PYTHON is its interpreter.
"""

from __future__ import annotations

import contextlib
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
import gpukey.ops  # loads the compiled library
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


def beside(benchmark, ours: Callable[[], object], peer: Callable[[], object]) -> tuple[float, float]:
    """Median seconds of (ours, peer), a round of the peer before each of ours. The clock is the thread's own CPU time:
    on a busy machine a wall clock favours whoever has the shorter rounds."""
    own, other = [], []

    def timed(times: list[float], function: Callable[[], object]) -> None:
        start = time.thread_time()
        function()
        times.append(time.thread_time() - start)

    benchmark.pedantic(timed, (own, ours), setup=lambda: timed(other, peer), rounds=ROUNDS, warmup_rounds=2)
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
    """Wall clock: medians, and the best rounds, which a machine with other work to do meets now and then."""
    rows, own = rows_of(896), {1: [], 2: []}

    def round_() -> None:
        for threads, times in own.items():
            torch.set_num_threads(threads)
            start = time.perf_counter()
            cpu.fingerprint_rows(rows, KEY, 16)
            times.append(time.perf_counter() - start)

    benchmark.pedantic(round_, rounds=3 * ROUNDS, warmup_rounds=2)
    median, best = (how(own[1]) / how(own[2]) for how in (statistics.median, min))
    print(f"\ntwo threads: {median:.2f} times one by medians, {best:.2f} by best rounds ({os.cpu_count()} CPUs)")


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


class Vllm:
    """vLLM's hasher in a process of its own; each call is one round, microseconds a block."""

    def __init__(self) -> None:
        python = os.environ.get("GPUKEY_VLLM_PYTHON")
        if not python:
            pytest.skip("needs vLLM in an environment of its own; GPUKEY_VLLM_PYTHON names its interpreter")
        script = Path(__file__).with_name("peers") / "vllm_hash.py"
        command = [python, str(script), str(NUM_TOKENS)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __call__(self) -> float:
        print(file=self.process.stdin, flush=True)
        while True:
            line = self.process.stdout.readline()  # vLLM's import may print before
            if not line:
                raise RuntimeError("vLLM's process ended")
            with contextlib.suppress(ValueError):
                return float(line)


@pytest.fixture(scope="module")
def vllm():
    peer = Vllm()
    yield peer
    peer.process.stdin.close()
    peer.process.wait()


def text_block_forms() -> dict[str, Callable[[], object]]:
    ids = np.arange(NUM_TOKENS, dtype=np.int64) * 40503 % 151936
    key, as_list, as_tensor, zeros = bytes(32), ids.tolist(), torch.from_numpy(ids), torch.zeros(32, dtype=torch.uint8)
    root = gpukey.Root(model="Qwen/Qwen2.5-0.5B-Instruct", dtype="bfloat16")
    return {
        "list to list[bytes], _chain": lambda: text_keys(as_list, key, key, BLOCK_SIZE),
        "array to list[bytes], _chain": lambda: text_keys(ids, key, key, BLOCK_SIZE),
        "tensor to tensor, op": lambda: torch.ops.gpukey.block_keys(as_tensor, zeros, zeros, BLOCK_SIZE),
        "list, gpukey.block_keys": lambda: gpukey.block_keys(as_list, block_size=BLOCK_SIZE, root=root, secret=SECRET),
        "array, gpukey.block_keys": lambda: gpukey.block_keys(ids, block_size=BLOCK_SIZE, root=root, secret=SECRET),
    }


@pytest.mark.parametrize("form", list(text_block_forms()))
def test_text_blocks(benchmark, vllm, form):
    theirs: list[float] = []
    own, _ = beside(benchmark, text_block_forms()[form], lambda: theirs.append(vllm()))
    own, peer = own / (NUM_TOKENS // BLOCK_SIZE) * 1e6, statistics.median(theirs[2:])
    print(f"\n{form}: {own:.3f} µs a block of {BLOCK_SIZE}; vLLM SHA-256 {peer:.3f} µs; {peer / own:.1f} times as fast")


def main() -> None:
    torch.set_num_threads(1)
    figures: dict[str, object] = {"isa": cpu.instruction_set()}
    for hidden in (896, 2048, 4096):
        rows, times = rows_of(hidden), []
        for _ in range(11):
            start = time.thread_time()
            cpu.fingerprint_rows(rows, KEY, 16)
            times.append(time.thread_time() - start)
        figures[str(hidden)] = round(rows.numel() * 2 / statistics.median(times) / 1e9, 2)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
