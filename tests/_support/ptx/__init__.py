"""Run integer PTX on a CPU, all threads of many blocks at once with NumPy.

    memory = Memory()
    src = memory.map(array)                        # read-only; a virtual address comes back
    dst = memory.map(result, access="w")           # undefined until the kernel has written it
    stats = Module(ptx_text).launch("name", grid, block, [src, dst, 7], shared_bytes=0, buffers=memory)

Every load and store is checked (bounds, alignment, permission, undefined bytes), every warp-wide instruction for
the lanes that it names; an instruction whose whole mnemonic is unknown is refused. `stats` counts issue slots.
"""

from .errors import PTXError
from .memory import Memory
from .module import Module
from .stats import Stats

__all__ = ["Memory", "Module", "PTXError", "Stats"]
