"""Instructions that are no single NumPy operator, as functions on unsigned arrays (or scalars) of the stated width."""

from typing import Any

import numpy as np

Array = Any  # NumPy array or scalar

SPECIAL_REGISTERS = frozenset(
    [f"%{name}.{axis}" for name in ("tid", "ntid", "ctaid", "nctaid") for axis in "xyz"]
    + [f"%lanemask_{relation}" for relation in ("eq", "lt", "le", "gt", "ge")]
    + ["%laneid", "%warpid", "%dynamic_smem_size", "%total_smem_size"]
)

_U64 = np.uint64
_LOW = _U64(0xFFFF_FFFF)


def shift_left(a: Array, amount: Array, width: int) -> Array:
    """shl: amounts beyond the width give 0."""
    big = amount >= np.uint32(width)
    return np.where(big, a.dtype.type(0), a << np.where(big, np.uint32(0), amount).astype(a.dtype))


def shift_right(a: Array, amount: Array, width: int) -> Array:
    """shr: `a` signed or unsigned; amounts beyond the width fill with the sign or 0."""
    last = np.uint32(width - 1)
    near = a >> np.minimum(amount, last).astype(a.dtype)
    return near if a.dtype.kind == "i" else np.where(amount > last, a.dtype.type(0), near)


def funnel(direction: str, mode: str, low: Array, high: Array, amount: Array) -> Array:
    """shf.{l,r}.{wrap,clamp}.b32 of the 64-bit value high:low."""
    amount = amount.astype(_U64)
    amount = amount & _U64(31) if mode == "wrap" else np.minimum(amount, _U64(32))
    both = high.astype(_U64) << _U64(32) | low
    return ((both << amount) >> _U64(32) if direction == "l" else both >> amount).astype(np.uint32)


def permute(a: Array, b: Array, selector: Array) -> Array:
    """prmt.b32, default mode: bit 3 of a selector nibble replicates the sign of the byte."""
    both = b.astype(_U64) << _U64(32) | a
    out = np.zeros_like(both)
    selector = selector.astype(_U64)
    for i in range(4):
        nibble = selector >> _U64(4 * i) & _U64(15)
        byte = both >> (_U64(8) * (nibble & _U64(7))) & _U64(255)
        sign = np.where(byte & _U64(128), _U64(255), _U64(0))
        out |= np.where(nibble & _U64(8), sign, byte) << _U64(8 * i)
    return out.astype(np.uint32)


def lop3(a: Array, b: Array, c: Array, table: int) -> Array:
    """lop3.b32: bit (4a + 2b + c) of the table, bit by bit."""
    out = a ^ a
    for i in range(8):
        if table >> i & 1:
            out = out | ((a if i & 4 else ~a) & (b if i & 2 else ~b) & (c if i & 1 else ~c))
    return out


def multiply_high(a: Array, b: Array) -> Array:
    """mul.hi of two signed or unsigned values of 16, 32 or 64 bits."""
    width = a.dtype.itemsize * 8
    if width < 64:
        wide = np.int64 if a.dtype.kind == "i" else _U64
        return ((a.astype(wide) * b.astype(wide)) >> wide(width)).astype(a.dtype)
    high = _multiply_high_u64(a.view(_U64), b.view(_U64))
    if a.dtype.kind == "i":
        high = high - np.where(a < 0, b.view(_U64), _U64(0)) - np.where(b < 0, a.view(_U64), _U64(0))
    return high.view(a.dtype)


def _multiply_high_u64(a: Array, b: Array) -> Array:
    a_low, a_high, b_low, b_high = a & _LOW, a >> _U64(32), b & _LOW, b >> _U64(32)
    middle = (a_low * b_low >> _U64(32)) + a_high * b_low
    carry = (middle & _LOW) + a_low * b_high
    return a_high * b_high + (middle >> _U64(32)) + (carry >> _U64(32))


def divide(a: Array, b: Array) -> Array:
    """div: towards zero; by zero gives all ones (PTX leaves it open)."""
    quotient = a // np.where(b == 0, b.dtype.type(1), b)
    if a.dtype.kind == "i":
        quotient = quotient + ((quotient * b != a) & ((a < 0) != (b < 0)) & (b != 0))
    return np.where(b == 0, ~b.dtype.type(0), quotient).astype(a.dtype)


def remainder(a: Array, b: Array) -> Array:
    return (a - divide(a, b) * b).astype(a.dtype)


def extract(a: Array, position: Array, length: Array) -> Array:
    """bfe: a signed `a` extends the field by its own top bit (or the sign of `a` where the field leaves the word)."""
    width = a.dtype.itemsize * 8
    position, length = position & np.uint32(255), length & np.uint32(255)
    unsigned = a.view(f"u{width // 8}")
    field = shift_right(unsigned, position, width)
    ones = ~shift_left(~np.zeros_like(unsigned), length, width)
    if a.dtype.kind == "u":
        return field & ones
    top = np.where(length == 0, np.uint32(0), np.minimum(position + length - np.uint32(1), np.uint32(width - 1)))
    negative = (shift_right(unsigned, top, width) & unsigned.dtype.type(1)).astype(bool) & (length != 0)
    inside = ones & shift_right(~np.zeros_like(unsigned), position, width)
    return np.where(negative, field | ~inside, field & ones).view(a.dtype)


def insert(a: Array, b: Array, position: Array, length: Array) -> Array:
    """bfi: the low `length` bits of `a` into `b` at `position`."""
    width = a.dtype.itemsize * 8
    position, length = position & np.uint32(255), length & np.uint32(255)
    ones = ~shift_left(~np.zeros_like(b), length, width)
    mask = shift_left(ones, position, width)
    return (b & ~mask) | (shift_left(a, position, width) & mask)


def count_ones(a: Array) -> Array:
    return np.bitwise_count(a).astype(np.uint32)


def highest_one(a: Array) -> Array:
    """bfind of an unsigned value: the index of the top one bit, 0xFFFFFFFF for 0."""
    found = np.full(np.shape(a), 0xFFFF_FFFF, np.uint32)
    for bit in range(a.dtype.itemsize * 8):
        found = np.where(a >> a.dtype.type(bit) & a.dtype.type(1), np.uint32(bit), found)
    return found


def find_top(a: Array) -> Array:
    """bfind: for a signed value, the top bit that differs from the sign."""
    if a.dtype.kind == "i":
        a = np.where(a < 0, ~a, a).view(f"u{a.dtype.itemsize}")
    return highest_one(a)


def count_leading_zeros(a: Array) -> Array:
    return np.uint32(a.dtype.itemsize * 8 - 1) - highest_one(a)


def reverse_bits(a: Array) -> Array:
    out, one = a ^ a, a.dtype.type(1)
    width = a.dtype.itemsize * 8
    for bit in range(width):
        out = out | (a >> a.dtype.type(bit) & one) << a.dtype.type(width - 1 - bit)
    return out


def carry_add(a: Array, b: Array, carry: Array) -> tuple[Array, Array]:
    """a + b + carry and the carry out."""
    partial = a + b
    total = partial + carry.astype(a.dtype)
    return total, (partial < a) | (total < partial)


def borrow_subtract(a: Array, b: Array, borrow: Array) -> tuple[Array, Array]:
    """a - b - borrow and the borrow out."""
    partial = a - b
    total = partial - borrow.astype(a.dtype)
    return total, (a < b) | (partial < borrow.astype(a.dtype))
