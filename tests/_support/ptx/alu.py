"""Integer arithmetic, logic, shifts, comparisons and moves."""

import re

from .emit import Emitter, instruction
from .scalars import bits

INT = r"[us](?:16|32|64)"
BITS = r"b(?:16|32|64)"


def _unsigned(type: str) -> str:
    """Where the sign changes no bit of the result."""
    return "u" + type[1:]


@instruction(rf"(?P<op>add|sub)\.(?P<type>{INT})")
def add(e: Emitter, op: str, type: str) -> None:
    d, a, b = e.args(3)
    e.result(d, f"{e.value(a, type)} {'+' if op == 'add' else '-'} {e.value(b, type)}", _unsigned(type))


@instruction(r"(?P<op>add|sub)(?P<cc>\.cc)\.(?P<type>[us](?:32|64))")
@instruction(r"(?P<op>addc|subc)(?P<cc>\.cc)?\.(?P<type>[us](?:32|64))")
def add_carry(e: Emitter, op: str, cc: str | None, type: str) -> None:
    """The carry flag is the register `%CC`; sub keeps the borrow in it."""
    d, a, b = e.args(3)
    if e.guard is not None:
        raise e.error("a predicate on extended-precision arithmetic is not supported")
    e.kernel.registers.setdefault("%CC", "pred")
    width = "u" + type[1:]
    flag = e.read("%CC") if op.endswith("c") else e.constant(0, 1)
    function = "carry_add" if op.startswith("add") else "borrow_subtract"
    pair = e.temporary(f"f.{function}({e.value(a, width)}, {e.value(b, width)}, {flag})")
    e.assign(d, f"{pair}[0]")
    if cc:
        e.assign("%CC", f"{pair}[1]")


@instruction(rf"(?P<op>mul|mad)\.(?P<part>lo|hi|wide)\.(?P<type>{INT})")
def multiply(e: Emitter, op: str, part: str, type: str) -> None:
    d, a, b, *c = e.args(3 if op == "mul" else 4)
    if part == "lo":
        type = _unsigned(type)
    x, y = e.number(a, type), e.number(b, type)
    out = type
    if part == "lo":
        product = f"{x} * {y}"
    elif part == "hi":
        product = f"f.multiply_high({x}, {y})"
    else:
        if bits(type) == 64:
            raise e.error("no wide product of 64 bits")
        out = f"{type[0]}{2 * bits(type)}"
        cast = ("i" if type[0] == "s" else "u") + out[1:]
        product = f"{x}.astype({cast}) * {y}.astype({cast})"
    e.result(d, f"{product} + {e.number(c[0], out)}" if c else product, out)


@instruction(rf"(?P<op>div|rem|min|max)\.(?P<type>{INT})")
def divide(e: Emitter, op: str, type: str) -> None:
    d, a, b = e.args(3)
    function = {"div": "f.divide", "rem": "f.remainder", "min": "np.minimum", "max": "np.maximum"}[op]
    e.result(d, f"{function}({e.number(a, type)}, {e.number(b, type)})", type)


@instruction(r"(?P<op>neg|abs)\.(?P<type>s(?:16|32|64))")
def negate(e: Emitter, op: str, type: str) -> None:
    d, a = e.args(2)
    e.result(d, f"-{e.number(a, type)}" if op == "neg" else f"np.abs({e.number(a, type)})", type)


@instruction(rf"(?P<op>and|or|xor|not)\.(?P<type>pred|{BITS})")
def logic(e: Emitter, op: str, type: str) -> None:
    d, *args = e.args(2 if op == "not" else 3)
    values = [e.predicate(a) if type == "pred" else e.value(a, type) for a in args]
    e.result(d, "~" + values[0] if op == "not" else {"and": " & ", "or": " | ", "xor": " ^ "}[op].join(values), type)


@instruction(r"lop3\.b32")
def lop3(e: Emitter) -> None:
    d, a, b, c, table = e.args(5)
    x, y, z = (e.value(v, "b32") for v in (a, b, c))
    lut = e.literal(table)
    e.assign(d, f"{x} ^ {y} ^ {z}" if lut == 0x96 else f"f.lop3({x}, {y}, {z}, {lut})")


@instruction(rf"(?P<op>shl|shr)\.(?P<type>{BITS}|{INT})")
def shift(e: Emitter, op: str, type: str) -> None:
    d, a, amount = e.args(3)
    if op == "shl" and type[0] != "b":
        raise e.error("unknown instruction")
    width, x, near = bits(type), e.number(a, type), e.literal(amount)
    if near is not None and 0 <= near < width:
        kind = f"i{width}" if type[0] == "s" else f"u{width}"
        e.result(d, f"{x} {'<<' if op == 'shl' else '>>'} {kind}({near})", type)
    else:
        function = "shift_left" if op == "shl" else "shift_right"
        e.result(d, f"f.{function}({x}, {e.value(amount, 'u32')}, {width})", type)


@instruction(r"shf\.(?P<direction>l|r)\.(?P<mode>wrap|clamp)\.b32")
def funnel(e: Emitter, direction: str, mode: str) -> None:
    d, low, high, amount = e.args(4)
    x, y, near = e.value(low, "b32"), e.value(high, "b32"), e.literal(amount)
    if near is not None and 0 < near < 32:
        left = near if direction == "l" else 32 - near
        e.assign(d, f"({y} << {e.constant(left, 32)}) | ({x} >> {e.constant(32 - left, 32)})")
    else:
        e.assign(d, f"f.funnel({direction!r}, {mode!r}, {x}, {y}, {e.value(amount, 'u32')})")


