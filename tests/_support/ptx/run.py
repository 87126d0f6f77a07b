"""A batch of thread blocks, run to its end: lanes at the earliest place run first (see flow.py)."""

from typing import Any

import numpy as np

from .compile import Compiled
from .errors import PTXError
from .memory import GlobalSpace, PrivateSpace
from .stats import Stats
from .warp import Warps

Dim = tuple[int, int, int]
Array = np.ndarray[Any, Any]
_WAITS, _LEFT = 1 << 30, 1 << 31  # places of lanes at a barrier and of lanes that have returned


class Batch:
    """Thread blocks `blocks` of a grid. Each takes whole warps; lanes without a thread have left from the start."""

    def __init__(
        self, compiled: Compiled, grid: Dim, block: Dim, blocks: range, params: Array, shared: int,
        memory: GlobalSpace, fill: int,
    ) -> None:  # fmt: skip
        self.compiled, self.grid, self.block, self.params = compiled, grid, block, params
        self.threads = block[0] * block[1] * block[2]
        self.lanes_per_block = -(-self.threads // 32) * 32
        self.first_block = blocks.start
        self.size = len(blocks) * self.lanes_per_block
        everyone = np.arange(self.size)
        thread, owner = everyone % self.lanes_per_block, (everyone // self.lanes_per_block).astype(np.uint64)
        self.special = self._special_registers(thread, np.asarray(blocks)[owner.astype(np.int64)], shared)
        self.registers: dict[str, Any] = {}
        kernel = compiled.kernel
        self.spaces = {
            "global": memory,
            "shared": PrivateSpace("shared", owner, len(blocks), kernel.shared_bytes + shared, fill),
            "local": PrivateSpace("local", everyone.astype(np.uint64), self.size, kernel.local_bytes, fill),
        }
        self.alive = thread < self.threads
        self.place = np.where(self.alive, compiled.layout.place_of[0], _LEFT)
        self.resume = np.zeros(self.size, np.int64)  # for lanes at a barrier: their next place
        self.lanes = Warps(self)
        self._live_bits: Array | None = None

    def _special_registers(self, thread: Array, block: Array, shared: int) -> dict[str, Any]:
        def split(prefix: str, linear: Array, extent: Dim) -> dict[str, Any]:
            x, y, _ = extent
            axes = {"x": linear % x, "y": linear // x % y, "z": linear // (x * y)}
            named = {f"%{prefix}.{a}": v.astype(np.uint32) for a, v in axes.items()}
            return named | {f"%n{prefix}.{a}": np.uint32(e) for a, e in zip("xyz", extent, strict=True)}

        lane = (thread % 32).astype(np.uint64)
        equal = np.uint64(1) << lane
        masks = {"eq": equal, "lt": equal - np.uint64(1), "le": 2 * equal - 1, "gt": -(2 * equal), "ge": -equal}
        return {
            **split("tid", thread, self.block),
            **split("ctaid", block, self.grid),
            **{f"%lanemask_{name}": mask.astype(np.uint32) for name, mask in masks.items()},
            "%laneid": lane.astype(np.uint32),
            "%warpid": (thread // 32).astype(np.uint32),
            "%dynamic_smem_size": np.uint32(shared),
            "%total_smem_size": np.uint32(self.compiled.kernel.shared_bytes + shared),
        }

    def thread(self, lane: int) -> tuple[Dim, Dim]:
        """Coordinates of a lane's thread block and thread, for messages."""
        names = [[f"%{kind}.{axis}" for axis in "xyz"] for kind in ("ctaid", "tid")]
        block, thread = (tuple(int(np.broadcast_to(self.special[n], self.size)[lane]) for n in axes) for axes in names)
        return block, thread  # type: ignore[return-value]

    def live_bits(self) -> Array:
        """Mask of the lanes that have not left, one uint32 a warp."""
        if self._live_bits is None:
            packed = np.packbits(self.alive.reshape(-1, 32), axis=1, bitorder="little")
            self._live_bits = packed.view(np.uint32)[:, 0]
        return self._live_bits

    def run(self, stats: Stats) -> None:
        stats.warps += int(np.count_nonzero(self.live_bits()))
        executed: dict[int, list[int]] = {}
        together = int(self.place[0]) if self.alive.all() else None  # the place of all lanes while they agree
        while True:
            place = int(self.place.min()) if together is None else together
            if place == _LEFT:
                break
            if place == _WAITS:
                self._open_barriers()
                together = None
                continue
            index = None
            if together is None:
                here = self.place == place
                index = None if here.all() else np.flatnonzero(here)
            block = self.compiled.layout.block[place]
            if block is None:  # a latch: the loop's next turn
                together = self._go(index, self.compiled.layout.place_of[self.compiled.layout.header[place]])
                continue
            self.lanes.select(index)
            count = executed.setdefault(block, [0, 0])
            count[0] += self.size // 32 if index is None else 1 + int(np.count_nonzero(np.diff(index // 32)))
            count[1] += self.lanes.count
            together = self._step(block, index)
        for block, (warps, threads) in executed.items():
            classes = self.compiled.classes[block]
            stats.warp_instructions += warps * classes.total()
            stats.thread_instructions += threads * classes.total()
            stats.by_class.update({name: n * warps for name, n in classes.items()})

    def _step(self, number: int, index: Array | None) -> int | None:
        """Run a block; returns the common place of all lanes if there is one."""
        block, layout = self.compiled.blocks[number], self.compiled.layout
        outcome = self.compiled.function(number)(self.lanes)
        after = [layout.after(number, s) for s in block.successors]
        if block.end in ("fall", "jump"):
            return self._go(index, after[0])
        if block.end == "barrier":
            self._wait(block.last.index, after[0])
            return None
        if block.end == "leave" and outcome is None:
            self.alive[self.lanes.index] = False
            self._live_bits = None
            return self._go(index, _LEFT)
        if block.end == "switch":
            if int(np.max(outcome)) >= len(after):
                raise self.lanes.error(block.last.index, "branch index beyond its table", int(np.argmax(outcome)))
            return self._go(index, np.asarray(after)[outcome])
        taken = np.broadcast_to(outcome, self.lanes.count)
        if block.end == "leave":
            self.alive[self.lanes.index[taken]] = False
            self._live_bits = None
            after = [_LEFT, *after]
        if taken.all() or not taken.any():
            return self._go(index, after[0] if taken.all() else after[1])
        return self._go(index, np.where(taken, after[0], after[1]))

    def _go(self, index: Array | None, target: Any) -> int | None:
        if index is None:
            if np.ndim(target) == 0:
                self.place.fill(target)
                return int(target)
            self.place[:] = target
        else:
            self.place[index] = target
        return None

    def _wait(self, at: int, after: int) -> None:
        """bar.sync is for whole warps: every lane of a warp that has not left must be here."""
        here = self.lanes.bits(np.arange(self.lanes.count))
        torn = (here != 0) & (here != self.live_bits())
        if torn.any():
            one = int(np.flatnonzero(self.lanes.index // 32 == np.flatnonzero(torn)[0])[0])
            raise self.lanes.error(at, "part of a warp is at a barrier", one)
        self.place[self.lanes.index] = _WAITS
        self.resume[self.lanes.index] = after

    def _open_barriers(self) -> None:
        """Nobody else can run, so all lanes of a block that have not left wait: they must wait at one barrier."""
        waiting = (self.place == _WAITS).reshape(-1, self.lanes_per_block)
        resume = self.resume.reshape(-1, self.lanes_per_block)
        first = np.where(waiting, resume, _LEFT).min(1)
        last = np.where(waiting, resume, -1).max(1)
        if ((last >= 0) & (first != last)).any():
            block = self.first_block + int(np.flatnonzero((last >= 0) & (first != last))[0])
            raise PTXError(
                f"block {block}: its threads wait at different barriers (kernel {self.compiled.kernel.name})"
            )
        np.copyto(self.place, self.resume, where=waiting.reshape(-1))
