"""The compiled halves of gpukey; the rest stands in pyproject.toml. Looks for no GPU; needs no torch to be read.

GPUKEY_BUILD          auto (default): a half that cannot be built is left out, and gpukey/_build_report.json says why;
                      require: that is an error
GPUKEY_CUDA           auto (default): build the CUDA half where nvcc is; 1: demand it; 0: leave it out
TORCH_CUDA_ARCH_LIST  default "8.0 8.6 8.9 9.0 10.0 12.0+PTX"
CUDA_HOME             where nvcc is, if neither on PATH nor in /usr/local/cuda
"""

import json
import os
import shutil
import subprocess
from glob import glob
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.modified import newer_group

PARTS = ["audit", "audit.drivers", "backends", "engine", "integrations", "integrations.sglang", "integrations.vllm"]
# Another project's `triton_kernels` is imported by vLLM: ours is a folder, never a name of its own.
MOVED = {"gpukey.triton_kernels": "triton_kernels", "gpukey.csrc": "csrc"}
STABLE_ABI = "-DTORCH_TARGET_VERSION=0x020b000000000000"  # torch 2.11: one library serves it and all later ones
HEADERS = sorted(glob("csrc/*.h") + glob("csrc/*.cuh"))
COMPILE = ["-std=c++17", "-O3", "-fvisibility=hidden", "-Wall", "-g0"]


def extension(name, *sources):
    options = {"language": "c++", "extra_compile_args": COMPILE, "py_limited_api": True, "optional": True}
    return Extension(f"gpukey.{name}", [f"csrc/{source}" for source in sources], depends=HEADERS, **options)


CPU = ["ops.cpp", "fingerprint_cpu.cpp", "lanes_avx512.cpp", "lanes_avx2.cpp", "lanes_baseline.cpp", "block_keys.cpp"]
EXTENSIONS = [
    extension("_chain", "chain_module.cpp", "block_keys.cpp"),
    extension("_cpu", *CPU),
    extension("_cuda", "ops_cuda.cpp", "fingerprint.cu"),
]


class LeftOut(Exception):
    """A half that nobody asked for and that cannot be built here."""


def torch_paths():
    """(include folder, library folder) of the torch that is installed."""
    import torch

    root = Path(torch.__file__).parent
    return str(root / "include"), str(root / "lib")


def find_nvcc():
    home = os.environ.get("CUDA_HOME")
    path = [os.path.join(home, "bin")] if home else [os.environ.get("PATH", ""), "/usr/local/cuda/bin"]
    return shutil.which("nvcc", path=os.pathsep.join(path))


def gencode():
    for arch in os.environ.get("TORCH_CUDA_ARCH_LIST", "8.0 8.6 8.9 9.0 10.0 12.0+PTX").replace(";", " ").split():
        number = arch.removesuffix("+PTX").replace(".", "")
        yield f"-gencode=arch=compute_{number},code=sm_{number}"
        if arch.endswith("+PTX"):
            yield f"-gencode=arch=compute_{number},code=compute_{number}"


class Build(build_ext):
    def finalize_options(self):
        super().finalize_options()
        self.parallel = self.parallel or 2

    def run(self):
        self.report = {}
        super().run()
        path = Path(self.get_ext_fullpath("gpukey._cpu")).with_name("_build_report.json")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.report, indent=1, sort_keys=True) + "\n")

    def build_extension(self, ext):
        half = ext.name.removeprefix("gpukey.")
        try:
            build = {"_cpu": self.build_cpu, "_cuda": self.build_cuda}.get(half, super().build_extension)
            build(ext)
            self.report[half] = {"built": True}
        except LeftOut as reason:
            self.report[half] = {"built": False, "reason": str(reason)}
        except Exception as error:
            self.report[half] = {"built": False, "reason": " ".join(f"{type(error).__name__}: {error}".split())[:2000]}
            demanded = half == "_cuda" and os.environ.get("GPUKEY_CUDA") == "1"
            if demanded or os.environ.get("GPUKEY_BUILD") == "require":
                raise RuntimeError(f"{half} cannot be built: {error}") from error
            print(f"gpukey: {half} is left out: {error}")

    def build_cpu(self, ext):
        include, library = torch_paths()
        ext.include_dirs, ext.library_dirs, ext.libraries = [include], [library], ["torch_cpu"]
        ext.extra_compile_args = [*COMPILE, STABLE_ABI]
        super().build_extension(ext)

    def build_cuda(self, ext):
        """nvcc compiles and links all of it: no CUDA build of torch is needed, and the CUDA runtime is linked in."""
        wanted, nvcc = os.environ.get("GPUKEY_CUDA", "auto"), find_nvcc()
        if wanted == "0":
            raise LeftOut("GPUKEY_CUDA=0")
        if nvcc is None:
            raise FileNotFoundError("nvcc is not on PATH or in CUDA_HOME/bin") if wanted == "1" else LeftOut("no nvcc")
        output = self.get_ext_fullpath(ext.name)
        if not (self.force or newer_group([*ext.sources, *HEADERS, "setup.py"], output, "newer")):
            return
        include, library = torch_paths()
        Path(output).parent.mkdir(parents=True, exist_ok=True)
        command = [nvcc, "-shared", "-std=c++17", "-O3", "--threads=2", "-Xcompiler=-fPIC,-fvisibility=hidden"]
        command += [*gencode(), STABLE_ABI, "-cudart=static", f"-I{include}", f"-L{library}", "-ltorch_cpu"]
        subprocess.run([*command, "-o", output, *ext.sources], check=True)


setup(
    packages=["gpukey", *(f"gpukey.{part}" for part in PARTS), *MOVED],
    package_dir={"gpukey": "gpukey", **MOVED},
    package_data={"gpukey": ["py.typed", "*.pyi"], "gpukey.csrc": ["*.h", "*.cuh", "*.cu"]},
    ext_modules=EXTENSIONS,
    cmdclass={"build_ext": Build},
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
