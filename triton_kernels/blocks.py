"""Message words from rows in memory: one block of 64 bytes in each lane.

    load_aligned  rows on multiples of 16 bytes, as nearly all are: four loads of 16 bytes
    load_shifted  other rows, away from their ends: five loads of the 16-byte pieces that the block lies in
    load_bytes    any rows, byte by byte

Tiles of pointers are carried from block to block, and not computed at each load: Triton's coalescing pass goes through
all that an address hangs together with, once for each load.
"""

# ruff: noqa: RUF005 - no unpacking in a tuple in Triton's language.

import triton
import triton.language as tl

from .blake3 import BLOCK_BYTES


@triton.jit
def piece_pointers(lanes):
    """[LANES] pointers to bytes, multiples of 16 -> 5 tiles [LANES, 4] of pointers to words, 16 bytes apart."""
    piece = lanes.to(tl.pointer_type(tl.uint32), bitcast=True)[:, None] + tl.arange(0, 4)[None, :]
    return piece, piece + 4, piece + 8, piece + 12, piece + 16


@triton.jit
def round_down(lanes):
    """[LANES] pointers to bytes -> the multiples of 16 at or before them, and how far these lie back."""
    address = lanes.to(tl.int64, bitcast=True)
    back = (address & 15).to(tl.int32)
    return tl.multiple_of((address - back).to(lanes.dtype, bitcast=True), 16), back


@triton.jit
def next_block(pieces, more):
    """The pointers 64 bytes on where `more`, [LANES], else where they are."""
    # A product: of a `where` of constants the compiler does not see that 16 divides it.
    step = (more.to(tl.int32) * (BLOCK_BYTES // 4))[:, None]
    p0, p1, p2, p3, p4 = pieces
    return p0 + step, p1 + step, p2 + step, p3 + step, p4 + step


@triton.jit
def four_words(tile, LANES: tl.constexpr):
    even, odd = tl.split(tl.reshape(tile, (LANES, 2, 2)))
    w0, w2 = tl.split(even)
    w1, w3 = tl.split(odd)
    return w0, w1, w2, w3


@triton.jit
def move(source, staged, left, LANES: tl.constexpr, PARTIAL: tl.constexpr, STAGE: tl.constexpr):
    """4 words; with PARTIAL those of lanes that have nothing left are 0; with STAGE they are also written to `staged`."""
    if PARTIAL:
        tile = tl.load(source, mask=(left > 0)[:, None], other=0)
        if STAGE:
            tl.store(staged, tile, mask=(left > 0)[:, None])
    else:
        tile = tl.load(source)
        if STAGE:
            tl.store(staged, tile)
    return four_words(tile, LANES)


@triton.jit
def load_aligned(source, staged, left, LANES: tl.constexpr, PARTIAL: tl.constexpr, STAGE: tl.constexpr):
    """16 words a lane. `left`: [LANES] bytes of message from here on, a multiple of 16, read only if PARTIAL."""
    return (
        move(source[0], staged[0], left, LANES, PARTIAL, STAGE)
        + move(source[1], staged[1], left - 16, LANES, PARTIAL, STAGE)
        + move(source[2], staged[2], left - 32, LANES, PARTIAL, STAGE)
        + move(source[3], staged[3], left - 48, LANES, PARTIAL, STAGE)
    )


@triton.jit
def funnel(low, high, bits):
    """The word that starts `bits`, 0..24, into `low` and goes on in `high`."""
    return (low >> bits) | ((high << 1) << (31 - bits))


@triton.jit
def shift_words(w, back):
    """The 16 words that start `back`, 0..15, bytes into 20 words."""
    a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15, a16, a17, a18, a19 = w
    two = (back & 8) != 0
    a0, a1, a2, a3 = tl.where(two, a2, a0), tl.where(two, a3, a1), tl.where(two, a4, a2), tl.where(two, a5, a3)
    a4, a5, a6, a7 = tl.where(two, a6, a4), tl.where(two, a7, a5), tl.where(two, a8, a6), tl.where(two, a9, a7)
    a8, a9, a10, a11 = tl.where(two, a10, a8), tl.where(two, a11, a9), tl.where(two, a12, a10), tl.where(two, a13, a11)
    a12, a13, a14 = tl.where(two, a14, a12), tl.where(two, a15, a13), tl.where(two, a16, a14)
    a15, a16, a17 = tl.where(two, a17, a15), tl.where(two, a18, a16), tl.where(two, a19, a17)
    one = (back & 4) != 0
    a0, a1, a2, a3 = tl.where(one, a1, a0), tl.where(one, a2, a1), tl.where(one, a3, a2), tl.where(one, a4, a3)
    a4, a5, a6, a7 = tl.where(one, a5, a4), tl.where(one, a6, a5), tl.where(one, a7, a6), tl.where(one, a8, a7)
    a8, a9, a10, a11 = tl.where(one, a9, a8), tl.where(one, a10, a9), tl.where(one, a11, a10), tl.where(one, a12, a11)
    a12, a13, a14 = tl.where(one, a13, a12), tl.where(one, a14, a13), tl.where(one, a15, a14)
    a15, a16 = tl.where(one, a16, a15), tl.where(one, a17, a16)
    bits = ((back & 3) * 8).to(tl.uint32)
    return (
        funnel(a0, a1, bits), funnel(a1, a2, bits), funnel(a2, a3, bits), funnel(a3, a4, bits),
        funnel(a4, a5, bits), funnel(a5, a6, bits), funnel(a6, a7, bits), funnel(a7, a8, bits),
        funnel(a8, a9, bits), funnel(a9, a10, bits), funnel(a10, a11, bits), funnel(a11, a12, bits),
        funnel(a12, a13, bits), funnel(a13, a14, bits), funnel(a14, a15, bits), funnel(a15, a16, bits),
    )  # fmt: skip


@triton.jit
def load_shifted(source, back, mask, LANES: tl.constexpr):
    """16 words a lane that start `back` bytes into the first of 5 pieces, all of which belong to the row; else 0."""
    left = mask.to(tl.int32)
    return shift_words(
        move(source[0], source[0], left, LANES, True, False)
        + move(source[1], source[1], left, LANES, True, False)
        + move(source[2], source[2], left, LANES, True, False)
        + move(source[3], source[3], left, LANES, True, False)
        + move(source[4], source[4], left, LANES, True, False),
        back,
    )


@triton.jit
def move_byte(source, staged, i, left, STAGE: tl.constexpr):
    byte = tl.load(source + i, mask=i < left, other=0)
    if STAGE:
        tl.store(staged + i, byte, mask=i < left)
    return byte.to(tl.uint32)


@triton.jit
def load_bytes(source, staged, left, LANES: tl.constexpr, STAGE: tl.constexpr):
    """16 words a lane from [LANES] pointers to bytes; 0 beyond the `left` bytes that are left."""
    zero = tl.zeros((LANES,), tl.uint32)
    words = (zero, zero, zero, zero, zero, zero, zero, zero, zero, zero, zero, zero, zero, zero, zero, zero)
    for i in range(16):
        word = move_byte(source, staged, 4 * i, left, STAGE)
        word |= move_byte(source, staged, 4 * i + 1, left, STAGE) << 8
        word |= move_byte(source, staged, 4 * i + 2, left, STAGE) << 16
        word |= move_byte(source, staged, 4 * i + 3, left, STAGE) << 24
        # Words enter at the end and move up: when the loop ends, each is in its place.
        words = words[1:] + (word,)
    return words
