"""The CUDA kernels compiled for the host: every byte, under ASan and UBSan, in several thread orders, and the race checker."""

from __future__ import annotations

import subprocess

import pytest
from simt_build import SIMT, Builder, Case, run_cases

WIDTHS = [
    1,
    2,
    3,
    4,
    5,
    15,
    16,
    17,
    63,
    64,
    65,
    127,
    128,
    129,
    1023,
    1024,
    1025,
    1026,
    1087,
    1088,
    1089,
    1792,
    2047,
    2048,
]
LONG_WIDTHS = [2049, 3072, 3073, 4096, 5121, 8192, 9217, 16384, 31 * 1024 + 1, 65536, 70000]
TILED_WIDTHS = [256 * 1024, 256 * 1024 + 1, 257 * 1024 + 64, 512 * 1024, 768 * 1024 + 7, 1280 * 1024 + 1000]
ORDERS = [("fwd", "0xA5"), ("rev", "0x00"), ("rand:1", "0xFF")]


def row_cases() -> list[Case]:
    """Widths at every boundary of block, chunk and tile; odd alignments; strides from 0 up; both digest sizes."""
    cases = [Case(0, 64, 64), Case(5, 64, 0), Case(3, 1025, 0, at=3), Case(700, 7, 7, at=1), Case(19000, 16, 16)]
    for i, width in enumerate(WIDTHS):
        cases.append(Case(33, width, (width + 15) // 16 * 16, digest_size=16 + 16 * (i % 2)))
        cases.append(Case(5, width, width + i % 5, at=(3 * i + 1) % 16, digest_size=32, digests_at=i % 16))
    for i, width in enumerate(LONG_WIDTHS):
        cases.append(Case(3 + i, width, (width + 15) // 16 * 16, digest_size=32 - 16 * (i % 2)))
        cases.append(Case(2, width, width + i, at=(5 * i + 2) % 16))
    cases += [Case(1, width, 1, at=i % 3) for i, width in enumerate(TILED_WIDTHS)]
    cases += [Case(3, 260 * 1024 + 5, 0)]
    return cases


def stage_cases() -> list[Case]:
    """Copies between all alignments; the kernel for aligned rows and the other."""
    cases = [Case(0, 64, 64, staged_stride=64), Case(2, 257 * 1024 + 1, 257 * 1024 + 16, staged_stride=257 * 1024 + 32)]
    for i, width in enumerate([*WIDTHS, *LONG_WIDTHS[::2]]):
        padded = (width + 15) // 16 * 16
        cases.append(Case(9, width, padded, staged_stride=padded + 16, digest_size=16 + 16 * (i % 2)))
        cases.append(Case(3, width, width + i % 3, at=i % 4, staged_stride=width + 1, staged_at=(i // 2) % 16))
        cases.append(Case(3, width, width, at=i % 16, staged_stride=(width + 3) // 4 * 4, staged_at=4))
    return cases


def fold_cases() -> list[Case]:
    """Spans of 0 to thousands of rows, and bounds that no caller should pass."""
    cases = []
    for size in (16, 32):
        rows = 5000
        cases += [
            Case(rows, size, size, digest_size=size, bounds=[0, 0, 1, 3, 7, 70, 134, 1000, 1000, rows]),
            Case(rows, size, size, at=7, digest_size=size, bounds=[0, 33, rows], bound_bytes=8, digests_at=3),
            Case(rows, size, size, digest_size=size, bounds=[-5, 4, 2, 2**31 - 1, -(2**31), 17, 90000]),
            Case(40, size, size, digest_size=size, bounds=[-(2**63), 2**63 - 1, 3, 40, 2**40], bound_bytes=8),
            Case(64, size, size, digest_size=size, bounds=list(range(65))),
            Case(0, size, size, digest_size=size, bounds=[0, 0, 5]),
            Case(9, size, size, digest_size=size, bounds=[0]),
        ]
    cases.append(Case(40000, 16, 16, bounds=[0, 17000, 40000]))
    return cases


OPERATIONS = {"rows": row_cases, "stage": stage_cases, "fold": fold_cases}


@pytest.fixture(scope="session")
def builder(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Builder:
    """One folder for all test processes."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "simt"
    folder.mkdir(exist_ok=True)
    return Builder(folder)


def expect(done: subprocess.CompletedProcess[str], cases: list[Case]) -> None:
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == [str(len(cases)), "cases"]


@pytest.mark.parametrize(("order", "fill"), ORDERS)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_byte_in_every_order_under_asan(builder, tmp_path, operation, order, fill) -> None:
    cases = OPERATIONS[operation]()
    expect(run_cases(builder.program("asan"), tmp_path, cases, order, fill), cases)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_byte_under_ubsan(builder, tmp_path, operation) -> None:
    cases = OPERATIONS[operation]()
    expect(run_cases(builder.program("ubsan"), tmp_path, cases), cases)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_no_race_and_no_byte_outside_the_rows(builder, tmp_path, operation) -> None:
    cases = [case for case in OPERATIONS[operation]() if case.num_rows * case.width < 300_000]
    expect(run_cases(builder.program("check"), tmp_path, cases), cases)


def test_a_grid_smaller_than_the_work(builder, tmp_path) -> None:
    """More rows than a grid may have blocks: each block takes several groups of rows."""
    changes = {"plan.h": ("kMaxBlocks = 0x7FFFFFFF", "kMaxBlocks = 2")}
    cases = [Case(300, 1792, 1792), Case(7, 70000, 70000, at=1), Case(9, 16, 16, bounds=[0, 1, 3, 3, 9, 4])]
    expect(run_cases(builder.program("check", changes), tmp_path, cases), cases)


def test_full_blocks(builder, tmp_path) -> None:
    """Blocks of up to 256 threads and 32 rows and more, which only a full grid takes otherwise."""
    changes = {"plan.h": ("kFewBlocks = 528", "kFewBlocks = 2")}
    cases = [
        Case(300, 1792, 1792),
        Case(70, 4096, 4096),
        Case(35, 8192, 8192),
        Case(60, 9217, 9232),
        Case(70, 3073, 3073),
    ]
    cases += [Case(600, 100, 100, at=2), Case(66, 1792, 1792, staged_stride=1793)]
    expect(run_cases(builder.program("check", changes), tmp_path, cases), cases)


PLANTS = {
    # name: flavour, file, text, replacement, cases, what the tool must say
    "read past a row, ASan": (
        "asan", "load_store.cuh", "4 * i + 4 <= end ?", "4 * i + 1 <= end ?", Case(1, 65, 65), "heap-buffer-overflow",
    ),
    "read past a row, bounds": (
        "check", "load_store.cuh", "4 * i + 4 <= end ?", "4 * i + 1 <= end ?", Case(4, 65, 68), "SIMT BOUNDS read",
    ),
    "read before a row": (
        "check", "load_store.cuh", "cut_left = before < shift", "cut_left = false", Case(1, 64, 64, at=1), "SIMT BOUNDS read",
    ),
    "write past a row": (
        "check", "load_store.cuh", "words && 4 * i + 4 <= count", "words && 4 * i + 1 <= count",
        Case(4, 65, 68, staged_stride=68, staged_at=4), "SIMT BOUNDS write",
    ),
    "missing barrier in a level": (
        "check", "fingerprint_kernels.cuh", "      __syncthreads();\n      const bool level", "      const bool level",
        Case(8, 9217, 9232), "SIMT RACE read after write",
    ),
    "missing barrier after the key": (
        "check", "fingerprint_kernels.cuh", "static_cast<int>(threadIdx.x));\n  __syncthreads();", "static_cast<int>(threadIdx.x));",
        Case(2, 64, 64), "SIMT RACE read after write",
    ),
    "missing barrier between tiles": (
        "check", "fingerprint_kernels.cuh", "    depth++;\n    __syncthreads();", "    depth++;",
        Case(1, 1200 * 1024, 1), "SIMT RACE write after read",
    ),
    "write past shared memory": (
        "asan", "fingerprint_kernels.cuh", "kSlots = kThreads + kStackDepth", "kSlots = kThreads",
        Case(1, 300 * 1024, 1), "use-after-poison",
    ),
    "wrong alignment": (
        "ubsan", "plan.h", "% 16 == 0;", "% 4 == 0;", Case(4, 64, 64, at=4), "misaligned address",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_fault_is_found(builder, tmp_path, name) -> None:
    flavour, file, old, new, case, message = PLANTS[name]
    done = run_cases(builder.program(flavour, {file: (old, new)}), tmp_path, [case])
    assert done.returncode != 0
    assert message in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("none", ""),
        ("mask without the source", "shuffle reads a lane outside the mask"),
        ("mask without the caller", "the calling lane is not in its mask"),
        ("masks that overlap", "masks overlap but differ"),
        ("barrier that some skip", "deadlock in block 0"),
    ],
)
def test_a_planted_warp_fault_is_found(builder, fault, message) -> None:
    """The kernels of csrc use no shuffle, so a small one of its own plants these."""
    done = subprocess.run([builder.plain("check", SIMT / "warp_faults.cpp"), fault], capture_output=True, text=True)
    assert (done.returncode == 0) == (message == ""), done.stderr
    assert message in done.stderr
