"""The kernels. A lane hashes one chunk (`hash_tiles`) or one whole row (`hash_lanes`); launch.py chooses by shape.

All rows of a call have the same width, so the control flow of every lane is the same: which blocks are there, which
nodes merge, which one is the root. Lanes past the end repeat the last row or chunk: they read and stage the same bytes.
"""

import triton
import triton.language as tl

from .blake3 import CHUNK_BYTES, num_chunks, parent
from .blocks import four_words
from .tree import hash_chunk, merge_nodes
from .words import choose, load_key, new_stack, pick, splat, stack_get, stack_put, store_words


@triton.jit(
    do_not_specialize=["num_rows", "width", "row_stride", "staged_stride", "width_log", "one"],
    do_not_specialize_on_alignment=["rows", "staged", "key"],
)
def hash_tiles(
    rows,
    staged,
    key,
    out,
    num_rows: tl.int64,
    width: tl.int64,
    row_stride: tl.int64,
    staged_stride: tl.int64,
    width_log: tl.int32,
    one,
    LANES: tl.constexpr,
    ALIGNED: tl.constexpr,
    OUT_WORDS: tl.constexpr,
    STAGE: tl.constexpr,
):
    """A chunk in each lane, `lanes` = 2^width_log lanes a row; a program hashes LANES / lanes rows, or one tile of a row.

    rows, staged  uint8; row i starts i * stride bytes on. ALIGNED: pointers, strides and width are multiples of 16
    out           [num_rows, OUT_WORDS] digests, or [num_rows, tiles, 8] CVs of tiles of `lanes` chunks if tiles > 1
    grid          (num_rows / (LANES / lanes) rounded up, tiles)
    """
    key_words = load_key(key)
    tile = tl.program_id(1).to(tl.int64)
    tiles = tl.num_programs(1)
    lane = tl.arange(0, LANES)
    lanes = 1 << width_log
    row = tl.program_id(0).to(tl.int64) * (LANES >> width_log) + (lane >> width_log)
    mine = (lane & (lanes - 1) == 0) & (row < num_rows)
    row = tl.minimum(row, num_rows - 1)
    chunks = num_chunks(width)
    count = tl.minimum(chunks - tile * lanes, lanes).to(tl.int32)
    chunk = (tile * lanes).to(tl.int32) + tl.minimum(lane & (lanes - 1), count - 1)
    last = (width - (chunks - 1) * CHUNK_BYTES).to(tl.int32)
    length = tl.where(chunk == chunks - 1, last, CHUNK_BYTES)
    least = tl.where((tile + 1) * lanes >= chunks, last, CHUNK_BYTES)
    most = tl.where(count == 1, least, CHUNK_BYTES)
    offset = chunk.to(tl.int64) * CHUNK_BYTES
    left = tl.minimum(width - offset, 2 * CHUNK_BYTES).to(tl.int32)
    source = rows + row * row_stride + offset
    to = staged + row * staged_stride + offset
    cv = hash_chunk(key_words, source, to, chunk, length, left, most, least, chunks == 1, one, LANES, ALIGNED, STAGE)
    cv = merge_nodes(key_words, cv, count, tiles == 1, lanes, one, LANES)
    at = out.to(tl.pointer_type(tl.uint32)) + (row * tiles + tile) * OUT_WORDS
    store_words(at, cv, mine, LANES, OUT_WORDS)


@triton.jit(do_not_specialize=["num_rows", "count", "width_log", "one"], do_not_specialize_on_alignment=["key"])
def merge_tiles(
    nodes,
    key,
    out,
    num_rows: tl.int64,
    count: tl.int64,
    width_log: tl.int32,
    one,
    LANES: tl.constexpr,
    OUT_WORDS: tl.constexpr,
):
    """Merges the CVs of the tiles of long rows: `lanes` = 2^width_log nodes become one, the digest if that is all.

    nodes  [num_rows, count, 8] words
    out    [num_rows, OUT_WORDS] digests, or [num_rows, groups, 8] CVs if groups > 1
    grid   (num_rows / (LANES / lanes) rounded up, groups)
    """
    group = tl.program_id(1).to(tl.int64)
    groups = tl.num_programs(1)
    lane = tl.arange(0, LANES)
    lanes = 1 << width_log
    row = tl.program_id(0).to(tl.int64) * (LANES >> width_log) + (lane >> width_log)
    mine = (lane & (lanes - 1) == 0) & (row < num_rows)
    row = tl.minimum(row, num_rows - 1)
    here = tl.minimum(count - group * lanes, lanes).to(tl.int32)
    node = row * count + group * lanes + tl.minimum(lane & (lanes - 1), here - 1)
    at = nodes.to(tl.pointer_type(tl.uint32)) + node[:, None] * 8 + tl.arange(0, 4)[None, :]
    cv = four_words(tl.load(at), LANES) + four_words(tl.load(at + 4), LANES)
    cv = merge_nodes(load_key(key), cv, here, groups == 1, lanes, one, LANES)
    to = out.to(tl.pointer_type(tl.uint32)) + (row * groups + group) * OUT_WORDS
    store_words(to, cv, mine, LANES, OUT_WORDS)


