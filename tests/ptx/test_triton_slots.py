"""Issue slots of the Triton kernels on a full grid: at most 1.3 times those of the CUDA kernels in the same run."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from triton_emulated import launcher

LIMIT = 1.3


def _bench():
    path = Path(__file__).parents[2] / "bench" / "issue_slots.py"
    spec = importlib.util.spec_from_file_location("issue_slots", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_issue_slots_beside_the_cuda_kernels(cuda, capsys):
    bench, rows = _bench(), []
    for arch, widths in ((90, (896, 4096, 8192)), (80, (4096,))):
        for hidden in widths:
            rows.append((f"sm_{arch}", hidden, bench.measure(cuda(arch), launcher(f"sm_{arch}"), hidden)))
    with capsys.disabled():
        print("\nissue slots a useful compression, rows of bfloat16, full grid", bench.table(rows), sep="\n")
    for _, _, measured in rows:
        assert measured["triton"] <= LIMIT * measured["cuda"]
        assert measured["triton in tiles"] <= LIMIT * measured["cuda"]
