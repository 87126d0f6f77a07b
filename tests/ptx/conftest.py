"""What nvcc makes of csrc/fingerprint.cu, built once a test run, and the launchers that run it in the emulator."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from ptx import Module, nvcc
from ptx.launcher import Launcher

ARCHS = (80, 90)


@pytest.fixture(scope="session")
def build_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Path], object]], Path]:
    """build_once(name, make): the folder that make(folder) filled, shared by all workers of a run."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base

    def build(name: str, make: Callable[[Path], object]) -> Path:
        folder = shared / f"build-{name}"
        folder.mkdir(exist_ok=True)
        with open(folder / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / "done").exists():
                make(folder)
                (folder / "done").touch()
        return folder

    return build


@pytest.fixture(scope="session")
def need_nvcc() -> None:
    if nvcc.find() is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("needs nvcc; set CUDA_HOME")


@pytest.fixture(scope="session")
def cuda(need_nvcc: None, build_once) -> Callable[[int], Launcher]:
    """cuda(arch) -> Launcher of the product's CUDA kernels."""
    launchers: dict[int, Launcher] = {}

    def get(arch: int) -> Launcher:
        if arch not in launchers:
            library = build_once("launchers", nvcc.launchers) / "launchers.so"
            ptx = build_once(f"sm_{arch}", lambda folder: nvcc.ptx(arch, folder)) / f"fingerprint_sm_{arch}.ptx"
            launchers[arch] = Launcher(Module(ptx.read_text()), library)
        return launchers[arch]

    return get


@pytest.fixture(scope="session", params=ARCHS, ids=lambda arch: f"sm_{arch}")
def launcher(request: pytest.FixtureRequest, cuda: Callable[[int], Launcher]) -> Launcher:
    return cuda(request.param)