@instruction(r"prmt\.b32")
def permute(e: Emitter) -> None:
    d, a, b, selector = e.args(4)
    x, y, known = e.value(a, "b32"), e.value(b, "b32"), e.literal(selector)
    nibbles = [known >> 4 * i & 15 for i in range(4)] if known is not None else []
    turn = nibbles[0] if nibbles else 0
    if turn and nibbles == [(turn + i) % 4 for i in range(4)]:  # four bytes of a, turned: a rotate
        e.assign(d, f"({x} >> {e.constant(8 * turn, 32)}) | ({x} << {e.constant(32 - 8 * turn, 32)})")
    else:
        e.assign(d, f"f.permute({x}, {y}, {e.value(selector, 'b32')})")


@instruction(r"bfe\.(?P<type>[us](?:32|64))")
def extract(e: Emitter, type: str) -> None:
    d, a, position, length = e.args(4)
    e.result(d, f"f.extract({e.number(a, type)}, {e.value(position, 'u32')}, {e.value(length, 'u32')})", type)


@instruction(r"bfi\.(?P<type>b(?:32|64))")
def insert(e: Emitter, type: str) -> None:
    d, a, b, position, length = e.args(5)
    places = f"{e.value(position, 'u32')}, {e.value(length, 'u32')}"
    e.result(d, f"f.insert({e.value(a, type)}, {e.value(b, type)}, {places})", type)


@instruction(r"(?P<op>popc|clz|brev)\.(?P<type>b(?:32|64))")
def count(e: Emitter, op: str, type: str) -> None:
    d, a = e.args(2)
    function = {"popc": "count_ones", "clz": "count_leading_zeros", "brev": "reverse_bits"}[op]
    e.result(d, f"f.{function}({e.value(a, type)})", type if op == "brev" else "u32")


@instruction(r"bfind\.(?P<type>[us](?:32|64))")
def find_top(e: Emitter, type: str) -> None:
    d, a = e.args(2)
    e.result(d, f"f.find_top({e.number(a, type)})", "u32")


_COMPARE = {
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "lo": "<", "ls": "<=", "hi": ">", "hs": ">=",
}  # fmt: skip


@instruction(
    r"setp\.(?P<compare>eq|ne|lt|le|gt|ge|lo|ls|hi|hs)(?:\.(?P<join>and|or|xor))?\.(?P<type>[bus](?:16|32|64))"
)
def compare(e: Emitter, compare: str, join: str | None, type: str) -> None:
    d, a, b, *c = e.args(4 if join else 3)
    if (type[0] == "b" and compare not in ("eq", "ne")) or (type[0] != "u" and compare in ("lo", "ls", "hi", "hs")):
        raise e.error("this comparison has no such type")
    test = e.temporary(f"{e.number(a, type)} {_COMPARE[compare]} {e.number(b, type)}")
    first, *second = d.split("|")
    operator = {"and": "&", "or": "|", "xor": "^", None: ""}[join]
    other = e.predicate(c[0]) if join else ""
    inverse = f"(~{test}) {operator} {other}"
    if second:  # both are computed before either is written: c may be one of them
        inverse = e.temporary(inverse)
    e.assign(first, f"{test} {operator} {other}")
    for register in second:
        e.assign(register, inverse)


@instruction(r"selp\.(?P<type>[bus](?:16|32|64))")
def select(e: Emitter, type: str) -> None:
    d, a, b, p = e.args(4)
    e.assign(d, f"where({e.predicate(p)}, {e.value(a, type)}, {e.value(b, type)})")
    e.value(d, type)


@instruction(r"cvt\.(?P<to>[us](?:8|16|32|64))\.(?P<source>[us](?:8|16|32|64))")
def convert(e: Emitter, to: str, source: str) -> None:
    """Truncate, or extend by the source's sign; a register wider than the target extends by the target's."""
    d, a = e.args(2)
    value = e.value(a, source, wider=True)
    sign = "i" if source[0] == "s" else "u"
    if sign == "i":
        value = f"{value}.view(i{bits(source)})"
    e.result(d, f"{value}.astype({sign}{bits(to)}).view({'i' if to[0] == 's' else 'u'}{bits(to)})", to, wider=True)


@instruction(r"mov\.(?P<type>pred|[busf](?:16|32|64))")
def move(e: Emitter, type: str) -> None:
    d, a = e.args(2)
    if type == "pred":
        e.assign(d, e.predicate(a))
    elif a.startswith("{"):
        _pack(e, d, a, bits(type))
    elif d.startswith("{"):
        _unpack(e, d, a, bits(type))
    else:
        e.result(d, e.value(a, type), "b" + type[1:])


def _pack(e: Emitter, d: str, a: str, width: int) -> None:
    parts = e.vector(a)
    part = width // len(parts)
    terms = [f"({e.value(p, f'b{part}')}.astype(u{width}) << u{width}({i * part}))" for i, p in enumerate(parts)]
    e.result(d, " | ".join(terms), f"b{width}")


def _unpack(e: Emitter, d: str, a: str, width: int) -> None:
    parts = e.vector(d)
    part = width // len(parts)
    source = e.temporary(e.value(a, f"b{width}"))
    for i, register in enumerate(parts):
        e.result(register, f"({source} >> u{width}({i * part})).astype(u{part})", f"b{part}")


@instruction(r"cvta(?P<to>\.to)?\.(?P<space>global|const|shared|shared::cta|local)\.u64")
def convert_address(e: Emitter, to: str | None, space: str) -> None:
    """Generic addresses: global ones are themselves, the windows of shared and local memory lie far above."""
    d, a = e.args(2)
    window = re.sub("::.*", "", space)
    base = f" {'-' if to else '+'} t.window({window!r})" if window in ("shared", "local") else ""
    e.result(d, e.value(a, "u64") + base, "u64")
