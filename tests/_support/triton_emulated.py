"""triton_kernels/launch.py run for real, with emulated tensors and, for its launches, the PTX emulator."""

from __future__ import annotations

import contextlib
import functools
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import triton_aot
from ptx import Memory, Module, Stats

_POINTERS = {"uint8": "*u8", "int32": "*i32", "int64": "*i64"}


class EmulatedTensor:
    """What launch.py asks of a tensor, at an address of emulated memory."""

    device = torch.device("cuda", 0)
    data = None  # triton.reinterpret keeps it, and nobody reads it

    def __init__(
        self, memory: Memory, address: int, shape: tuple[int, ...], row_stride: int, dtype: torch.dtype = torch.uint8
    ) -> None:
        self.memory, self.address, self.shape, self.row_stride, self.dtype = memory, address, shape, row_stride, dtype

    def data_ptr(self) -> int:
        return self.address

    def stride(self, dim: int) -> int:
        return (self.row_stride, 1)[dim]

    def element_size(self) -> int:
        return self.dtype.itemsize

    def is_contiguous(self) -> bool:
        return self.row_stride == self.shape[-1]

    def contiguous(self) -> EmulatedTensor:
        return self

    def new_empty(self, shape: tuple[int, ...]) -> EmulatedTensor:
        address = self.memory.map(np.zeros(int(np.prod(shape)), np.uint8), access="w")
        return EmulatedTensor(self.memory, address, shape, shape[-1])

    def copy_(self, source: EmulatedTensor) -> EmulatedTensor:
        """Contiguous to contiguous, as a copy on the device."""
        size = int(np.prod(self.shape))
        data, _ = source._bytes(size)
        to, defined = self._bytes(size)
        to[:], defined[:] = data, True
        return self

    def clone(self, **_: Any) -> EmulatedTensor:
        return self.new_empty(self.shape).copy_(self)

    def _bytes(self, size: int) -> tuple[np.ndarray, np.ndarray]:
        """The bytes of its buffer, and which of them are defined."""
        if size == 0:
            return np.empty(0, np.uint8), np.empty(0, bool)
        buffer = next(b for b in self.memory._buffers if 0 <= self.address - b.address < b.array.nbytes)
        part = slice(self.address - buffer.address, self.address - buffer.address + size)
        defined = np.ones(buffer.array.nbytes, bool) if buffer.defined is None else buffer.defined
        return buffer.array[part], defined[part]


class TritonLauncher:
    """The same calls as ptx.launcher.Launcher has for the CUDA kernels. `plan`: what launch.py is told to do."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.plan: Any = None
        self.only: range | None = None  # run these blocks of a grid
        self.fill = 0xA5
        self.launches: list[tuple[str, tuple[int, ...]]] = []

    def rows(
        self, memory: Memory, data: int, num_rows: int, width: int, stride: int, key: int, digests: int, size: int
    ) -> Stats:
        return self._hash(memory, data, num_rows, width, stride, None, key, digests, size)

    def stage(
        self, memory: Memory, data: int, num_rows: int, width: int, stride: int, staged: int, staged_stride: int,
        key: int, digests: int, size: int,
    ) -> Stats:  # fmt: skip
        to = EmulatedTensor(memory, staged, (num_rows, width), staged_stride)
        return self._hash(memory, data, num_rows, width, stride, to, key, digests, size)

    def fold(
        self, memory: Memory, data: int, num_rows: int, bounds: int, num_spans: int, bytes_each: int, key: int,
        digests: int, size: int,
    ) -> Stats:  # fmt: skip
        rows = EmulatedTensor(memory, data, (num_rows, size), size)
        dtype = torch.int32 if bytes_each == 4 else torch.int64
        cu_seqlens = EmulatedTensor(memory, bounds, (num_spans + 1,), 1, dtype)
        out = EmulatedTensor(memory, digests, (num_spans, size), size)
        return self._call(memory, lambda launch, key: launch.fold_spans(rows, cu_seqlens, key, out), key)

    def _hash(
        self, memory: Memory, data: int, num_rows: int, width: int, stride: int, staged: EmulatedTensor | None,
        key: int, digests: int, size: int,
    ) -> Stats:  # fmt: skip
        rows = EmulatedTensor(memory, data, (num_rows, width), stride)
        out = EmulatedTensor(memory, digests, (num_rows, size), size)
        return self._call(memory, lambda launch, key: launch.hash_rows(rows, staged, key, out, self.plan), key)

    def _call(self, memory: Memory, function: Any, key: int) -> Stats:
        self.memory, self.stats, self.launches = memory, Stats(), []
        launch, real = triton_aot.kernels("launch"), triton_aot.kernels()
        names = ("hash_tiles", "hash_lanes", "merge_tiles", "fold_spans")
        fakes = {
            "kernels": SimpleNamespace(**{name: _Kernel(self, getattr(real, name)) for name in names}),
            "_shape_of": lambda _: (32, 4 * 32 * 132),  # an H200
            "_on": contextlib.nullcontext,
        }
        with patch.multiple(launch, **fakes):
            function(launch, EmulatedTensor(memory, key, (32,), 1))
        return self.stats

    def run(self, function: Any, grid: tuple[int, ...], arguments: dict[str, Any]) -> None:
        name = function.__name__
        pointers, constants, values = [], [], []
        for parameter in function.params:
            value = arguments[parameter.name]
            if parameter.is_constexpr or value is None:
                constants.append((parameter.name, value))
            elif hasattr(value, "data_ptr"):
                kind = _POINTERS[str(value.dtype).removeprefix("torch.")]
                pointers.append((parameter.name, kind, value.data_ptr() % 16 == 0))
                values.append(value.data_ptr())
            else:
                values.append(value)
        kernel = triton_aot.compiled(name, self.target, tuple(pointers), tuple(constants))
        module = _module(kernel.asm["ptx"])
        # Triton's own scratch pointers stand behind the arguments; these kernels have no use for them.
        values += [0] * (len(module.compiled(name).kernel.params) - len(values))
        self.launches.append((name, grid))
        self.stats += module.launch(
            name, grid, 32 * kernel.metadata.num_warps, values, kernel.metadata.shared, self.memory,
            only=self.only, fill=self.fill,
        )  # fmt: skip


class _Kernel:
    """kernel[grid](...) as launch.py writes it."""

    def __init__(self, launcher: TritonLauncher, function: Any) -> None:
        self.launcher, self.function = launcher, function

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def call(*args: Any, num_warps: int, **constants: Any) -> None:
            names = [parameter.name for parameter in self.function.params]
            self.launcher.run(self.function, grid, {**dict(zip(names, args, strict=False)), **constants})

        return call


@functools.cache
def _module(text: str) -> Module:
    return Module(text)


@functools.cache
def launcher(target: str) -> TritonLauncher:
    return TritonLauncher(target)
