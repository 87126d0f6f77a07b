"""triton_kernels is a layout, not an import name; and gpukey brings no triton."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)


def test_the_folder_is_no_top_level_package():
    done = run("import sys; sys.path.insert(0, ''); import triton_kernels")
    assert done.returncode != 0
    assert "ImportError: these are gpukey's Triton kernels: import gpukey.triton_kernels." in done.stderr


def test_importing_gpukey_and_its_backends_brings_no_triton():
    done = run(
        "import sys, gpukey, gpukey.ops, gpukey.backends.triton\n"
        "print(sorted(m for m in sys.modules if m.split('.')[0] == 'triton'))"
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_the_plan_needs_neither_triton_nor_torch():
    """A router may ask how a shape is hashed."""
    done = run(
        "import sys; sys.path.insert(0, 'tests/_support'); import triton_aot; triton_aot.kernels('plan')\n"
        "print('triton' in sys.modules, 'torch' in sys.modules)"
    )
    assert done.stdout.split() == ["False", "False"], done.stderr
