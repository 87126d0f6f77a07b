"""Compile csrc/fingerprint.cu: its PTX, and its host launchers as a library over fake_cudart.cpp."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
CSRC = HERE.parents[2] / "csrc"


def find() -> str | None:
    """The path of nvcc, None where there is none."""
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    return shutil.which("nvcc") or shutil.which("nvcc", path=os.path.join(home, "bin"))


def _run(command: Sequence[str | Path]) -> None:
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")


def ptx(arch: int, folder: Path, csrc: Path = CSRC) -> Path:
    """PTX of csrc/fingerprint.cu for sm_`arch`."""
    out = folder / f"fingerprint_sm_{arch}.ptx"
    _run([find() or "nvcc", "-ptx", "-std=c++17", "-O3", f"-arch=sm_{arch}", csrc / "fingerprint.cu", "-o", out])
    return out


def launchers(folder: Path, csrc: Path = CSRC) -> Path:
    """A shared library with the C functions of launchers.cpp and `fake_cudart_on_launch`."""
    out = folder / "launchers.so"
    sources = [csrc / "fingerprint.cu", HERE / "launchers.cpp", HERE / "fake_cudart.cpp"]
    target = ["-cudart", "none", "-gencode", "arch=compute_80,code=compute_80"]  # no machine code: it is not run
    _run(
        [find() or "nvcc", "-shared", "-std=c++17", *target, "-Xcompiler", "-fPIC,-w", "-I", csrc, *sources, "-o", out]
    )
    return out


def one_compression(arch: int, folder: Path, csrc: Path = CSRC) -> Path:
    """PTX of one_compression.cu, from which the instructions of one compression are counted."""
    out = folder / f"one_compression_sm_{arch}.ptx"
    command = [find() or "nvcc", "-ptx", "-std=c++17", "-O3", f"-arch=sm_{arch}", "-I", csrc]
    _run([*command, HERE / "one_compression.cu", "-o", out])
    return out
