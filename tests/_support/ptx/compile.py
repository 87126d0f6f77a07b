"""One Python function for each basic block of a kernel, made on first use."""

from collections import Counter
from collections.abc import Callable
from typing import Any

from . import alu, memory_ops, warp_ops
from .emit import Emitter, new_namespace
from .flow import Block, Layout, lay_out, live_out, split
from .parse import Kernel
from .scalars import bits, poison
from .stats import instruction_class

_TABLES = (alu, memory_ops, warp_ops)  # importing them fills the instruction table


class Compiled:
    """A kernel ready to run. Emitting every block up front refuses unknown instructions before anything runs."""

    def __init__(self, kernel: Kernel, addresses: dict[str, int]) -> None:
        self.kernel = kernel
        self.blocks: list[Block] = split(kernel)
        self.layout: Layout = lay_out(self.blocks)
        self.classes = [Counter(instruction_class(i.mnemonic) for i in b.instructions) for b in self.blocks]
        self._namespace = new_namespace()
        self._functions: dict[int, Callable[[Any], Any]] = {}
        self._lines: list[list[str]] = []
        self._reads: list[list[str]] = []
        self._writes: list[list[str]] = []
        for block in self.blocks:
            self._emit(block, addresses)
        live = live_out(self.blocks, [set(r) for r in self._reads], [set(w) for w in self._writes])
        self._writes = [[w for w in writes if w in out] for writes, out in zip(self._writes, live, strict=True)]
        self.poison = {name: poison(bits(type)) for name, type in kernel.registers.items() if bits(type) > 0}

    def _emit(self, block: Block, addresses: dict[str, int]) -> None:
        e = Emitter(self.kernel, addresses, self._namespace)
        for instruction in block.instructions:
            e.emit(instruction)
        outcome = "None"
        if block.instructions and block.last.guard and block.end in ("branch", "leave"):
            outcome = e.guard or "None"
        elif block.end == "switch":
            outcome = e.value(block.last.operands[0], "u32")
        self._lines.append([*e.lines, f"outcome = {outcome}"])
        self._reads.append(list(e.reads))
        self._writes.append(list(e.writes))

    def function(self, index: int) -> Callable[[Any], Any]:
        """Takes the running lanes (warp.Warps); returns the branch condition or the switch index, if there is one."""
        if index not in self._functions:
            self._functions[index] = self._make(index)
        return self._functions[index]

    def _make(self, index: int) -> Callable[[Any], Any]:
        names = Emitter(self.kernel, {}, {}).name
        enter = [f"{names(r)} = t.read({r!r})" for r in self._reads[index]]
        leave = [f"t.write({w!r}, {names(w)})" for w in self._writes[index]]
        body = "".join(f"    {line}\n" for line in [*enter, *self._lines[index], *leave, "return outcome"])
        scope: dict[str, Any] = {}
        exec(compile(f"def block(t):\n{body}", f"<{self.kernel.name} block {index}>", "exec"), self._namespace, scope)
        function: Callable[[Any], Any] = scope["block"]
        return function
