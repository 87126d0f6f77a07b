"""The NVRTC backend without a GPU: its reasons, its plans, and rows of several dtypes in the PTX emulator; tests/ptx/test_nvrtc.py
runs the same cases through it as through nvcc's kernels."""

from __future__ import annotations

import ctypes
import os
import random
import subprocess
from pathlib import Path

import blake3
import numpy as np
import pytest
import torch
from ptx import Memory, Module

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


def test_nothing_is_launched_for_no_rows(monkeypatch) -> None:
    monkeypatch.setattr(nvrtc, "_launch", None)
    empty = torch.zeros(0, 64)
    assert nvrtc.fingerprint_rows(empty, key(), 16).shape == (0, 16)
    assert nvrtc.stage_rows(empty, empty.clone(), key(), 32).shape == (0, 32)
    no_spans = torch.zeros(1, dtype=torch.int32)
    assert nvrtc.fold_spans(torch.zeros(4, 16, dtype=torch.uint8), no_spans, key(), 16).shape == (0, 16)


def test_plans_are_those_of_the_launchers(tmp_path) -> None:
    """plan_rows and plan_spans against csrc/plan.h, compiled."""
    here = Path(__file__).parent
    csrc = here.parents[1] / "csrc"
    printer = tmp_path / "print_plans"
    subprocess.run(["g++", "-std=c++17", "-I", csrc, here / "print_plans.cpp", "-o", printer], check=True)
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


def test_why_it_cannot_work_is_one_line_and_imports_nothing(fresh_python) -> None:
    code = """
import sys
from gpukey.backends import nvrtc
for reason in (nvrtc.unavailable(), nvrtc.uncompilable()):
    assert reason is None or (reason and "\\n" not in reason), reason
assert "cupy" not in sys.modules
"""
    fresh_python(code)


def test_without_cupy_it_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setattr(nvrtc.importlib.util, "find_spec", lambda name: None)
    assert nvrtc.uncompilable() == "CuPy is not installed; pip install 'gpukey[cupy]'"


def test_without_nvrtc_it_says_what_to_install(monkeypatch) -> None:
    class Pathfinder:
        @staticmethod
        def load_nvidia_dynamic_lib(name: str) -> None:
            raise RuntimeError(f"no {name}\nsearched here and there")

    monkeypatch.setattr(nvrtc.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(nvrtc.importlib, "import_module", lambda name: Pathfinder)
    assert nvrtc.uncompilable() == "NVRTC cannot be loaded (no nvrtc); pip install nvidia-cuda-nvrtc"


def test_a_source_that_does_not_compile_is_an_error_with_the_log(monkeypatch, program) -> None:
    monkeypatch.setattr(nvrtc, "source", lambda: "no C++ at all")
    with pytest.raises(RuntimeError, match=r"NVRTC does not compile the kernels: (.|\n)*error"):
        nvrtc.ptx(90)
