"""BLAKE3 on tensors of uint32 words, one input in each element. Mirrors csrc/blake3.cuh, name by name.

Follows "BLAKE3: one function, fast everywhere" (O'Connor, Aumasson, Neves, Wilcox-O'Hearn, 2020), sections 2.1 to 2.3.
A chaining value (`cv`) is a tuple of 8 tensors, a message (`m`) a tuple of 16. Little-endian words throughout.
"""

import triton
import triton.language as tl

BLOCK_BYTES = tl.constexpr(64)
CHUNK_BYTES = tl.constexpr(1024)
CHUNK_BLOCKS = tl.constexpr(16)

CHUNK_START = tl.constexpr(1)
CHUNK_END = tl.constexpr(2)
PARENT = tl.constexpr(4)
ROOT = tl.constexpr(8)
KEYED_HASH = tl.constexpr(16)


@triton.jit
def mix(a, b, c, d, x, y, one):
    # Rotations are spelled out: the interpreter takes 0.3 ms for a call, and the compilers find the rotation anyway.
    a = a + b + x if one is None else (a * one + b) * one + x
    d = d ^ a
    d = (d >> 16) | (d << 16)
    c = c + d if one is None else c * one + d
    b = b ^ c
    b = (b >> 12) | (b << 20)
    a = a + b + y if one is None else (a * one + b) * one + y
    d = d ^ a
    d = (d >> 8) | (d << 24)
    c = c + d if one is None else c * one + d
    b = b ^ c
    b = (b >> 7) | (b << 25)
    return a, b, c, d


@triton.jit
def compress(cv, m, counter, length, flags, one):
    """The first 8 output words of one compression: the next chaining value.

    m        16 message words, zero-padded
    counter  low word of the chunk counter; inputs here are shorter than 4 TiB, so the high word is 0
    length   bytes of message in the block, 0..64
    flags    a sum of flags
    one      1 that the compiler does not know, so that an add becomes a multiply-add, which on NVIDIA GPUs runs on
             another pipe than the rest of the hash (MadAdd in csrc); None: plain adds
    counter, length and flags are uint32, tensors or scalars.
    """
    v0, v1, v2, v3, v4, v5, v6, v7 = cv
    zero = v0 ^ v0
    v8 = zero + 0x6A09E667
    v9 = zero + 0xBB67AE85
    v10 = zero + 0x3C6EF372
    v11 = zero + 0xA54FF53A
    v12 = zero + counter
    v13 = zero
    v14 = zero + length
    v15 = zero + flags
    m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15 = m
    for _ in tl.static_range(7):
        v0, v4, v8, v12 = mix(v0, v4, v8, v12, m0, m1, one)
        v1, v5, v9, v13 = mix(v1, v5, v9, v13, m2, m3, one)
        v2, v6, v10, v14 = mix(v2, v6, v10, v14, m4, m5, one)
        v3, v7, v11, v15 = mix(v3, v7, v11, v15, m6, m7, one)
        v0, v5, v10, v15 = mix(v0, v5, v10, v15, m8, m9, one)
        v1, v6, v11, v12 = mix(v1, v6, v11, v12, m10, m11, one)
        v2, v7, v8, v13 = mix(v2, v7, v8, v13, m12, m13, one)
        v3, v4, v9, v14 = mix(v3, v4, v9, v14, m14, m15, one)
        m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, m10, m11, m12, m13, m14, m15 = (
            m2, m6, m3, m10, m7, m0, m4, m13, m1, m11, m12, m5, m9, m14, m15, m8,
        )  # fmt: skip
    return v0 ^ v8, v1 ^ v9, v2 ^ v10, v3 ^ v11, v4 ^ v12, v5 ^ v13, v6 ^ v14, v7 ^ v15


# --- the tree: chunks are leaves; neighbours pair level by level, an odd last one moves up as it is ---


@triton.jit
def num_chunks(num_bytes):
    """Chunks of an input of `num_bytes` bytes; the empty input has one, empty, chunk."""
    return tl.maximum(tl.cdiv(num_bytes, CHUNK_BYTES), 1)


@triton.jit
def num_blocks(num_bytes):
    """Blocks of a chunk of `num_bytes` <= 1024 bytes; an empty chunk has one, empty, block."""
    return tl.maximum(tl.cdiv(num_bytes, BLOCK_BYTES), 1)


@triton.jit
def block_flags(block, blocks, root):
    """Flags of block `block` of a chunk of `blocks` blocks; `root`: the chunk is the whole input. Always keyed."""
    start = tl.where(block == 0, CHUNK_START, 0)
    end = tl.where(block == blocks - 1, tl.where(root, ROOT, 0) + CHUNK_END, 0)
    return (start + end + KEYED_HASH).to(tl.uint32)


@triton.jit
def parent_flags(root):
    return (tl.where(root, ROOT, 0) + PARENT + KEYED_HASH).to(tl.uint32)


@triton.jit
def parent(key, left, right, root, one):
    """CV of the parent of two nodes; its input is the key, counter 0, length 64 and its children's CVs."""
    return compress(key, left + right, 0, BLOCK_BYTES, parent_flags(root), one)
