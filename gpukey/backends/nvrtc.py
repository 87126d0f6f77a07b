"""The CUDA kernels of csrc/, compiled at run time through CuPy's NVRTC: for machines without nvcc.

Launches are laid out as csrc/plan.h lays them; tests/backends/test_nvrtc.py compares the two.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

NAME = "nvrtc"
DEVICE_TYPE = "cuda"
FILES = ("blake3.cuh", "device.h", "load_store.cuh", "fingerprint_kernels.cuh")
MAX_THREADS, WARP, MAX_BLOCKS, FEW_BLOCKS, CHUNK_BYTES = 256, 32, 0x7FFFFFFF, 528, 1024


class Plan(NamedTuple):
    """How rows or spans lie on thread blocks."""

    blocks: int
    threads: int
    rows_per_block: int


def unavailable() -> str | None:
    """None when torch has a CUDA device, CuPy is there and NVRTC loads, else why not. Starts no CUDA context."""
    if torch.version.cuda is None:
        return "this torch is built without CUDA"
    if not torch.cuda.is_available():
        return "torch sees no CUDA device"
    return uncompilable()


def uncompilable() -> str | None:
    """None when the kernels can be compiled here, which needs no GPU, else why not. Does not import CuPy."""
    if importlib.util.find_spec("cupy") is None:
        return "CuPy is not installed; pip install 'gpukey[cupy]'"
    if _csrc() is None:
        return "the kernels' source (gpukey/csrc) is not installed"
    try:
        pathfinder = importlib.import_module("cuda.pathfinder")
    except ImportError:  # an older CuPy, which finds NVRTC in its own ways
        return None
    try:
        pathfinder.load_nvidia_dynamic_lib("nvrtc")
    except Exception as error:
        return f"NVRTC cannot be loaded ({str(error).splitlines()[0]}); pip install nvidia-cuda-nvrtc"
    return None


def fingerprint_rows(
    rows: torch.Tensor, key: torch.Tensor, digest_size: int, out: torch.Tensor | None = None
) -> torch.Tensor:
    """[num_rows, hidden] on a CUDA device -> uint8 [num_rows, digest_size]."""
    out = _digests(out, rows, rows.shape[0], digest_size)
    if rows.shape[0]:
        num_rows, width, stride = _bytes(rows)
        plan = plan_rows(num_rows, width)
        kernel = "gpukey_rows_aligned" if _aligned(rows) else "gpukey_rows_any"
        sizes = (np.int64(num_rows), np.int64(width), np.int64(stride))
        tail = (np.int32(digest_size), np.int32(plan.rows_per_block), np.uint32(1))
        _launch(kernel, plan, rows, (_address(rows), *sizes, _address(key), _address(out), *tail))
    return out


def stage_rows(
    rows: torch.Tensor, staged: torch.Tensor, key: torch.Tensor, digest_size: int, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Copies rows into `staged` and fingerprints what it wrote there, in one pass."""
    out = _digests(out, rows, rows.shape[0], digest_size)
    if rows.shape[0]:
        num_rows, width, stride = _bytes(rows)
        plan = plan_rows(num_rows, width)
        kernel = "gpukey_stage_aligned" if _aligned(rows) and _aligned(staged) else "gpukey_stage_any"
        sizes = (np.int64(num_rows), np.int64(width), np.int64(stride))
        to = (_address(staged), np.int64(_bytes(staged)[2]))
        tail = (np.int32(digest_size), np.int32(plan.rows_per_block), np.uint32(1))
        _launch(kernel, plan, rows, (_address(rows), *sizes, *to, _address(key), _address(out), *tail))
    return out


def fold_spans(
    rows: torch.Tensor, cu_seqlens: torch.Tensor, key: torch.Tensor, digest_size: int, out: torch.Tensor | None = None
) -> torch.Tensor:
    """uint8 [num_rows, digest_size] and [num_spans + 1] on the device -> uint8 [num_spans, digest_size]; bounds are
    clamped there."""
    num_spans = cu_seqlens.shape[0] - 1
    out = _digests(out, rows, num_spans, digest_size)
    if num_spans:
        plan = plan_spans(rows.shape[0], digest_size, num_spans)
        kernel = "gpukey_fold_aligned" if _aligned(rows) else "gpukey_fold_any"
        bounds = (_address(cu_seqlens), np.int32(cu_seqlens.element_size()), np.int64(num_spans))
        tail = (_address(key), _address(out), np.int32(digest_size), np.uint32(1))
        _launch(kernel, plan, rows, (_address(rows), np.int64(rows.shape[0]), *bounds, *tail))
    return out


