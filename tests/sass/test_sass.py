"""What nvcc makes of the kernels, in machine code: no spills, wide loads, and how many instructions a compression takes.

The limits hold for sm_90 under nvcc 13.0; the counts are printed for every architecture."""

from __future__ import annotations

import fcntl
import os

import pytest
from ptx import nvcc
from sass import compile_cubin, disassemble, mix, shared_pipe

ARCHS = (80, 86, 89, 90, 100, 120)  # what setup.py builds by default
KERNELS = {f"gpukey_{operation}_{rows}" for operation in ("rows", "stage", "fold") for rows in ("aligned", "any")}
SHARED_PIPE_LIMIT, TOTAL_LIMIT = (
    480,
    900,
)  # of one compression with its loads and its loop; as first compiled 571 shared
COMPRESSION = 700  # a loop with at least so many instructions holds a compression


@pytest.fixture(scope="module", params=ARCHS, ids=lambda arch: f"sm_{arch}")
def compiled(request, tmp_path_factory, worker_id):
    """arch, kernels by name; compiled once a run, by whichever test process comes first."""
    if nvcc.find() is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("needs nvcc; set CUDA_HOME")
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "sass"
    folder.mkdir(exist_ok=True)
    with open(folder / f"lock-{request.param}", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        cubin = folder / f"fingerprint_sm_{request.param}.cubin"
        if not cubin.exists():
            compile_cubin(nvcc.find(), request.param, folder)
    return request.param, disassemble(cubin)


def test_all_kernels_stay_in_registers(compiled, capsys) -> None:
    arch, functions = compiled
    assert set(functions) == KERNELS
    with capsys.disabled():
        print(f"\nsm_{arch}")
        for name, function in sorted(functions.items()):
            print(f"  {name:22} {len(function.instructions)} instructions, {function.registers} registers")
    for function in functions.values():
        assert function.count("LDL", "STL") == 0, function.name
    # 256 threads four times on a multiprocessor: as many blocks as the plan counts on.
    for name in ("gpukey_rows_aligned", "gpukey_stage_aligned"):
        assert functions[name].registers <= 64, name


def test_aligned_rows_move_16_bytes_at_a_time(compiled) -> None:
    _, functions = compiled
    for name, function in functions.items():
        wide = [i.name for i in function.instructions if i.name.startswith("LDG.E.128")]
        assert (len(wide) >= 4) == name.endswith("_aligned"), name
    stores = [i.name for i in functions["gpukey_stage_aligned"].instructions if i.name.startswith("STG.E.128")]
    assert len(stores) >= 4


def test_instructions_of_a_compression(compiled, capsys) -> None:
    """A turn of the loop over a chunk's blocks: four loads of 16 bytes, one compression, the loop itself."""
    arch, functions = compiled
    for name in ("gpukey_rows_aligned", "gpukey_stage_aligned", "gpukey_fold_aligned"):
        path = functions[name].loop_path("LDG.E.128", COMPRESSION)
        loads = sum(i.name.startswith("LDG.E.128") for i in path)
        with capsys.disabled():
            print(f"\nsm_{arch} {name}: {len(path)} instructions, {shared_pipe(path)} on the shared pipe; {mix(path)}")
        assert loads == 4, name
        if arch == 90:
            assert shared_pipe(path) <= SHARED_PIPE_LIMIT
            assert len(path) <= TOTAL_LIMIT


def test_instructions_of_a_parent(compiled, capsys) -> None:
    arch, functions = compiled
    path = functions["gpukey_rows_aligned"].loop_path("BAR", COMPRESSION)
    compression = functions["gpukey_rows_aligned"].loop_path("LDS", COMPRESSION)
    with capsys.disabled():
        print(f"\nsm_{arch} a level without work: {len(path)} instructions; with a parent: {len(compression)}")
    if arch == 90:
        assert shared_pipe(compression) <= SHARED_PIPE_LIMIT + 40
        assert len(compression) <= TOTAL_LIMIT + 40
