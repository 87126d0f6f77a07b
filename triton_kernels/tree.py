"""Leaves and inner nodes of the tree: the CV of a chunk in each lane, and the merging of neighbouring lanes."""

# ruff: noqa: SIM108 - Triton's language has no conditional expression of tuples.

import triton
import triton.language as tl

from .blake3 import BLOCK_BYTES, block_flags, compress, num_blocks, parent
from .blocks import load_aligned, load_bytes, load_shifted, next_block, piece_pointers, round_down
from .words import choose, pick, splat


@triton.jit
def load_block(
    rows,
    back,
    staged,
    block,
    chunk,
    length,
    left,
    least,
    LANES: tl.constexpr,
    ALIGNED: tl.constexpr,
    STAGE: tl.constexpr,
):
    """Words of block `block` of each lane's chunk, of its last block where it has fewer. Arguments as in hash_chunk;
    rows and staged: ([LANES] pointers to the chunks, pointers to the pieces of this block), back: see round_down."""
    blocks = num_blocks(length)
    start = tl.minimum(block, blocks - 1) * BLOCK_BYTES
    if ALIGNED:
        if (block < least // BLOCK_BYTES) | ((least % BLOCK_BYTES == 0) & (least > 0)):
            m = load_aligned(rows[1], staged[1], length - start, LANES, False, STAGE)
        else:
            m = load_aligned(rows[1], staged[1], length - start, LANES, True, STAGE)
    elif STAGE:
        m = load_bytes(rows[0] + start, staged[0] + start, length - start, LANES, True)
    else:
        # The pieces around a block reach beyond it: at the ends of the row, beyond the row.
        active = block < blocks
        inside = ((chunk > 0) | (block > 0)) & (left - start >= BLOCK_BYTES + 16)
        if tl.max((active & (inside == 0)).to(tl.int32), 0) == 0:
            m = load_shifted(rows[1], back, active & inside, LANES)
        else:
            m = load_bytes(rows[0] + start, rows[0] + start, length - start, LANES, False)
    return m


@triton.jit
def hash_chunk(
    key, source, staged, chunk, length, left, most, least, root, one,
    LANES: tl.constexpr, ALIGNED: tl.constexpr, STAGE: tl.constexpr,
):  # fmt: skip
    """CV of the chunk in each lane.

    source, staged  [LANES] pointers to the chunk's bytes; ALIGNED: they and all lengths are multiples of 16
    chunk           [LANES] index of the chunk in its input
    length, left    [LANES] int32 bytes in the chunk, and in its input from there on (2048 stands for more)
    most, least     bytes of the longest chunk and of the shortest, scalars
    root            the chunk is the whole input, scalar
    one             see compress
    """
    # Rounding moves no aligned pointer: it shows the compiler what they are multiples of.
    floor, back = round_down(source)
    rows = (source, piece_pointers(floor))
    to = (staged, piece_pointers(round_down(staged)[0]))
    blocks = num_blocks(length)
    steps = num_blocks(most)
    cv = splat(key, LANES)
    m = load_block(rows, back, to, 0, chunk, length, left, least, LANES, ALIGNED, STAGE)
    for block in range(steps):
        # The next block is on its way while this one is hashed.
        rows = (source, next_block(rows[1], block + 1 < blocks))
        to = (staged, next_block(to[1], block + 1 < blocks))
        if block + 1 < steps:
            following = load_block(rows, back, to, block + 1, chunk, length, left, least, LANES, ALIGNED, STAGE)
        else:
            following = m
        size = tl.minimum(length - tl.minimum(block, blocks - 1) * BLOCK_BYTES, BLOCK_BYTES).to(tl.uint32)
        new = compress(cv, m, chunk.to(tl.uint32), size, block_flags(block, blocks, root), one)
        # A lane whose chunk is over drops the result.
        cv = choose(block < blocks, new, cv)
        m = following
    return cv


@triton.jit
def merge_nodes(key, cv, count, whole, lanes, one, LANES: tl.constexpr):
    """Of each group of `lanes` lanes, a power of two, the first `count` hold nodes; then the first holds their root.

    `whole`: the nodes are a whole tree, so the last parent is its root.
    """
    lane = tl.arange(0, LANES)
    place = lane & (lanes - 1)
    group = lane - place
    while count > 1:
        left = pick(cv, group + (2 * place & (lanes - 1)))
        right = pick(cv, group + (2 * place + 1 & (lanes - 1)))
        node = parent(splat(key, LANES), left, right, whole & (count == 2), one)
        cv = choose(2 * place + 1 < count, node, left)
        count = (count + 1) // 2
    return cv
