"""Calls gpukey.backends.nvrtc with addresses of a Memory; every kernel that it launches runs in the emulator."""

from dataclasses import dataclass
from typing import Any

from gpukey.backends import nvrtc

from .memory import Memory
from .module import Module
from .stats import Stats


@dataclass(frozen=True)
class Bytes:
    """As much of a tensor as the backend reads: `shape` elements of `itemsize` bytes at `address`."""

    address: int
    shape: tuple[int, ...]
    row_stride: int = 0
    itemsize: int = 1

    def data_ptr(self) -> int:
        return self.address

    def element_size(self) -> int:
        return self.itemsize

    def stride(self, dim: int) -> int:
        assert dim == 0
        return self.row_stride


class NvrtcLauncher:
    """The functions of hash_checks.Functions; `module`: PTX that NVRTC made."""

    def __init__(self, module: Module) -> None:
        self.module = module

    def _call(self, memory: Memory, function: str, *args: Any) -> Stats:
        stats = Stats()
        self.launches: list[tuple[str, nvrtc.Plan]] = []

        def launch(kernel: str, plan: nvrtc.Plan, _rows: Any, values: tuple[Any, ...]) -> None:
            nonlocal stats
            self.launches.append((kernel, plan))
            raw = [value.tobytes() for value in values]
            stats += self.module.launch(kernel, plan.blocks, plan.threads, raw, buffers=memory)

        real, nvrtc._launch = nvrtc._launch, launch
        try:
            getattr(nvrtc, function)(*args)
        finally:
            nvrtc._launch = real
        return stats

    def rows(
        self, memory: Memory, data: int, num_rows: int, width: int, stride: int, key: int, digests: int, size: int
    ) -> Stats:
        rows, out = Bytes(data, (num_rows, width), stride), Bytes(digests, (num_rows, size))
        return self._call(memory, "fingerprint_rows", rows, Bytes(key, (32,)), size, out)

    def stage(
        self, memory: Memory, data: int, num_rows: int, width: int, stride: int, staged: int, staged_stride: int,
        key: int, digests: int, size: int,
    ) -> Stats:  # fmt: skip
        rows, to = Bytes(data, (num_rows, width), stride), Bytes(staged, (num_rows, width), staged_stride)
        return self._call(memory, "stage_rows", rows, to, Bytes(key, (32,)), size, Bytes(digests, (num_rows, size)))

    def fold(
        self, memory: Memory, data: int, num_rows: int, bounds: int, num_spans: int, bytes_each: int, key: int,
        digests: int, size: int,
    ) -> Stats:  # fmt: skip
        rows, cu_seqlens = Bytes(data, (num_rows, size), size), Bytes(bounds, (num_spans + 1,), 1, bytes_each)
        out = Bytes(digests, (num_spans, size))
        return self._call(memory, "fold_spans", rows, cu_seqlens, Bytes(key, (32,)), size, out)
