"""Calls the product's launchers; every kernel that they launch runs in the emulator."""

import ctypes
from pathlib import Path

from .errors import PTXError
from .memory import Memory
from .module import Module
from .stats import Stats

_ON_LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_char_p,
    ctypes.POINTER(ctypes.c_uint),
    ctypes.POINTER(ctypes.c_uint),
    ctypes.c_size_t,
    ctypes.POINTER(ctypes.c_void_p),
)
_STOPPED = 719  # cudaErrorLaunchFailure
P, I64, I32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int


class Launcher:
    """`module`: the PTX that runs; `library`: what nvcc.launchers() built. Addresses are those of a Memory."""

    def __init__(self, module: Module, library: Path) -> None:
        self.module = module
        self.only: range | None = None  # this and fill: see Module.launch
        self.fill = 0xA5
        self.launches: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = []  # of the last call: kernel, grid, block
        self._error: Exception | None = None
        self.grid: int | None = None  # run this many blocks instead of the plan's
        self.library = library
        self._library = ctypes.CDLL(str(library))
        self._callback = _ON_LAUNCH(self._on_launch)
        self._library.rows.argtypes = [P, I64, I64, I64, P, P, I32]
        self._library.stage.argtypes = [P, I64, I64, I64, P, I64, P, P, I32]
        self._library.fold.argtypes = [P, I64, P, I64, I32, P, P, I32]

    def _on_launch(self, kernel, grid, block, shared, args) -> int:  # type: ignore[no-untyped-def]
        name = kernel.decode()
        try:
            sizes = [size for _, size in self.module.compiled(name).kernel.params.values()]
            values = [ctypes.string_at(args[i], size) for i, size in enumerate(sizes)]
            blocks = (self.grid, 1, 1) if self.grid else tuple(grid[:3])
            self.launches.append((name, blocks, tuple(block[:3])))
            self.stats += self.module.launch(
                name, blocks, block[:3], values, shared, self._memory, only=self.only, fill=self.fill
            )
        except Exception as error:  # cannot cross the C frames: raised again in _call
            self._error = error
            return _STOPPED
        return 0

    def _call(self, function: str, memory: Memory, *args: int) -> Stats:
        self.stats, self._memory, self._error = Stats(), memory, None
        self.launches = []
        self._library.fake_cudart_on_launch(self._callback)
        status = getattr(self._library, function)(*args)
        if self._error is not None:
            raise self._error
        if status != 0:
            raise PTXError(f"the launcher returned {status}")
        return self.stats

    def rows(
        self, memory: Memory, data: int, num_rows: int, width: int, stride: int, key: int, digests: int, size: int
    ) -> Stats:
        return self._call("rows", memory, data, num_rows, width, stride, key, digests, size)

    def stage(
        self, memory: Memory, data: int, num_rows: int, width: int, stride: int, staged: int, staged_stride: int,
        key: int, digests: int, size: int,
    ) -> Stats:  # fmt: skip
        return self._call("stage", memory, data, num_rows, width, stride, staged, staged_stride, key, digests, size)

    def fold(
        self, memory: Memory, data: int, num_rows: int, bounds: int, num_spans: int, bytes_each: int, key: int,
        digests: int, size: int,
    ) -> Stats:  # fmt: skip
        return self._call("fold", memory, data, num_rows, bounds, num_spans, bytes_each, key, digests, size)
