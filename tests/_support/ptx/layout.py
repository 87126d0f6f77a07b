"""Inputs and outputs of the hash kernels in emulated memory, with what must not matter around them."""

import itertools
from dataclasses import dataclass

import blake3
import numpy as np

from .memory import Array, Memory

NOISE = 96  # bytes of noise or canary on each side, not a multiple of every alignment that is tested
_FAR = 1 << 20  # rows further apart than this are mapped one by one


@dataclass(frozen=True)
class RowsCase:
    """[num_rows, width] bytes at `stride`, the first row `offset` bytes behind a multiple of 256.

    tight: buffers end where the rows end, so that any access beyond raises; otherwise noise surrounds them."""

    num_rows: int
    width: int
    stride: int
    offset: int = 0
    digest_size: int = 16
    tight: bool = True


class Placed:
    """Rows in memory: `address` of the first one, and `rows` as they stand there."""

    def __init__(self, memory: Memory, rng: np.random.Generator, case: RowsCase) -> None:
        n, width, stride = case.num_rows, case.width, case.stride
        margin = 0 if case.tight else NOISE
        if stride > _FAR:
            self.rows = [rng.integers(0, 256, width, np.uint8) for _ in range(n)]
            self.address = memory.map(self.rows[0], offset=case.offset) if n else 0
            for i in range(1, n):
                memory.map(self.rows[i], at=self.address + i * stride)
            return
        data = rng.integers(0, 256, max(1, (n - 1) * stride + width) + 2 * margin, np.uint8)
        self.address = memory.map(data, offset=(case.offset - margin) % 256) + margin
        self.rows = [data[margin + i * stride :][:width] for i in range(n)]


class Output:
    """[count, size] bytes at `stride` to be written, amid canaries."""

    def __init__(self, memory: Memory, count: int, size: int, stride: int, offset: int = 0) -> None:
        self.memory, self.count, self.size, self.stride = memory, count, size, stride
        self.far = stride > _FAR
        if self.far:
            self.parts = [np.zeros(size, np.uint8) for _ in range(count)]
            self.address = memory.map(self.parts[0], access="w", offset=offset)
            for i in range(1, count):
                memory.map(self.parts[i], at=self.address + i * stride, access="w")
            return
        extent = max(0, (count - 1) * stride + size) if count else 0
        self.data = np.arange(extent + 2 * NOISE, dtype=np.uint8)
        self.canary = self.data.copy()
        self.start = memory.map(self.data, access="w", offset=(offset - NOISE) % 256)
        self.address = self.start + NOISE

    def row(self, i: int) -> bytes:
        return (self.parts[i] if self.far else self.data[NOISE + i * self.stride :][: self.size]).tobytes()

    def check(self, expected: list[bytes]) -> None:
        """Every byte of every row as expected, no other byte touched."""
        assert len(expected) == self.count
        for i, want in enumerate(expected):
            assert_bytes_equal(self.row(i), want, f"row {i} of {self.count}")
        if self.far:
            assert sum(self.memory.undefined(self.address + i * self.stride) for i in range(self.count)) == 0
            return
        inside = np.zeros(len(self.data), bool)
        for i in range(self.count):
            inside[NOISE + i * self.stride :][: self.size] = True
        assert (self.data[~inside] == self.canary[~inside]).all(), "a canary was overwritten"
        touched = len(self.data) - self.memory.undefined(self.start)
        assert touched == int(inside.sum()), f"{touched} bytes written, expected {int(inside.sum())}"


def assert_bytes_equal(got: bytes, want: bytes, what: str) -> None:
    if got == want:
        return
    first = next(i for i, (g, w) in enumerate(zip(got, want, strict=True)) if g != w)
    raise AssertionError(f"{what}: byte {first} is {got[first]:#04x}, expected {want[first]:#04x}")


def keyed(key: Array, data: bytes | Array, size: int) -> bytes:
    """BLAKE3 by its own package, which the reference equals (tests/test_reference.py)."""
    return blake3.blake3(bytes(data), key=key.tobytes()).digest(size)


def clamped(bounds: Array, num_rows: int) -> list[tuple[int, int]]:
    """Spans as a device reads cu_seqlens: bounds cut to [0, num_rows], a falling pair is empty."""
    cut = [min(max(int(b), 0), num_rows) for b in bounds]
    return [(a, max(a, b)) for a, b in itertools.pairwise(cut)]


def map_key(memory: Memory, rng: np.random.Generator, offset: int = 0) -> tuple[Array, int]:
    key = rng.integers(0, 256, 32, np.uint8)
    return key, memory.map(key, offset=offset)
