"""Warp issue slots of the kernels on a full grid, against the useful compressions: idle lanes, loads, the tree and all
bookkeeping together may cost a few per cent. A count of compiled instructions: no noise, no clock."""

from __future__ import annotations

import numpy as np
from ptx import Memory, Module, nvcc
from ptx.layout import Output, Placed, RowsCase, map_key

FULL = 1 << 17  # rows, so that no plan makes smaller blocks for want of work
LIMITS = {896: 1.20, 4096: 1.15, 8192: 1.20}
SAMPLE = 2  # blocks that run; all of a full grid do the same


def useful_compressions(width: int) -> int:
    """Blocks of all chunks, and a parent for each chunk but one."""
    chunks = -(-width // 1024)
    last = width - 1024 * (chunks - 1)
    return 16 * (chunks - 1) + -(-last // 64) + chunks - 1


def instructions_of_one(build_once, arch: int) -> int:
    text = (
        build_once(f"one_{arch}", lambda f: nvcc.one_compression(arch, f)) / f"one_compression_sm_{arch}.ptx"
    ).read_text()
    counts = []
    for name in ("once", "twice"):
        memory = Memory()
        words = memory.map(np.zeros(24, np.uint32), access="rw")
        counts.append(Module(text).launch(name, 1, 1, [words, 0, 64, 16, 1], buffers=memory).warp_instructions)
    return counts[1] - counts[0]


def measure(launcher, hidden: int) -> tuple[float, str]:
    width = 2 * hidden
    memory, rng = Memory(), np.random.default_rng(hidden)
    try:
        _, key = map_key(memory, rng)
        sample = 256 * SAMPLE  # rows that are there; the sampled blocks touch no others
        placed = Placed(memory, rng, RowsCase(sample, width, width))
        out = Output(memory, sample, 16, 16)
        launcher.only = range(SAMPLE)
        stats = launcher.rows(memory, placed.address, FULL, width, width, key, out.address, 16)
        written = (len(out.data) - memory.undefined(out.start)) // 16
    finally:
        launcher.only = None
    kernel, grid, block = launcher.launches[0]
    return stats.issue_slots / (written * useful_compressions(width)), f"{kernel} {grid[0]} x {block[0]}"


def test_issue_slots_on_a_full_grid(cuda, build_once, capsys):
    lines, over = [], []
    for arch in (80, 90):
        one = instructions_of_one(build_once, arch)
        for hidden, limit in LIMITS.items():
            slots, launch = measure(cuda(arch), hidden)
            ratio = slots / one
            lines.append(
                f"sm_{arch}  hidden {hidden:5}  {slots:7.1f} slots a compression of {one}: {ratio:.3f}  {launch}"
            )
            if arch == 90 and ratio > limit:
                over.append(f"hidden {hidden}: {ratio:.3f} > {limit}")
    with capsys.disabled():
        print("\nissue slots / (useful compressions x PTX instructions of one), rows of bfloat16", *lines, sep="\n")
    assert not over