def plan_rows(num_rows: int, width: int) -> Plan:
    """plan_rows of csrc/plan.h; `width` in bytes."""
    chunks = max(1, -(-width // CHUNK_BYTES))
    if chunks > MAX_THREADS:
        return Plan(min(num_rows, MAX_BLOCKS), MAX_THREADS, 1)
    rows = MAX_THREADS // chunks
    if rows > WARP:
        rows -= rows % WARP
    while -(-num_rows // rows) < FEW_BLOCKS and rows * chunks > WARP and rows > 1:
        rows //= 2
    return Plan(min(-(-num_rows // rows), MAX_BLOCKS), -(-rows * chunks // WARP) * WARP, rows)


def plan_spans(num_rows: int, digest_size: int, num_spans: int) -> Plan:
    """plan_spans of csrc/plan.h."""
    mean_chunks = max(1, -(-(-(-num_rows // num_spans) * digest_size) // CHUNK_BYTES))
    threads = WARP
    while threads < mean_chunks and threads < MAX_THREADS:
        threads *= 2
    return Plan(min(num_spans, MAX_BLOCKS), threads, 1)


def source() -> str:
    """The kernels and what they include as one text, so that CuPy's cache of compiled kernels sees every change."""
    folder = _csrc()
    if folder is None:
        raise RuntimeError("the kernels' source (gpukey/csrc) is not installed")
    lines = [line for name in FILES for line in (folder / name).read_text().splitlines()]
    return "\n".join(line for line in lines if not line.startswith(('#include "', "#pragma once"))) + "\n"


def ptx(arch: int) -> str:
    """PTX of the kernels for sm_`arch` as NVRTC makes it; needs no driver."""
    from cupy.cuda import nvrtc

    program = nvrtc.createProgram(source(), "gpukey.cu", [], [])
    try:
        nvrtc.compileProgram(program, ("-std=c++17", f"-arch=compute_{arch}"))
        text: bytes = nvrtc.getPTX(program)
    except nvrtc.NVRTCError as error:
        raise RuntimeError(f"NVRTC does not compile the kernels: {nvrtc.getProgramLog(program)}") from error
    finally:
        nvrtc.destroyProgram(program)
    return text.rstrip(b"\0").decode()


class _TorchStream:
    """torch's current stream of a device, as CuPy takes streams of others."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.current_stream(device)

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._stream.cuda_stream


@functools.cache
def _module() -> Any:
    import cupy

    return cupy.RawModule(code=source(), options=("-std=c++17",), backend="nvrtc")


def _launch(kernel: str, plan: Plan, rows: torch.Tensor, args: tuple[Any, ...]) -> None:
    import cupy

    with cupy.cuda.Device(rows.device.index), cupy.cuda.Stream.from_external(_TorchStream(rows.device)):
        _module().get_function(kernel)((plan.blocks,), (plan.threads,), args)


def _csrc() -> Path | None:
    package = Path(__file__).resolve().parents[1]
    folders = (package / "csrc", package.parent / "csrc")  # a wheel, a checkout
    return next((folder for folder in folders if (folder / FILES[-1]).is_file()), None)


def _digests(out: torch.Tensor | None, rows: torch.Tensor, count: int, digest_size: int) -> torch.Tensor:
    return rows.new_empty((count, digest_size), dtype=torch.uint8) if out is None else out


def _bytes(rows: torch.Tensor) -> tuple[int, int, int]:
    """num_rows, width and stride in bytes; the stride of a lone row says nothing, and may be too large to count so."""
    num_rows, hidden = rows.shape
    return num_rows, hidden * rows.element_size(), (rows.stride(0) if num_rows > 1 else hidden) * rows.element_size()


def _aligned(rows: torch.Tensor) -> bool:
    num_rows, _, stride = _bytes(rows)
    return (rows.data_ptr() | (stride if num_rows > 1 else 0)) % 16 == 0


def _address(tensor: torch.Tensor) -> Any:
    return np.uint64(tensor.data_ptr())
