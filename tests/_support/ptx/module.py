"""A PTX file whose kernels can be launched."""

from collections.abc import Sequence

import numpy as np

from .compile import Compiled
from .errors import PTXError
from .memory import Memory
from .parse import parse
from .run import Batch, Dim
from .stats import Stats

_VARIABLES_AT = 0x61_0000_0000


class Module:
    """`text`: PTX. A kernel is parsed and checked at its first launch."""

    def __init__(self, text: str) -> None:
        self._program = parse(text)
        self._compiled: dict[str, Compiled] = {}
        self._addresses: dict[str, int] = {}
        address = _VARIABLES_AT
        for variable in self._program.variables:
            self._addresses[variable.name] = address = -(-address // max(variable.align, 16)) * max(variable.align, 16)
            address += variable.size + 4096

    @property
    def kernels(self) -> list[str]:
        return list(self._program.kernels)

    def find(self, name: str) -> str:
        """The kernel called `name`, or the only one whose (mangled) name contains it."""
        if name in self._program.kernels:
            return name
        found = [k for k in self._program.kernels if name in k]
        if len(found) != 1:
            raise PTXError(f"name: {name!r} fits {len(found)} of the kernels {self.kernels}")
        return found[0]

    def shared_bytes(self, name: str) -> int:
        """Static shared memory of a kernel."""
        return self._program.kernels[self.find(name)].shared_bytes

    def compiled(self, name: str) -> Compiled:
        name = self.find(name)
        if name not in self._compiled:
            self._compiled[name] = Compiled(self._program.kernels[name], self._addresses)
        return self._compiled[name]

    def launch(
        self, name: str, grid: int | Sequence[int], block: int | Sequence[int], args: Sequence[int | bytes],
        shared_bytes: int = 0, buffers: Memory | None = None, *, lanes: int = 8192, fill: int = 0xA5,
        only: range | None = None,
    ) -> Stats:  # fmt: skip
        """Run a grid. `args`: an integer, or the bytes of a struct, for each parameter; `shared_bytes`: dynamic;
        `lanes`: how many run at once; `fill`: what shared and local memory hold at the start;
        `only`: run these blocks of the grid, by number."""
        compiled = self.compiled(name)
        extent, threads = _dim("grid", grid, (2**31 - 1, 65535, 65535)), _dim("block", block, (1024, 1024, 64))
        size = threads[0] * threads[1] * threads[2]
        kernel = compiled.kernel
        if size > kernel.max_threads or size != (kernel.exact_threads or size):
            raise PTXError(f"block: {size} threads, {kernel.name} is compiled for {kernel.max_threads}")
        params = _pack(compiled, args)
        memory = (buffers or Memory()).space(self._constants())
        stats = Stats()
        step = max(1, lanes // size)
        chosen = range(extent[0] * extent[1] * extent[2]) if only is None else only
        try:
            with np.errstate(all="ignore"):
                for first in range(0, len(chosen), step):
                    blocks = chosen[first : first + step]
                    Batch(compiled, extent, threads, blocks, params, shared_bytes, memory, fill).run(stats)
        finally:
            memory.close()
        return stats

    def _constants(self) -> list[tuple[int, bytes, bool]]:
        return [
            (self._addresses[v.name], v.data if v.data is not None else bytes(v.size), v.space == "global")
            for v in self._program.variables
        ]


def _dim(what: str, value: int | Sequence[int], limits: Dim) -> Dim:
    given = (value,) if isinstance(value, int) else tuple(value)
    full = (*given, *(1,) * (3 - len(given)))
    if len(full) != 3 or any(not 1 <= v <= limit for v, limit in zip(full, limits, strict=True)):
        raise PTXError(f"{what}: {value} is no launch dimension (at most {limits})")
    return full


def _pack(compiled: Compiled, args: Sequence[int | bytes]) -> "np.ndarray[tuple[int], np.dtype[np.uint8]]":
    kernel = compiled.kernel
    if len(args) != len(kernel.params):
        raise PTXError(f"args: {len(args)} for the {len(kernel.params)} parameters of {kernel.name}")
    packed = bytearray(-(-kernel.param_bytes // 16) * 16)
    for (name, (offset, size)), value in zip(kernel.params.items(), args, strict=True):
        if isinstance(value, int):
            value = (value % 2 ** (8 * size)).to_bytes(size, "little")
        if len(value) != size:
            raise PTXError(f"args: {len(value)} bytes for {name}, which has {size}")
        packed[offset : offset + size] = value
    return np.frombuffer(bytes(packed), np.uint8)