@triton.jit(
    do_not_specialize=["num_rows", "width", "row_stride", "staged_stride", "one"],
    do_not_specialize_on_alignment=["rows", "staged", "key"],
)
def hash_lanes(
    rows,
    staged,
    key,
    out,
    num_rows: tl.int64,
    width: tl.int64,
    row_stride: tl.int64,
    staged_stride: tl.int64,
    one,
    LANES: tl.constexpr,
    LEVELS: tl.constexpr,
    OUT_WORDS: tl.constexpr,
    STAGE: tl.constexpr,
):
    """A row of 2 to 2^LEVELS chunks in each lane, one chunk after the other: no lane is ever idle. Else as hash_tiles.

    grid  (num_rows / LANES rounded up,)
    """
    key_words = load_key(key)
    lane = tl.arange(0, LANES)
    row = tl.program_id(0).to(tl.int64) * LANES + lane
    mine = row < num_rows
    row = tl.minimum(row, num_rows - 1)
    chunks = num_chunks(width).to(tl.int32)
    last = (width - (chunks.to(tl.int64) - 1) * CHUNK_BYTES).to(tl.int32)
    source = rows + row * row_stride
    staged_row = staged + row * staged_stride
    zero = splat(key_words, LANES)
    stack = new_stack(zero, LEVELS)
    depth = 0
    cv = zero
    for chunk in range(chunks):
        is_last = chunk == chunks - 1
        size = tl.where(is_last, last, CHUNK_BYTES)
        length = lane * 0 + size
        begin = source + chunk * CHUNK_BYTES
        to = staged_row + chunk * CHUNK_BYTES
        cv = hash_chunk(
            key_words, begin, to, lane * 0 + chunk, length, length, size, size, False, one, LANES, True, STAGE
        )
        # The stack holds one CV for each bit of `chunk` that is set, the largest subtree first.
        rest = chunk
        while (depth > 0) & (is_last | (rest % 2 == 1)):
            depth -= 1
            rest = rest // 2
            cv = parent(zero, stack_get(stack, depth, LEVELS), cv, is_last & (depth == 0), one)
        stack = stack_put(stack, depth, cv, LEVELS)
        depth += 1
    at = out.to(tl.pointer_type(tl.uint32)) + row * OUT_WORDS
    store_words(at, cv, mine, LANES, OUT_WORDS)


@triton.jit
def clamped(bounds, index, num_rows):
    """One bound of cu_seqlens as int64, in [0, num_rows]."""
    return tl.minimum(tl.maximum(tl.load(bounds + index).to(tl.int64), 0), num_rows)


@triton.jit(do_not_specialize=["num_rows", "one"], do_not_specialize_on_alignment=["key", "bounds"])
def fold_spans(
    rows,
    bounds,
    key,
    out,
    num_rows: tl.int64,
    one,
    LANES: tl.constexpr,
    OUT_WORDS: tl.constexpr,
):
    """A span in each program: its fingerprints in tiles of LANES chunks, one after the other.

    rows    [num_rows, 4 * OUT_WORDS] uint8, contiguous, on a multiple of 16
    bounds  [num_spans + 1] int32 or int64, any values
    out     [num_spans, OUT_WORDS] digests
    grid    (num_spans,)
    """
    key_words = load_key(key)
    span = tl.program_id(0).to(tl.int64)
    first = clamped(bounds, span, num_rows)
    width = tl.maximum(clamped(bounds, span + 1, num_rows) - first, 0) * (4 * OUT_WORDS)
    chunks = num_chunks(width)
    last = (width - (chunks - 1) * CHUNK_BYTES).to(tl.int32)
    tiles = tl.cdiv(chunks, LANES)
    lane = tl.arange(0, LANES)
    begin = rows + first * (4 * OUT_WORDS)
    # Lane i of the stack holds entry i: the CV of a subtree of tiles, the largest first.
    stack = splat(key_words, LANES)
    depth = 0
    cv = stack
    for tile in range(tiles):
        is_last = tile == tiles - 1
        count = tl.minimum(chunks - tile * LANES, LANES).to(tl.int32)
        chunk = tile * LANES + tl.minimum(lane, count - 1)
        length = tl.where(chunk == chunks - 1, last, CHUNK_BYTES)
        least = tl.where(is_last, last, CHUNK_BYTES)
        most = tl.where(count == 1, least, CHUNK_BYTES)
        source = begin + chunk * CHUNK_BYTES
        cv = hash_chunk(
            key_words, source, source, chunk, length, length, most, least, chunks == 1, one, LANES, True, False
        )
        cv = merge_nodes(key_words, cv, count, tiles == 1, LANES, one, LANES)
        rest = tile
        while (depth > 0) & (is_last | (rest % 2 == 1)):
            depth -= 1
            rest = rest // 2
            left = pick(stack, lane * 0 + depth)
            cv = parent(splat(key_words, LANES), left, cv, is_last & (depth == 0), one)
        stack = choose(lane == depth, pick(cv, lane * 0), stack)
        depth += 1
    at = out.to(tl.pointer_type(tl.uint32)) + span * OUT_WORDS + lane * OUT_WORDS
    store_words(at, cv, lane == 0, LANES, OUT_WORDS)
