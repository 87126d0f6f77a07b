"""Every arithmetic instruction of the emulator against Python's own integers, at the edges of its types."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from ptx import PTXError
from ptx.snippet import run

EDGES = (0, 1, 2, 3, 7, 8, 31, 32, 33, 255, 256, -1, -2, -8)


def values(width: int) -> list[int]:
    top = 1 << (width - 1)
    return sorted({v % (1 << width) for v in (*EDGES, top, top - 1, top + 1, 0x5A5A_1234_89AB_CDEF)})


def grid(*widths: int, limit: int = 1024) -> list[tuple[int, ...]]:
    every = list(itertools.product(*(values(w) for w in widths)))
    picked = np.random.default_rng(0).permutation(len(every))[:limit]
    return [every[i] for i in sorted(picked)]


def signed(x: int, width: int) -> int:
    x %= 1 << width
    return x - (1 << width) if x >> (width - 1) else x


def check(body: str, widths: tuple[int, ...], out: int, want) -> None:
    """`body` with %a %b %c of `widths` gives want(a, b, c) mod 2^out in %d, for all edges."""
    cases = grid(*widths)
    arrays = [np.array(column, f"u{w // 8}") for column, w in zip(zip(*cases, strict=True), widths, strict=True)]
    got = run(body, *arrays, out=out)[0]
    for case, result in zip(cases, got, strict=True):
        assert int(result) == want(*case) % (1 << out), f"{body.strip()} of {[hex(v) for v in case]}"


def towards_zero(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1) if b else -1


def typed(name: str, width: int):
    """A value as the type reads it."""
    return lambda x: signed(x, width) if name == "s" else x


BINARY = {
    "add.{t}": lambda a, b: a + b,
    "sub.{t}": lambda a, b: a - b,
    "mul.lo.{t}": lambda a, b: a * b,
    "min.{t}": min,
    "max.{t}": max,
    "div.{t}": towards_zero,
    "rem.{t}": lambda a, b: a - towards_zero(a, b) * b,
}


@pytest.mark.parametrize("mnemonic", BINARY)
@pytest.mark.parametrize("kind", "us")
@pytest.mark.parametrize("width", [16, 32, 64])
def test_binary(mnemonic, kind, width):
    read = typed(kind, width)
    name = mnemonic.format(t=f"{kind}{width}")
    check(f"{name} %d, %a, %b;", (width, width), width, lambda a, b: BINARY[mnemonic](read(a), read(b)))


@pytest.mark.parametrize("kind", "us")
@pytest.mark.parametrize("width", [16, 32, 64])
def test_products(kind, width):
    read, t = typed(kind, width), f"{kind}{width}"
    check(f"mul.hi.{t} %d, %a, %b;", (width,) * 2, width, lambda a, b: read(a) * read(b) >> width)
    check(f"mad.lo.{t} %d, %a, %b, %c;", (width,) * 3, width, lambda a, b, c: a * b + c)
    check(f"mad.hi.{t} %d, %a, %b, %c;", (width,) * 3, width, lambda a, b, c: (read(a) * read(b) >> width) + c)
    if width < 64:
        wide = 2 * width
        check(f"mul.wide.{t} %d, %a, %b;", (width,) * 2, wide, lambda a, b: read(a) * read(b))
        check(f"mad.wide.{t} %d, %a, %b, %c;", (width, width, wide), wide, lambda a, b, c: read(a) * read(b) + c)


@pytest.mark.parametrize("width", [16, 32, 64])
def test_logic(width):
    check(f"and.b{width} %d, %a, %b;", (width,) * 2, width, lambda a, b: a & b)
    check(f"or.b{width} %d, %a, %b;", (width,) * 2, width, lambda a, b: a | b)
    check(f"xor.b{width} %d, %a, %b;", (width,) * 2, width, lambda a, b: a ^ b)
    check(f"not.b{width} %d, %a;", (width,), width, lambda a: ~a)
    check(f"neg.s{width} %d, %a;", (width,), width, lambda a: -a)
    check(f"abs.s{width} %d, %a;", (width,), width, lambda a: abs(signed(a, width)))


@pytest.mark.parametrize("table", [0x00, 0x3C, 0x96, 0xCA, 0xE8, 0xFF, 0x1D])
def test_lop3(table):
    def want(a, b, c):
        picks = (4 * (a >> i & 1) + 2 * (b >> i & 1) + (c >> i & 1) for i in range(32))
        return sum((table >> pick & 1) << i for i, pick in enumerate(picks))

    check(f"lop3.b32 %d, %a, %b, %c, {table};", (32, 32, 32), 32, want)


@pytest.mark.parametrize("width", [16, 32, 64])
def test_shifts_by_a_register(width):
    check(f"shl.b{width} %d, %a, %b;", (width, 32), width, lambda a, n: a << n if n < width else 0)
    check(f"shr.u{width} %d, %a, %b;", (width, 32), width, lambda a, n: a >> n if n < width else 0)
    check(f"shr.s{width} %d, %a, %b;", (width, 32), width, lambda a, n: signed(a, width) >> min(n, width))


@pytest.mark.parametrize("width", [16, 32, 64])
@pytest.mark.parametrize("amount", [0, 1, 15, 16, 31, 32, 63, 64, 200])
def test_shifts_by_a_number(width, amount):
    check(f"shl.b{width} %d, %a, {amount};", (width,), width, lambda a: a << amount if amount < width else 0)
    check(f"shr.b{width} %d, %a, {amount};", (width,), width, lambda a: a >> amount)
    check(f"shr.s{width} %d, %a, {amount};", (width,), width, lambda a: signed(a, width) >> amount)


@pytest.mark.parametrize("mode", ["wrap", "clamp"])
def test_funnel_shifts(mode):
    def amount(n):
        return n & 31 if mode == "wrap" else min(n, 32)

    left = lambda a, b, c: ((b << 32 | a) << amount(c)) >> 32  # noqa: E731
    right = lambda a, b, c: (b << 32 | a) >> amount(c)  # noqa: E731
    check(f"shf.l.{mode}.b32 %d, %a, %b, %c;", (32, 32, 32), 32, left)
    check(f"shf.r.{mode}.b32 %d, %a, %b, %c;", (32, 32, 32), 32, right)
    for n in (0, 1, 7, 12, 16, 31, 32, 40):
        check(f"shf.l.{mode}.b32 %d, %a, %b, {n};", (32, 32), 32, lambda a, b, n=n: left(a, b, n))
        check(f"shf.r.{mode}.b32 %d, %a, %a, {n};", (32,), 32, lambda a, n=n: right(a, a, n))


def permuted(a: int, b: int, selector: int) -> int:
    source = (b << 32 | a).to_bytes(8, "little")
    out = []
    for i in range(4):
        nibble = selector >> 4 * i & 15
        byte = source[nibble & 7]
        out.append((255 if byte & 128 else 0) if nibble & 8 else byte)
    return int.from_bytes(bytes(out), "little")


def test_prmt():
    check("prmt.b32 %d, %a, %b, %c;", (32, 32, 32), 32, permuted)
    for selector in (0x3210, 0x1032, 0x0321, 0x2103, 0x7654, 0x5410, 0x4321, 0xBA98, 0x6540):
        check(f"prmt.b32 %d, %a, %b, {selector};", (32, 32), 32, lambda a, b, s=selector: permuted(a, b, s))


@pytest.mark.parametrize("width", [32, 64])
def test_bit_fields(width):
    def extract(kind):
        def want(a, position, length):
            position, length = position & 255, length & 255
            if kind == "u":
                return a >> position & ((1 << length) - 1)
            if length == 0:
                return 0
            top = min(position + length - 1, width - 1)
            sign = a >> top & 1
            bits = [a >> (position + i) & 1 if i < length and position + i < width else sign for i in range(width)]
            return sum(bit << i for i, bit in enumerate(bits))

        return want

    def insert(a, b, position=3, length=9):
        mask = ((1 << length) - 1) << position
        return b & ~mask | a << position & mask

    check(f"bfe.u{width} %d, %a, %b, %c;", (width, 32, 32), width, extract("u"))
    check(f"bfe.s{width} %d, %a, %b, %c;", (width, 32, 32), width, extract("s"))
    check(f"bfi.b{width} %d, %a, %b, 3, 9;", (width, width), width, insert)
    check(f"bfi.b{width} %d, %a, %a, %b, 40;", (width, 32), width, lambda a, n: insert(a, a, n & 255, 40))


@pytest.mark.parametrize("width", [32, 64])
def test_counts(width):
    check(f"popc.b{width} %d, %a;", (width,), 32, int.bit_count)
    check(f"clz.b{width} %d, %a;", (width,), 32, lambda a: width - a.bit_length())
    check(f"brev.b{width} %d, %a;", (width,), width, lambda a: int(f"{a:0{width}b}"[::-1], 2))
    check(f"bfind.u{width} %d, %a;", (width,), 32, lambda a: a.bit_length() - 1)
    check(
        f"bfind.s{width} %d, %a;", (width,), 32, lambda a: (~a % 2**width if a >> (width - 1) else a).bit_length() - 1
    )


COMPARE = {
    "eq": int.__eq__, "ne": int.__ne__, "lt": int.__lt__, "le": int.__le__, "gt": int.__gt__, "ge": int.__ge__,
    "lo": int.__lt__, "ls": int.__le__, "hi": int.__gt__, "hs": int.__ge__,
}  # fmt: skip


@pytest.mark.parametrize("relation", COMPARE)
@pytest.mark.parametrize("kind", "bus")
@pytest.mark.parametrize("width", [16, 32, 64])
def test_setp(relation, kind, width):
    t = f"{kind}{width}"
    if (kind == "b" and relation not in ("eq", "ne")) or (kind == "s" and relation in ("lo", "ls", "hi", "hs")):
        with pytest.raises(PTXError, match="no such type"):
            run(f"setp.{relation}.{t} %p0, %a, %a;", np.zeros(1, f"u{width // 8}"))
        return
    read = typed(kind, width)
    body = f"setp.{relation}.{t} %p0, %a, %b; selp.b32 %d, 7, 9, %p0;"
    check(body, (width, width), 32, lambda a, b: 7 if COMPARE[relation](read(a), read(b)) else 9)


@pytest.mark.parametrize(("join", "python"), [("and", int.__and__), ("or", int.__or__), ("xor", int.__xor__)])
def test_setp_joined_with_a_predicate_and_its_inverse(join, python):
    body = f"""setp.ne.u32 %p1, %c, 0; setp.lt.{join}.u32 %p2|%p3, %a, %b, !%p1;
               selp.b32 %r1, 1, 0, %p2; selp.b32 %r2, 2, 0, %p3; add.u32 %d, %r1, %r2;"""
    check(body, (32, 32, 32), 32, lambda a, b, c: python(a < b, c == 0) + 2 * python(a >= b, c == 0))


def test_predicate_logic():
    body = """setp.eq.u32 %p1, %a, 0; setp.gt.s32 %p2, %b, 1; and.pred %p3, %p1, %p2; not.pred %p4, %p2; or.pred %p5, %p1, %p4;
              xor.pred %p6, %p3, %p5; mov.pred %p7, 1; and.pred %p6, %p6, %p7; selp.b32 %d, 1, 0, %p6;"""
    check(
        body,
        (32, 32),
        32,
        lambda a, b: ((a == 0) and (signed(b, 32) > 1)) != ((a == 0) or not (signed(b, 32) > 1)),
    )


@pytest.mark.parametrize("source", ["u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64"])
@pytest.mark.parametrize("to", ["u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64"])
def test_cvt(to, source):
    """Registers of at least 16 bits: a result of 8 bits is extended by its own sign."""
    w_to, w_source = int(to[1:]), int(source[1:])
    register, target = max(16, w_source), max(16, w_to)

    def want(a):
        value = typed(source[0], w_source)(a % (1 << w_source))
        return typed(to[0], w_to)(value % (1 << w_to))

    check(f"cvt.{to}.{source} %d, %a;", (register,), target, want)


def test_carry_chains():
    body = """add.cc.u32 %r1, %a, %b; addc.cc.u32 %r2, %b, %c; addc.u32 %r3, 0, 0;
              xor.b32 %d, %r1, %r2; shl.b32 %r4, %r3, 31; xor.b32 %d, %d, %r4;"""

    def add(a, b, c):
        low = a + b
        high = b + c + (low >> 32)
        return low % 2**32 ^ high % 2**32 ^ (high >> 32) << 31

    def subtract(a, b, c):
        low = a - b
        high = b - c + (low >> 32)
        return low % 2**32 ^ high % 2**32 ^ (high >> 32 & 1) << 31

    check(body, (32, 32, 32), 32, add)
    body = (
        body.replace("addc.u32 %r3", "subc.u32 %r3")
        .replace("add", "sub")
        .replace("shl.b32", "and.b32 %r3, %r3, 1; shl.b32")
    )
    check(body, (32, 32, 32), 32, subtract)


def test_pack_and_unpack():
    check("mov.b64 %d, {%a, %b};", (32, 32), 64, lambda a, b: b << 32 | a)
    check("mov.b32 {%h1, %h2}, %a; mov.b32 %d, {%h2, %h1};", (32,), 32, lambda a: a >> 16 | (a & 0xFFFF) << 16)
    check("mov.b64 {%r1, %r2}, %a; sub.u32 %d, %r1, %r2;", (64,), 32, lambda a: a % 2**32 - (a >> 32))
    check("mov.b64 {%h1, %h2, %h3, %h4}, %a; mov.b64 %d, {%h4, %h3, %h2, %h1};", (64,), 64, lambda a: int.from_bytes(
        b"".join(a.to_bytes(8, "little")[i : i + 2] for i in (6, 4, 2, 0)), "little"))  # fmt: skip


@pytest.mark.parametrize(
    "instruction",
    [
        "add.sat.s32 %d, %a, %b", "add.f32 %d, %a, %b", "add.u8 %d, %a, %b", "mul.u32 %d, %a, %b", "bfe.b32 %d, %a, 1, 2",
        "mul24.lo.u32 %d, %a, %b", "cvt.rn.f32.u32 %d, %a", "cvt.sat.u8.u32 %d, %a", "prmt.b32.f4e %d, %a, %b, 1",
        "shf.l.b32 %d, %a, %b, 1", "shl.u32 %d, %a, 1", "lop3.or.b32 %d|%p1, %a, %b, %c, 1, %p2", "set.eq.u32.u32 %d, %a, %b",
        "dp4a.u32.u32 %d, %a, %b, %c", "min.relu.s32 %d, %a, %b", "atom.global.add.u32 %d, [%l1], %a", "red.global.add.u32 [%l1], %a",
        "cp.async.ca.shared.global [%r1], [%l1], 16", "mbarrier.init.shared.b64 [%r1], 1", "ld.global.v8.b32 %d, [%l1]",
        "call.uni helper, ()", "shfl.down.b32 %d, %a, 1, 31", "vote.ballot.b32 %d, %p1", "elect.sync _|%p1, -1", "bar.arrive 0, 64",
        "bar.sync 1", "wgmma.fence.sync.aligned", "mov.b128 %d, %a", "popc.u32 %d, %a", "bfind.shiftamt.u32 %d, %a", "nanosleep.u32 10",
    ],
)  # fmt: skip
def test_what_is_not_known_in_full_is_refused(instruction):
    with pytest.raises(PTXError, match=r"unknown instruction|only barrier 0"):
        run(instruction + ";", np.zeros(1, np.uint32))


@pytest.mark.parametrize(
    "instruction", ["add.u64 %d, %a, %b", "add.u32 %l1, %a, %b", "mov.u32 %d, %nothing", "add.u32 %d, %a"]
)
def test_wrong_operands_are_refused(instruction):
    with pytest.raises(PTXError, match=r"bits|unknown operand|operands"):
        run(instruction + ";", np.zeros(1, np.uint32))
