"""A chosen-target collision of SGLang's 64-bit GPU tensor hash, after Wagner's four-list algorithm for the generalized birthday problem (2002).

In a tile of 8,192 words the hash is a pair of 32-bit sums of public mixes of (word, position). Four words are exchanged for four others with the same
two sums: lists of 2^21 candidates a position, merged on 21 bits, then matched on the other 43.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint32]
SEED = 0x243F6A88
SEEDS = (SEED, ((SEED * 0x9E3779B1) ^ 0xDEADBEEF) & 0xFFFFFFFF)
FACTORS, ROTATES = (0x27D4EB2D, 0x165667B1), (15, 13)
LIST_BITS = 21
LOW = np.uint64((1 << LIST_BITS) - 1)
SHIFT = np.uint64(32)
HIGH_HALF, LOW_HALF = np.uint64(0xFFFFFFFF00000000), np.uint64(0xFFFFFFFF)


def _mix(x: Words) -> Words:
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return x ^ (x >> np.uint32(16))


def contributions(words: Words, position: int) -> npt.NDArray[np.uint64]:
    """What each word would add at `position`: second sum in the high half, first in the low half."""
    parts = []
    for seed, factor, rotate in zip(SEEDS, FACTORS, ROTATES, strict=True):
        rotated = (position << rotate | position >> (32 - rotate)) & 0xFFFFFFFF
        parts.append(_mix(words ^ np.uint32((position * factor + seed) & 0xFFFFFFFF ^ rotated)).astype(np.uint64))
    return parts[1] << SHIFT | parts[0]


def _add(a: npt.NDArray[np.uint64], b: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Two sums mod 2^32 side by side: no carry goes from the low half to the high one."""
    return ((a & HIGH_HALF) + (b & HIGH_HALF)) | ((a + b) & LOW_HALF)


def _subtract(a: npt.NDArray[np.uint64], b: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    return ((a & HIGH_HALF) - (b & HIGH_HALF)) | ((a - b) & LOW_HALF)


def _finite(generator: np.random.Generator) -> Words:
    """Candidate words: two bfloat16 values each, none infinite or NaN."""
    words = generator.integers(0, 1 << 32, 1 << LIST_BITS, dtype=np.uint32)
    return words & np.uint32(0xBFFFBFFF)


def _pairs(
    a: npt.NDArray[np.uint64], b: npt.NDArray[np.uint64], low: np.uint64
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Indices (i, j) with low bits of a[i] + b[j] equal to `low`; at most one j for each i. Both sides are sorted: the search walks memory."""
    wanted, offered = _sorted_with_index(low - a), _sorted_with_index(b)
    at = np.searchsorted(offered >> SHIFT, wanted >> SHIFT)
    at[at == len(offered)] = 0
    found = offered[at] >> SHIFT == wanted >> SHIFT
    return (wanted[found] & LOW_HALF).astype(np.intp), (offered[at[found]] & LOW_HALF).astype(np.intp)


def _sorted_with_index(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    return np.sort((values & LOW) << SHIFT | np.arange(len(values), dtype=np.uint64))


def collide(words: Words, positions: tuple[int, int, int, int], generator: np.random.Generator) -> Words:
    """Other words, different at `positions` (all in the first tile) and nowhere else, with the same hash."""
    target = np.zeros(1, np.uint64)
    for position in positions:
        target = _add(target, contributions(words[position : position + 1], position))
    while True:
        lists = [_finite(generator) for _ in positions]
        sums = [contributions(one, position) for one, position in zip(lists, positions, strict=True)]
        low = np.uint64(generator.integers(0, 1 << LIST_BITS))
        i, j = _pairs(sums[0], sums[1], low)
        k, m = _pairs(sums[2], sums[3], (target[0] - low) & LOW)
        left = _add(sums[0][i], sums[1][j])
        right = _subtract(np.broadcast_to(target, k.shape), _add(sums[2][k], sums[3][m]))
        _, at, to = np.intersect1d(left, right, return_indices=True)
        for a, b in zip(at, to, strict=True):
            chosen = (lists[0][i[a]], lists[1][j[a]], lists[2][k[b]], lists[3][m[b]])
            if all(word != words[position] for word, position in zip(chosen, positions, strict=True)):
                other = words.copy()
                other[list(positions)] = chosen
                return other
