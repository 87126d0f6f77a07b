"""setup.py: what it ships, and that a half which cannot be built is left out with a reason, unless it was demanded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def build(folder: Path, **env: str) -> tuple[subprocess.CompletedProcess[str], dict]:
    """Build into `folder` alone; (the process, its report)."""
    command = [sys.executable, "setup.py", "-q", "build_ext", f"--build-lib={folder}", f"--build-temp={folder}/temp"]
    environment = {**os.environ, "GPUKEY_CUDA": "0", "GPUKEY_BUILD": "auto", **env}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    report = folder / "gpukey" / "_build_report.json"
    return done, json.loads(report.read_text()) if report.exists() else {}


@pytest.fixture
def without_torch(tmp_path) -> str:
    """A PYTHONPATH on which torch cannot be imported."""
    (tmp_path / "blocked" / "torch").mkdir(parents=True)
    (tmp_path / "blocked" / "torch" / "__init__.py").write_text("raise ImportError('torch is blocked')")
    return str(tmp_path / "blocked")


def test_without_a_compiler_nothing_is_built_and_the_report_says_why(tmp_path):
    done, report = build(tmp_path, CC="false", CXX="false")
    assert done.returncode == 0, done.stderr
    assert report["_cuda"] == {"built": False, "reason": "GPUKEY_CUDA=0"}
    for half in ("_chain", "_cpu"):
        assert report[half]["built"] is False
        assert "false" in report[half]["reason"]


def test_a_demanded_build_fails_aloud(tmp_path):
    done, report = build(tmp_path, CC="false", CXX="false", GPUKEY_BUILD="require")
    assert done.returncode != 0
    assert "cannot be built" in done.stderr
    assert report == {}


def test_cuda_that_was_asked_for_must_be_there(tmp_path):
    done, _ = build(tmp_path, CC="false", CXX="false", GPUKEY_CUDA="1", CUDA_HOME=str(tmp_path))
    assert done.returncode != 0
    assert "nvcc is not on PATH or in CUDA_HOME/bin" in done.stderr


def test_without_torch_the_chain_is_built_and_metadata_can_be_read(tmp_path, without_torch):
    done, report = build(tmp_path, PYTHONPATH=without_torch)
    assert done.returncode == 0, done.stderr
    assert report["_chain"] == {"built": True}
    assert "torch is blocked" in report["_cpu"]["reason"]
    command = [sys.executable, "setup.py", "--name"]
    name = subprocess.check_output(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": without_torch}, text=True)
    assert name.split()[-1] == "gpukey"


def test_the_report_reaches_the_reason_of_the_backend(tmp_path, monkeypatch):
    from gpukey.backends import library

    monkeypatch.setattr(library, "_PACKAGE", tmp_path)
    library.load.cache_clear()
    try:
        assert library.load("_cpu") == (None, "not built (pip install --no-build-isolation builds it)")
        library.load.cache_clear()
        (tmp_path / "_build_report.json").write_text(json.dumps({"_cpu": {"built": False, "reason": "no compiler"}}))
        assert library.load("_cpu") == (None, "not built: no compiler")
        library.load.cache_clear()
        (tmp_path / "_cpu.abi3.so").write_text("not a library")
        assert "_cpu.abi3.so does not load with torch" in library.load("_cpu")[1]
    finally:
        library.load.cache_clear()


def test_every_package_is_shipped_and_no_top_level_triton_kernels():
    code = "from distutils.core import run_setup; print(*run_setup('setup.py', stop_after='init').packages)"
    code = f"import setuptools; {code}"
    printed = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True).split()
    own = {str(path.parent.relative_to(ROOT)).replace("/", ".") for path in (ROOT / "gpukey").rglob("__init__.py")}
    assert set(printed) == {*own, "gpukey.triton_kernels", "gpukey.csrc"}


@pytest.mark.parametrize(("arguments", "code"), [("", 2), ("PYTEST_ARGS=-m model", 0)])
def test_make_test_takes_pytest_args(tmp_path, arguments, code):
    """README's `make test PYTEST_ARGS='-m model'`: pytest exits with 5 where it chose nothing, as in the interpreter's run."""
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    python.write_text('#!/bin/sh\ncase "$*" in *interpret*) exit 5;; esac\n')
    python.chmod(0o755)
    for made in (".torch", ".test"):
        (tmp_path / made).touch()
    command = ["make", "test", f"VENV={tmp_path}", *filter(None, [arguments])]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == code, done.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["rehearse"], ["--rehearse", "2"]])
def test_the_device_script_starts_nothing_for_words_that_it_does_not_know(arguments):
    """Its run builds, and replaces what the last one built."""
    done = subprocess.run(
        ["bash", ROOT / "bench" / "device.sh", *arguments], capture_output=True, text=True, timeout=10
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "usage: " in done.stderr
