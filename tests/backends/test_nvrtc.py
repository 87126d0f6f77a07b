"""The NVRTC backend without a GPU: what it compiles, and what it launches, run in the PTX emulator."""

from __future__ import annotations

import ctypes
import os
import random
import subprocess

import blake3
import numpy as np
import pytest
import torch
from ptx import Memory, Module
from simt_build import Builder

from gpukey.backends import nvrtc

KEY = bytes(range(32))


@pytest.fixture(scope="session")
def program() -> Module:
    """NVRTC's own PTX for sm_90."""
    reason = nvrtc.uncompilable()
    if reason:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
    return Module(nvrtc.ptx(90))


@pytest.fixture
def emulated(program, monkeypatch):
    """emulated(tensors...): launches of the backend run in the emulator; the last tensor is written."""

    def install(*tensors: torch.Tensor) -> list[str]:
        memory, names = Memory(), []
        for i, tensor in enumerate(tensors):
            storage = tensor.untyped_storage()
            raw = (ctypes.c_uint8 * storage.nbytes()).from_address(storage.data_ptr())
            memory.map(np.frombuffer(raw, np.uint8), at=storage.data_ptr(), access="rw" if i else "r")

        def launch(kernel, plan, rows, args):
            names.append(kernel)
            program.launch(kernel, plan.blocks, plan.threads, [arg.tobytes() for arg in args], buffers=memory)

        monkeypatch.setattr(nvrtc, "_launch", launch)
        return names

    return install


def digest(data: bytes, size: int) -> list[int]:
    return list(blake3.blake3(data, key=KEY).digest(size))


def key() -> torch.Tensor:
    return torch.tensor(list(KEY), dtype=torch.uint8)


@pytest.mark.parametrize(
    ("dtype", "hidden", "skip", "kernel"),
    [(torch.bfloat16, 896, 0, "aligned"), (torch.bfloat16, 897, 0, "any"), (torch.float32, 260, 1, "any")],
)
def test_rows(emulated, dtype, hidden, skip, kernel) -> None:
    rows = torch.randn(5, hidden + skip, dtype=dtype)[:, skip:]
    out, k = torch.zeros(5, 32, dtype=torch.uint8), key()
    names = emulated(rows, k, out)
    assert nvrtc.fingerprint_rows(rows, k, 32, out) is out
    assert names == [f"gpukey_rows_{kernel}"]
    assert out.tolist() == [digest(row.contiguous().view(torch.uint8).numpy().tobytes(), 32) for row in rows]


@pytest.mark.parametrize(("columns", "kernel"), [(512, "aligned"), (513, "any")])
def test_stage(emulated, columns, kernel) -> None:
    rows = torch.randn(3, 512)
    staged, out, k = torch.zeros(3, columns)[:, :512], torch.zeros(3, 16, dtype=torch.uint8), key()
    names = emulated(rows, k, staged, out)
    nvrtc.stage_rows(rows, staged, k, 16, out)
    assert names == [f"gpukey_stage_{kernel}"]
    assert torch.equal(staged, rows)
    assert out.tolist() == [digest(row.numpy().tobytes(), 16) for row in rows]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_fold(emulated, dtype) -> None:
    rows = torch.randint(0, 256, (200, 16), dtype=torch.uint8)
    bounds = torch.tensor([0, 0, 3, 190, 7, 900], dtype=dtype)
    out, k = torch.zeros(5, 16, dtype=torch.uint8), key()
    names = emulated(rows, k, bounds, out)
    nvrtc.fold_spans(rows, bounds, k, 16, out)
    assert names == ["gpukey_fold_aligned"]
    spans = [(0, 0), (0, 3), (3, 190), (0, 0), (7, 200)]
    assert out.tolist() == [digest(rows[begin:end].numpy().tobytes(), 16) for begin, end in spans]


def test_nothing_is_launched_for_no_rows(monkeypatch) -> None:
    monkeypatch.setattr(nvrtc, "_launch", None)
    empty = torch.zeros(0, 64)
    assert nvrtc.fingerprint_rows(empty, key(), 16).shape == (0, 16)
    assert nvrtc.stage_rows(empty, empty.clone(), key(), 32).shape == (0, 32)
    no_spans = torch.zeros(1, dtype=torch.int32)
    assert nvrtc.fold_spans(torch.zeros(4, 16, dtype=torch.uint8), no_spans, key(), 16).shape == (0, 16)


def test_plans_are_those_of_the_launchers(tmp_path_factory) -> None:
    """plan_rows and plan_spans against csrc/plan.h, compiled."""
    folder = tmp_path_factory.mktemp("plan")
    printer = Builder(folder).program("plain")
    rng = random.Random(1)
    widths = [1, 63, 64, 1024, 1025, 1792, 3072, 8192, 9217, 16384, 70000, 2**18, 2**18 + 1, 2**24]
    rows = [(n, w) for w in widths for n in (1, 31, 576, 4096, 2**20, 2**31, 2**40)]
    rows += [
        (rng.randrange(1, 2 ** rng.randrange(1, 45)), rng.randrange(1, 2 ** rng.randrange(1, 25))) for _ in range(2000)
    ]
    spans = [
        (rng.randrange(2 ** rng.randrange(1, 40)), rng.choice((16, 32)), rng.randrange(1, 5000)) for _ in range(500)
    ]
    lines = "\n".join(" ".join(map(str, case)) for case in rows + spans)
    done = subprocess.run([printer, "--plan"], input=lines, capture_output=True, text=True, check=True)
    expected = [nvrtc.plan_rows(*case) for case in rows] + [nvrtc.plan_spans(*case) for case in spans]
    assert [tuple(map(int, line.split())) for line in done.stdout.splitlines()] == expected
