"""The address spaces, each a byte arena with checked loads and stores."""

from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
_FIRST_ADDRESS = 0x7B_3100_0000  # beyond 32 bits: an address cut to 32 bits falls outside every buffer
_GAP = 0x1_0000_1000


@dataclass
class _Buffer:
    address: int
    array: Array  # bytes, the caller's own memory
    access: str
    defined: Array | None  # for each byte, None: all


class Memory:
    """Global memory: NumPy arrays at virtual addresses, far apart."""

    def __init__(self) -> None:
        self._buffers: list[_Buffer] = []
        self._next = _FIRST_ADDRESS

    def map(self, array: Array, at: int | None = None, *, access: str = "r", align: int = 256, offset: int = 0) -> int:
        """Give `array` (contiguous) a virtual address: `at`, or a free multiple of `align` plus `offset`.

        access "r": a store raises; "rw": defined, may be written; "w": a load raises where no store has been."""
        if access not in ("r", "w", "rw"):
            raise ValueError(f"access: got {access!r}, want 'r', 'w' or 'rw'")
        if not array.flags.c_contiguous:
            raise ValueError("array: not contiguous")
        data = array.reshape(-1).view(np.uint8)
        address = -(-self._next // align) * align + offset if at is None else at
        if at is None:
            self._next = address + data.nbytes + _GAP
        if any(address < b.address + b.array.nbytes and b.address < address + data.nbytes for b in self._buffers):
            raise ValueError(f"at: {address:#x} overlaps another buffer")
        self._buffers.append(_Buffer(address, data, access, np.zeros(data.nbytes, bool) if access == "w" else None))
        self._buffers.sort(key=lambda b: b.address)
        return address

    def undefined(self, address: int) -> int:
        """Bytes of the buffer mapped at `address` that no store has reached."""
        buffer = next(b for b in self._buffers if b.address == address)
        return 0 if buffer.defined is None else int(np.count_nonzero(~buffer.defined))

    def space(self, variables: list[tuple[int, bytes, bool]]) -> "GlobalSpace":
        """This memory with a module's own variables: (address, bytes, writable)."""
        own = [
            _Buffer(address, np.frombuffer(bytearray(data), np.uint8), "rw" if writable else "r", None)
            for address, data, writable in variables
        ]
        return GlobalSpace(sorted(self._buffers + own, key=lambda b: b.address))


class GlobalSpace:
    """A launch's view of global memory: all buffers in one arena, at offsets of the same alignment."""

    name = "global"

    def __init__(self, buffers: list[_Buffer]) -> None:
        self.buffers = buffers
        self.first = [b.address for b in buffers]
        self.end = [b.address + b.array.nbytes for b in buffers]
        self.offsets, size = [], 0
        for b in buffers:
            size += (b.address - size) % 32
            self.offsets.append(size)
            size += b.array.nbytes
        self.arena = np.zeros(-(-size // 32) * 32, np.uint8)
        self.defined = np.ones(len(self.arena), bool)
        for b, offset in zip(buffers, self.offsets, strict=True):
            self.arena[offset : offset + b.array.nbytes] = b.array
            if b.defined is not None:
                self.defined[offset : offset + b.array.nbytes] = b.defined
        self._first = np.array(self.first, np.uint64)
        self._end = np.array(self.end, np.uint64)
        self._shift = np.array([(o - f) % 2**64 for o, f in zip(self.offsets, self.first, strict=True)], np.uint64)
        self._writable = np.array([b.access != "r" for b in buffers], bool)
        self._tracked = np.array([b.defined is not None for b in buffers], bool)

    def locate(self, addresses: Array, size: int, writes: bool, _lanes: Array) -> tuple[Array, str, Array | None]:
        """Arena offsets; or what is wrong, and for which of the addresses."""
        if not self.buffers:
            return addresses, "outside every buffer", np.ones(len(addresses), bool)
        low, high = int(addresses.min()), int(addresses.max())
        one = bisect_right(self.first, low) - 1
        if one >= 0 and high + size <= self.end[one]:
            buffer: Any = one
        else:
            buffer = np.searchsorted(self._first, addresses, side="right").astype(np.int64) - 1
            inside = (buffer >= 0) & (addresses <= self._end[buffer] - np.uint64(size))
            inside &= self._end[buffer] - self._first[buffer] >= np.uint64(size)
            if not inside.all():
                return addresses, "outside every buffer", ~inside
        offsets = addresses + self._shift[buffer]
        if writes and not np.all(self._writable[buffer]):
            return offsets, "a store to a read-only buffer", np.broadcast_to(~self._writable[buffer], offsets.shape)
        if not writes and np.any(self._tracked[buffer]):
            known = np.logical_and.reduce([self.defined[offsets + np.uint64(i)] for i in range(size)])
            if not known.all():
                return offsets, "a load of bytes that nothing has written", ~known
        return offsets, "", None

    def written(self, offsets: Array, size: int) -> None:
        if self._tracked.any():
            for i in range(size):
                self.defined[offsets + np.uint64(i)] = True

    def close(self) -> None:
        """Bring what was written back to the caller's arrays."""
        for b, offset in zip(self.buffers, self.offsets, strict=True):
            if b.access != "r":
                b.array[:] = self.arena[offset : offset + b.array.nbytes]
            if b.defined is not None:
                b.defined[:] = self.defined[offset : offset + b.array.nbytes]


class PrivateSpace:
    """Shared memory (one part a thread block) or local memory (one a lane), filled with a byte that means nothing."""

    def __init__(self, name: str, owner: Array, parts: int, size: int, fill: int) -> None:
        self.name, self.size = name, size
        self.owner = owner  # lane -> part
        self.stride = max(-(-size // 32) * 32, 32)
        self.arena = np.full(parts * self.stride, fill, np.uint8)

    def locate(self, addresses: Array, size: int, writes: bool, lanes: Array) -> tuple[Array, str, Array | None]:
        if size > self.size:
            return addresses, f"outside the {self.size} bytes of {self.name} memory", np.ones(len(addresses), bool)
        if int(addresses.max()) > self.size - size:
            outside = addresses > np.uint64(self.size - size)
            return addresses, f"outside the {self.size} bytes of {self.name} memory", outside
        return addresses + self.owner[lanes] * np.uint64(self.stride), "", None

    def written(self, offsets: Array, size: int) -> None:
        """Undefined bytes are not tracked here: results that depend on the fill differ from the reference."""


def check_aligned(addresses: Array, size: int) -> Array | None:
    """The addresses that are no multiple of the access size, None if there is none."""
    odd = (addresses & np.uint64(size - 1)) != 0
    return odd if odd.any() else None


def load(space: Any, offsets: Array, size: int, count: int) -> list[Array]:
    elements = space.arena.view(f"u{size}")
    at = (offsets // np.uint64(size)).astype(np.int64)
    return [elements[at + i] for i in range(count)]


def store(space: Any, offsets: Array, values: list[Array]) -> Array | None:
    """Write; returns the lanes whose value another lane of the same instruction overwrote with a different one."""
    size = values[0].dtype.itemsize
    elements = space.arena.view(f"u{size}")
    at = (offsets // np.uint64(size)).astype(np.int64)
    lost = None
    for i, value in enumerate(values):
        elements[at + i] = value
        differs = elements[at + i] != value
        if differs.any():
            lost = differs
    space.written(offsets, size * len(values))
    return lost
