"""From PTX instructions to lines of Python over NumPy arrays, one element a lane.

Every emitted value has the unsigned type of its width (booleans for predicates) and is an array of the running lanes
or, where all lanes agree, a NumPy scalar. Nothing is changed in place, so registers may share an array.
"""

import functools
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from . import semantics
from .errors import PTXError
from .parse import Instruction, Kernel
from .scalars import SIGNED, UNSIGNED, bits, literal

Handler = Callable[..., None]
_PATTERNS: list[tuple[re.Pattern[str], Handler]] = []


def instruction(pattern: str) -> Callable[[Handler], Handler]:
    """Register the emitter of every mnemonic that `pattern` matches in full; its named groups become keywords."""

    def register(handler: Handler) -> Handler:
        _PATTERNS.append((re.compile(pattern), handler))
        return handler

    return register


@functools.cache
def _lookup(mnemonic: str) -> tuple[Handler, dict[str, str | None]] | None:
    found = [(handler, m.groupdict()) for pattern, handler in _PATTERNS if (m := pattern.fullmatch(mnemonic))]
    if len(found) > 1:
        raise AssertionError(f"{mnemonic} is claimed by {[handler.__name__ for handler, _ in found]}")
    return found[0] if found else None


class Emitter:
    """Collects the lines of one basic block, what it reads before writing, and what it writes."""

    def __init__(self, kernel: Kernel, addresses: dict[str, int], namespace: dict[str, Any]) -> None:
        self.kernel = kernel
        self.addresses = addresses  # of module variables
        self.namespace = namespace
        self.lines: list[str] = []
        self.reads: dict[str, None] = {}
        self.writes: dict[str, None] = {}
        self.temporaries = 0

    def emit(self, instruction: Instruction) -> None:
        self.current = instruction
        self.guard = None
        if instruction.guard:
            self.guard = self.predicate(("!" if instruction.negated else "") + instruction.guard)
        found = _lookup(instruction.mnemonic)
        if found is None:
            raise self.error("unknown instruction")
        handler, groups = found
        handler(self, **groups)

    def error(self, what: str) -> PTXError:
        return PTXError(f"{what}: {self.current.text} (kernel {self.kernel.name})")

    # --- operands

    def args(self, *counts: int) -> tuple[str, ...]:
        if len(self.current.operands) not in counts:
            raise self.error(f"{len(self.current.operands)} operands, expected {counts}")
        return self.current.operands

    def line(self, text: str) -> None:
        self.lines.append(text)

    def temporary(self, expression: str) -> str:
        self.temporaries += 1
        name = f"t{self.temporaries}"
        self.line(f"{name} = {expression}")
        return name

    def constant(self, value: int, width: int) -> str:
        """The name of a NumPy scalar with the low `width` bits of `value`."""
        value &= (1 << width) - 1
        name = f"k{width}_{value:x}"
        self.namespace[name] = np.bool_(value) if width == 1 else UNSIGNED[width](value)
        return name

    def name(self, register: str) -> str:
        """The Python variable of a register."""
        return "r_" + re.sub(r"\W", "_", register)

    def width(self, register: str) -> int:
        return bits(self.kernel.registers[register])

    def read(self, register: str) -> str:
        if register not in self.writes:
            self.reads[register] = None
        return self.name(register)

    def literal(self, arg: str) -> int | None:
        return literal(arg)

    def value(self, arg: str, type_name: str, *, wider: bool = False) -> str:
        """An operand as an unsigned value of the type's width. Only where PTX allows it may a register be wider."""
        width = bits(type_name)
        if arg in self.kernel.registers:
            have = self.width(arg)
            if have != width and not (wider and have > width):
                raise self.error(f"register {arg} has {have} bits, the type .{type_name}")
            return self.read(arg) if have == width else f"{self.read(arg)}.astype(u{width})"
        number = literal(arg)
        if number is not None:
            return self.constant(number, width)
        if arg in semantics.SPECIAL_REGISTERS:
            if width != 32:
                raise self.error(f"{arg} read as .{type_name}")
            return f"t.special({arg!r})"
        for table in (self.kernel.shared, self.kernel.local, self.addresses):
            if arg in table:
                return self.constant(table[arg], width)
        raise self.error(f"unknown operand {arg}")

    def number(self, arg: str, type_name: str) -> str:
        """The same, as a signed value where the type is signed."""
        value = self.value(arg, type_name)
        return f"{value}.view(i{bits(type_name)})" if type_name[0] == "s" else value

    def predicate(self, arg: str) -> str:
        if arg.startswith("!"):
            return f"(~{self.predicate(arg[1:])})"
        if self.kernel.registers.get(arg) == "pred":
            return self.read(arg)
        number = literal(arg)
        if number is None:
            raise self.error(f"{arg} is no predicate")
        return self.constant(int(number != 0), 1)

    def vector(self, arg: str) -> list[str]:
        return [a.strip() for a in arg.strip("{} ").split(",")] if arg.startswith("{") else [arg]

    # --- results

    def assign(self, register: str, expression: str) -> None:
        """Write an unsigned value of exactly the register's width, under the instruction's predicate."""
        if register == "_":
            return
        if register not in self.kernel.registers:
            raise self.error(f"{register} is no register")
        name = self.name(register)
        if self.guard is not None:
            expression = f"where({self.guard}, {expression}, {self.read(register)})"
        self.line(f"{name} = {expression}")
        self.writes[register] = None

    def result(self, register: str, expression: str, type_name: str, *, wider: bool = False) -> None:
        """Write a value of the operation's own type, signed or not; a wider register is extended by its sign."""
        width, signed = bits(type_name), type_name[0] == "s"
        if register == "_":
            return
        have = self.width(register) if register in self.kernel.registers else width
        if have == width:
            self.assign(register, f"({expression}).view(u{width})" if signed else expression)
        elif wider and have > width:
            extended = f"({expression}).astype(i{have}).view(u{have})" if signed else f"({expression}).astype(u{have})"
            self.assign(register, extended)
        else:
            raise self.error(f"register {register} has {have} bits, the type .{type_name}")


def new_namespace() -> dict[str, Any]:
    """The names that emitted lines use."""
    names: dict[str, Any] = {f"u{w}": t for w, t in UNSIGNED.items()} | {f"i{w}": t for w, t in SIGNED.items()}
    names |= {"where": np.where, "np": np, "f": semantics}
    return names
