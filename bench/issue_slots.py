"""Warp issue slots a useful compression of the Triton kernels beside the CUDA kernels: PTX of both in one emulator.

    python bench/issue_slots.py [--arch 80 90] [--hidden 896 4096 8192]

Rows of bfloat16, a grid so large that no plan spares lanes for want of work. `in tiles`: a chunk in each lane, Triton's
plan for fewer rows. Counts of compiled instructions: no noise, no clock.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "_support")]

FULL = 1 << 20  # rows


def useful_compressions(width: int) -> int:
    """Blocks of all chunks, and a parent for each chunk but one."""
    chunks = -(-width // 1024)
    return 16 * (chunks - 1) + -(-(width - 1024 * (chunks - 1)) // 64) + chunks - 1


def slots(on: Any, hidden: int, blocks: int, sample: int) -> float:
    """Issue slots a useful compression, from the first `blocks` thread blocks of a full grid, which hash at most `sample`
    rows."""
    from ptx import Memory
    from ptx.layout import Output, Placed, RowsCase, map_key

    width, memory, rng = 2 * hidden, Memory(), np.random.default_rng(hidden)
    _, key = map_key(memory, rng)
    placed = Placed(memory, rng, RowsCase(sample, width, width))
    out = Output(memory, sample, 16, 16)
    on.only = range(blocks)
    try:
        stats = on.rows(memory, placed.address, FULL, width, width, key, out.address, 16)
    finally:
        on.only = None
    written = (len(out.data) - memory.undefined(out.start)) // 16
    return stats.issue_slots / (written * useful_compressions(width))


def measure(cuda: Any, triton: Any, hidden: int) -> dict[str, float]:
    """Issue slots a compression of each kernel."""
    import triton_aot

    in_tiles = triton_aot.kernels("plan").in_tiles(2 * hidden, 32)
    measured = {"cuda": slots(cuda, hidden, 2, 512), "triton": slots(triton, hidden, 2, 64)}
    triton.plan = in_tiles
    try:
        return measured | {"triton in tiles": slots(triton, hidden, 2, 64)}
    finally:
        triton.plan = None


def table(rows: list[tuple[str, int, dict[str, float]]]) -> str:
    lines = [f"{'':6} {'hidden':>6} {'cuda':>8} {'triton':>8} {'ratio':>6} {'in tiles':>9} {'ratio':>6}"]
    for target, hidden, m in rows:
        ratios = m["triton"] / m["cuda"], m["triton in tiles"] / m["cuda"]
        lines.append(
            f"{target:6} {hidden:6} {m['cuda']:8.1f} {m['triton']:8.1f} {ratios[0]:6.3f} "
            f"{m['triton in tiles']:9.1f} {ratios[1]:6.3f}"
        )
    return "\n".join(lines)


def main() -> None:
    from ptx import Module, nvcc
    from ptx.launcher import Launcher
    from triton_emulated import TritonLauncher

    parser = argparse.ArgumentParser(description="Issue slots of the Triton kernels beside the CUDA kernels.")
    parser.add_argument("--arch", type=int, nargs="+", default=[80, 90])
    parser.add_argument("--hidden", type=int, nargs="+", default=[896, 4096, 8192])
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        library = nvcc.launchers(Path(folder))
        for arch in arguments.arch:
            cuda = Launcher(Module(nvcc.ptx(arch, Path(folder)).read_text()), library)
            triton = TritonLauncher(f"sm_{arch}")
            rows += [(f"sm_{arch}", hidden, measure(cuda, triton, hidden)) for hidden in arguments.hidden]
    print("issue slots (32 x warp instructions) a useful compression, rows of bfloat16, full grid")
    print(table(rows))


if __name__ == "__main__":
    main()
