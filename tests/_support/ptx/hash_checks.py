"""Checks of the three functions on generated cases, bit for bit and access by access, for whatever launches them: the CUDA
launchers, NVRTC or Triton."""

from typing import Any, Protocol

import numpy as np

from .layout import Output, Placed, RowsCase, clamped, keyed, map_key
from .memory import Array, Memory

CHUNK, BLOCK = 1024, 64
WIDTHS = sorted(
    {1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 32, 33, 48, 60, 61, 62, 66, 67, 68, 69, 100, 896, 1792, 69_999, 70_000}
    | {n * BLOCK + d for n in (1, 2, 3, 8, 15) for d in (-1, 0, 1)}
    | {n * CHUNK + d for n in (1, 2, 3, 4, 5, 7, 8, 16, 32, 33, 64) for d in (-1, 0, 1)}
)
LONG = (256 * CHUNK - 1, 256 * CHUNK, 256 * CHUNK + 1, 257 * CHUNK, 512 * CHUNK + 1, 3 * 256 * CHUNK + 70)
SPANS = (0, 1, 2, 3, 4, 5, 31, 32, 33, 63, 64, 65, 127, 128, 129, 576, 1000, 4096, 5000)

HOSTILE = (
    [0, -1, 10],
    [-5, 5, 10],
    [0, 11, 10],
    [0, 7, 3, 10],
    [10, 0],
    [10, 10, 10],
    [3, 4],
    [-1, -1],
    [100, 200],
    [0, 2**31 - 1, -(2**31)],
    [-(2**31), 2**31 - 1],
    [2**31 - 1, 2**31 - 1, 0, 10],
)
HOSTILE_64 = (
    [0, 2**32, 10],
    [2**32, 2**32 + 10],
    [-(2**63), 2**63 - 1],
    [2**63 - 1, -(2**63)],
    [0, 2**63 - 1, 5, -(2**63), 10],
    [-(2**32), 10],
    [2**60, 2**60 + 10],
    [2**63 - 16, 5],
)


class Functions(Protocol):
    """The three functions on addresses, in the order of csrc/fingerprint.h."""

    def rows(
        self, memory: Memory, data: int, num_rows: int, width: int, stride: int, key: int, digests: int, size: int
    ) -> Any: ...

    def stage(
        self, memory: Memory, data: int, num_rows: int, width: int, stride: int, staged: int, staged_stride: int,
        key: int, digests: int, size: int,
    ) -> Any: ...  # fmt: skip

    def fold(
        self, memory: Memory, data: int, num_rows: int, bounds: int, num_spans: int, bytes_each: int, key: int,
        digests: int, size: int,
    ) -> Any: ...  # fmt: skip


def row_cases(width: int) -> list[RowsCase]:
    """Aligned, odd, strided, repeated and overlapping rows of a width; few of a wide one."""
    few = 1 if width > 20_000 else 3
    many = 1 if width > 20_000 else 37 if width <= 4 * CHUNK else 5
    aligned = -(-width // 16) * 16
    return [
        RowsCase(many, width, aligned),
        RowsCase(few, width, aligned + 64, offset=16, digest_size=32, tight=False),
        RowsCase(few, width, width, offset=1, tight=False),
        RowsCase(2, width, width + 3, offset=2, digest_size=32),
        RowsCase(few, width, width // 2, offset=3),
        RowsCase(few, width, 0, offset=4 + width % 12, tight=False),
    ]


def check_rows(on: Functions, case: RowsCase, seed: int) -> None:
    """Hash the rows of a case; key and digests stand at addresses of any alignment."""
    rng, memory = np.random.default_rng(seed), Memory()
    placed = Placed(memory, rng, case)
    key, key_at = map_key(memory, rng, seed % 16)
    out = Output(memory, case.num_rows, case.digest_size, case.digest_size, seed // 16 % 16)
    on.rows(memory, placed.address, case.num_rows, case.width, case.stride, key_at, out.address, case.digest_size)
    out.check([keyed(key, row, case.digest_size) for row in placed.rows])


def check_stage(on: Functions, case: RowsCase, staged_stride: int, staged_offset: int, seed: int) -> None:
    """Copy and hash: the copy is exact, nothing beside it is touched."""
    rng, memory = np.random.default_rng(seed), Memory()
    placed = Placed(memory, rng, case)
    key, key_at = map_key(memory, rng)
    n, width, size = case.num_rows, case.width, case.digest_size
    staged = Output(memory, n, width, staged_stride, staged_offset)
    out = Output(memory, n, size, size)
    source, to = (placed.address, n, width, case.stride), (staged.address, staged_stride)
    on.stage(memory, *source, *to, key_at, out.address, size)
    staged.check([row.tobytes() for row in placed.rows])
    out.check([keyed(key, row, size) for row in placed.rows])


def check_fold(on: Functions, num_rows: int, bounds: list[int], dtype: type, size: int, offset: int = 0) -> None:
    """Fold `num_rows` fingerprints by cu_seqlens of int32 or int64, which may be hostile."""
    rng, memory = np.random.default_rng(num_rows), Memory()
    placed = Placed(memory, rng, RowsCase(num_rows, size, size, offset=offset))
    key, key_at = map_key(memory, rng)
    cu_seqlens: Array = np.array(bounds, dtype)
    spans = len(bounds) - 1
    out = Output(memory, spans, size, size, offset % 16)
    bounds_at = memory.map(cu_seqlens)
    on.fold(memory, placed.address, num_rows, bounds_at, spans, cu_seqlens.itemsize, key_at, out.address, size)
    rows = [row.tobytes() for row in placed.rows]
    out.check([keyed(key, b"".join(rows[a:b]), size) for a, b in clamped(cu_seqlens, num_rows)])
