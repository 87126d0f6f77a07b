"""The backend module: when it is there, how it says that it is not, and that launches need no driver to be planned."""

from __future__ import annotations

import os

import pytest
import torch
from triton_rows import backend


def test_without_a_gpu_it_says_why():
    reason = backend().unavailable()
    if torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1":
        assert reason is None
    else:
        assert reason == "torch sees no GPU"


def test_without_triton_it_says_why(monkeypatch):
    on = backend()
    monkeypatch.setattr(on.importlib.util, "find_spec", lambda name: None)
    assert on.unavailable() == "triton is not installed"


@pytest.mark.interpret
def test_the_ops_run_it_on_cpu_tensors_when_it_is_forced(fresh_python):
    code = """
import triton_aot; triton_aot.kernels("plan")
import torch, gpukey.ops
from gpukey import reference
rows, key = torch.arange(48, dtype=torch.uint8).view(3, 16), torch.arange(32, dtype=torch.uint8)
staged = torch.zeros_like(rows)
want = [reference.keyed_hash(bytes(range(32)), bytes(r.tolist()))[:16] for r in rows]
compiled = torch.compile(torch.ops.gpukey.fingerprint_rows.default, backend="eager", fullgraph=True)
for got in (compiled(rows, key, 16), torch.ops.gpukey.stage_rows(rows, staged, key, 16)):
    assert [bytes(r.tolist()) for r in got] == want
assert torch.equal(staged, rows)
span = torch.ops.gpukey.fold_spans(got, torch.tensor([0, 3]), key, 16)
assert bytes(span[0].tolist()) == reference.keyed_hash(bytes(range(32)), b"".join(want))[:16]
print(gpukey.ops.backends.choose("cpu").NAME)
"""
    from pathlib import Path

    tests = Path(__file__).parents[1]
    path = os.pathsep.join([str(tests.parent), str(tests / "_support")])
    assert fresh_python(code, GPUKEY_BACKEND="triton", TRITON_INTERPRET="1", PYTHONPATH=path).strip() == "triton"
