"""What the running lanes of a warp tell each other. Every instruction checks that the lanes that it names are there."""

from typing import Any

import numpy as np

from .lanes import Lanes
from .memory import Array


class Warps(Lanes):
    """Lanes with the warp-wide instructions: `t` in the emitted code."""

    def bits(self, chosen: Array) -> Array:
        """Mask of the lanes that take part, one uint32 a warp of the batch."""
        flags = np.zeros(self.batch.size, bool)
        flags[self.index[chosen]] = True
        packed: Array = np.packbits(flags.reshape(-1, 32), axis=1, bitorder="little").view(np.uint32)[:, 0]
        return packed

    def check_members(self, at: int, mask: Any, guard: Any) -> Array:
        """Every lane is in its own mask, and every lane of the mask that has not left is here with the same mask."""
        chosen = self._chosen(guard)
        masks = self._spread(mask)[chosen]
        lane = self.index[chosen]
        warp = lane // 32
        outside = (masks >> (lane % 32).astype(np.uint32) & np.uint32(1)) == 0
        if outside.any():
            raise self.error(at, "the lane is not in its own membermask", int(chosen[np.flatnonzero(outside)[0]]))
        here, left = self.bits(chosen), ~self.batch.live_bits()
        missing = masks & ~here[warp] & ~left[warp]
        if missing.any():
            one = int(np.flatnonzero(missing)[0])
            raise self.error(at, f"lanes {missing[one]:#010x} of the membermask are not here", int(chosen[one]))
        self._check_same_mask(at, masks, lane, chosen)
        return chosen

    def _check_same_mask(self, at: int, masks: Array, lane: Array, chosen: Array) -> None:
        if len(masks) == 0 or (masks == masks[0]).all():
            return
        table = np.zeros(self.batch.size, np.uint32)
        table[lane] = masks
        for other in range(32):
            peer = lane // 32 * 32 + other
            named = (masks >> np.uint32(other) & np.uint32(1)).astype(bool) & self.batch.alive[peer]
            wrong = named & (table[peer] != masks)
            if wrong.any():
                one = int(np.flatnonzero(wrong)[0])
                raise self.error(at, f"lane {other} of the membermask passes another mask", int(chosen[one]))

    def shuffle(self, at: int, mode: str, a: Any, b: Any, clamp: Any, mask: Any, guard: Any) -> tuple[Any, Any]:
        chosen = self.check_members(at, mask, guard)
        value, offset, bounds = (self._spread(v)[chosen] for v in (a, b, clamp))
        place = self.index[chosen]
        lane, offset, bounds = place % 32, offset.astype(np.int64) & 31, bounds.astype(np.int64)
        segment = bounds >> 8 & 31
        low = lane & segment
        limit = low | (bounds & 31 & ~segment)
        if mode == "up":
            source = lane - offset
        elif mode == "down":
            source = lane + offset
        else:
            source = lane ^ offset if mode == "bfly" else low | (offset & ~segment)
        valid = source >= limit if mode == "up" else source <= limit
        source = place - lane + np.where(valid, source, lane)
        table, here = np.zeros(self.batch.size, np.uint32), np.zeros(self.batch.size, bool)
        table[place], here[place] = value, True
        if not here[source].all():
            raise self.error(at, "the source lane is not here", int(chosen[np.flatnonzero(~here[source])[0]]))
        out, ok = np.zeros(self.count, np.uint32), np.zeros(self.count, bool)
        out[chosen], ok[chosen] = table[source], valid
        return out, ok

    def vote(self, at: int, mode: str, predicate: Any, mask: Any, guard: Any) -> Any:
        chosen = self.check_members(at, mask, guard)
        wants = chosen[self._spread(predicate)[chosen]]
        ballot = self.bits(wants)[self.index // 32] & mask
        expected = self.bits(chosen)[self.index // 32] & mask
        answers = {"ballot": ballot, "any": ballot != 0, "all": ballot == expected}
        return answers[mode] if mode != "uni" else (ballot == 0) | (ballot == expected)

    def reduce(self, at: int, op: str, value: Any, mask: Any, guard: Any) -> Any:
        """redux.sync: the same result for all lanes of a mask."""
        chosen = self.check_members(at, mask, guard)
        values, masks = self._spread(value)[chosen], self._spread(mask)[chosen]
        place = self.index[chosen]
        group, member = np.unique(place // 32 * 2**32 + masks, return_inverse=True)
        function = {"add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or}
        start = values[np.argmax(member == np.arange(len(group))[:, None], axis=1)]  # a value of each group
        total = np.zeros_like(start) if op in ("add", "xor") else start
        function.get(op, np.bitwise_xor).at(total, member, values)
        out = np.zeros(self.count, values.dtype)
        out[chosen] = total[member]
        return out

    def matrix_rows(self, at: int, address: Any, count: int, guard: Any) -> list[Array]:
        """ldmatrix, stmatrix: where each lane's 4 bytes of the 8 x 16-byte matrices lie; lane 8i + r names row r of i."""
        if guard is not None:
            raise self.error(at, "a predicate on a matrix access is not supported", 0)
        self.check_members(at, np.uint32(0xFFFF_FFFF), None)
        table = np.zeros(self.batch.size, np.uint64)
        table[self.index] = self._spread(address)
        lane = self.index % 32
        odd = (table[self.index] % np.uint64(16) != 0) & (lane < 8 * count)
        if odd.any():
            raise self.error(at, "a row that is no multiple of 16", int(np.flatnonzero(odd)[0]))
        inside = (lane % 4 * 4).astype(np.uint64)
        return [table[self.index - lane + 8 * i + lane // 4] + inside for i in range(count)]

    def active_mask(self, guard: Any) -> Any:
        return self.bits(self._chosen(guard))[self.index // 32]
