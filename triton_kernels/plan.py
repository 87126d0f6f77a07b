"""Which kernel hashes rows of a shape, and how: decided on the host from sizes alone, no trial runs.

Time is counted in compressions one after the other. A GPU's integer pipes are full with one warp for each scheduler, so
`full` lanes run at full speed, and more of them take turns.
"""

from __future__ import annotations

from dataclasses import dataclass

CHUNK_BYTES, BLOCK_BYTES = 1024, 64
MAX_LEVELS = 5
MAX_TILES = 65535


@dataclass(frozen=True)
class Plan:
    """How rows of one width are hashed: `lanes` threads a program, one warp.

    levels  a whole row of at most 2^levels chunks in each lane (hash_lanes); 0: a chunk in each lane (hash_tiles)
    width   lanes for a row, or for a tile of it
    tiles   tiles in a row; their CVs are merged by a launch more for each factor of `lanes`
    """

    lanes: int
    levels: int
    width: int
    tiles: int

    @property
    def rows_each(self) -> int:
        """Rows that a program hashes."""
        return self.lanes if self.levels else self.lanes // self.width


def power_of_two(n: int) -> int:
    """The smallest one >= n."""
    return 1 << (n - 1).bit_length()


def in_tiles(row_bytes: int, lanes: int) -> Plan:
    """A chunk in each lane. ValueError when a row is longer than `MAX_TILES` tiles."""
    chunks = -(-row_bytes // CHUNK_BYTES)
    width = min(lanes, power_of_two(chunks))
    tiles = -(-chunks // width)
    if tiles > MAX_TILES:
        raise ValueError(f"rows has {row_bytes} bytes a row; at most {MAX_TILES * lanes * CHUNK_BYTES} are supported")
    return Plan(lanes, 0, width, tiles)


def in_lanes(row_bytes: int, lanes: int) -> Plan:
    """A row in each lane."""
    chunks = -(-row_bytes // CHUNK_BYTES)
    return Plan(lanes, (chunks - 1).bit_length(), 1, 1)


def choose(num_rows: int, row_bytes: int, aligned: bool, lanes: int, full: int) -> Plan:
    """aligned: rows start and end on multiples of 16 bytes. lanes: threads in a warp. full: see above."""
    tiled = in_tiles(row_bytes, lanes)
    chunks, blocks = -(-row_bytes // CHUNK_BYTES), -(-row_bytes // BLOCK_BYTES)
    if not aligned or not 2 <= chunks <= 1 << MAX_LEVELS:
        return tiled
    depth = min(blocks, CHUNK_BYTES // BLOCK_BYTES) + (tiled.width - 1).bit_length()
    time_in_tiles = -(-num_rows * tiled.width // full) * depth
    time_in_lanes = -(-num_rows // full) * (blocks + chunks - 1)
    return in_lanes(row_bytes, lanes) if time_in_lanes <= time_in_tiles else tiled
