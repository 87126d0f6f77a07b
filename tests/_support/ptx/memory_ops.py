"""Loads and stores. Which lanes touch what is checked by the spaces in memory.py."""

import re

from .emit import Emitter, instruction
from .scalars import bits

_ORDER = r"(?:\.(?:weak|volatile|(?:relaxed|acquire|release)\.(?:cta|gpu|sys)))?"
_SPACE = r"(?:\.(?P<space>global|shared|shared::cta|local|const))?"
_HINTS = (
    r"(?:\.(?:ca|cg|cs|cv|lu|wb|wt))?(?P<nc>\.nc)?(?:\.L1::(?:evict_normal|evict_unchanged|evict_first|evict_last|no_allocate))?"
    r"(?P<policy>\.L2::cache_hint)?(?:\.L2::(?:64B|128B|256B))?"
)
_TYPE = r"(?:\.v(?P<count>[24]))?\.(?P<type>[busf](?:8|16|32|64))"


@instruction(r"ld\.param(?:\.v(?P<count>[24]))?\.(?P<type>[busf](?:8|16|32|64))")
def load_param(e: Emitter, count: str | None, type: str) -> None:
    d, address = e.args(2)
    match = re.fullmatch(r"\[\s*([\w$]+)\s*(?:\+\s*(\d+))?\s*\]", address)
    if match is None or match[1] not in e.kernel.params:
        raise e.error("unknown parameter")
    offset, size = e.kernel.params[match[1]]
    element, inside = bits(type) // 8, int(match[2] or 0)
    registers = e.vector(d)
    if inside + element * int(count or 1) > size:
        raise e.error(f"reads beyond the parameter of {size} bytes")
    for i, register in enumerate(registers):
        _loaded(e, register, f"t.param({offset + inside + i * element}, {element})", type)


@instruction(rf"(?:ld|ldu){_ORDER}{_SPACE}{_HINTS}{_TYPE}")
def load(e: Emitter, space: str | None, nc: str | None, policy: str | None, count: str | None, type: str) -> None:
    d, address = e.args(3 if policy else 2)[:2]
    if nc and space != "global":
        raise e.error("unknown instruction")
    registers = e.vector(d)
    if len(registers) != int(count or 1):
        raise e.error("the vector has another length")
    where = _address(e, address, space)
    loaded = e.temporary(
        f"t.load({e.current.index}, {_space(space)!r}, {where}, {bits(type) // 8}, {len(registers)}, {e.guard})"
    )
    for i, register in enumerate(registers):
        _loaded(e, register, f"{loaded}[{i}]", type)


@instruction(rf"st{_ORDER}{_SPACE}{_HINTS}{_TYPE}")
def store(e: Emitter, space: str | None, nc: str | None, policy: str | None, count: str | None, type: str) -> None:
    address, source = e.args(3 if policy else 2)[:2]
    if nc or space == "const":
        raise e.error("unknown instruction")
    values = [e.value(v, type, wider=True) for v in e.vector(source)]
    if len(values) != int(count or 1):
        raise e.error("the vector has another length")
    where = _address(e, address, space)
    e.line(f"t.store({e.current.index}, {_space(space)!r}, {where}, ({', '.join(values)},), {e.guard})")


@instruction(r"prefetch\.(?:global|local)\.L[12]|prefetchu\.L1")
def prefetch(e: Emitter) -> None:
    e.args(1)


@instruction(r"createpolicy\.fractional\.L2::evict_(?:last|normal|first|unchanged)\.b64")
def create_policy(e: Emitter) -> None:
    """A cache policy is opaque; it changes no value."""
    e.assign(e.args(2, 3)[0], e.constant(0, 64))


def _space(space: str | None) -> str:
    return {None: "generic", "shared::cta": "shared", "const": "global"}.get(space, space)  # type: ignore[return-value]


def _loaded(e: Emitter, register: str, expression: str, type: str) -> None:
    e.result(register, f"{expression}.view(i{bits(type)})" if type[0] == "s" else expression, type, wider=True)


def _address(e: Emitter, text: str, space: str | None) -> str:
    """`[register + offset]`, `[symbol + offset]` or `[number]` as unsigned 64-bit addresses."""
    match = re.fullmatch(r"\[\s*([%\w$]+)\s*(?:\+\s*(-?\w+))?\s*\]", text)
    if match is None:
        raise e.error("cannot parse the address")
    base, offset = match[1], e.literal(match[2] or "0")
    if offset is None:
        raise e.error("cannot parse the address")
    if base in e.kernel.registers:
        width = e.width(base)
        if width == 32 and space not in ("shared", "shared::cta", "local"):
            raise e.error("a 32-bit address of this space")
        value = e.value(base, f"u{width}")
    else:
        width, value = 64, e.value(base, "u64")
    return f"({value} + {e.constant(offset, width)}).astype(u64)" if offset else f"{value}.astype(u64)"


def shared_address(e: Emitter, text: str) -> str:
    return _address(e, text, "shared")
