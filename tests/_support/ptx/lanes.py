"""The lanes that run one basic block now: their registers, what they load and store, what they tell each other."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from . import memory
from .errors import PTXError

Array = np.ndarray[Any, Any]
WINDOWS = {"shared": 0x4000_0000_0000_0000, "local": 0x4800_0000_0000_0000}  # in the generic address space
_WINDOW_BITS = np.uint64(0x7800_0000_0000_0000)


class Lanes:
    """`t` in the emitted code. `index`: global numbers of the running lanes, in order; `full`: all of the batch."""

    def __init__(self, batch: Any) -> None:
        self.batch = batch
        self.everyone = np.arange(batch.size)

    def select(self, index: Array | None) -> None:
        self.full = index is None
        self.index = self.everyone if index is None else index
        self.count = len(self.index)

    # --- registers

    def read(self, register: str) -> Any:
        value = self.batch.registers.get(register)
        if value is None:
            return self.batch.compiled.poison[register]
        return value if self.full or value.ndim == 0 else value[self.index]

    def write(self, register: str, value: Any) -> None:
        registers = self.batch.registers
        if not self.full:
            old = registers.get(register, self.batch.compiled.poison[register])
            merged = np.full(self.batch.size, old) if old.ndim == 0 else old.copy()
            merged[self.index] = value
            value = merged
        registers[register] = value

    def special(self, name: str) -> Any:
        value = self.batch.special[name]
        return value if self.full or value.ndim == 0 else value[self.index]

    def param(self, offset: int, size: int) -> Any:
        return self.batch.params[offset : offset + size].view(f"u{size}")[0]

    def window(self, space: str) -> Any:
        return np.uint64(WINDOWS[space])

    def _spread(self, value: Any) -> Array:
        """An element for each running lane."""
        return np.full(self.count, value) if value.ndim == 0 else value

    # --- memory

    def load(self, at: int, space: str, address: Any, size: int, count: int, guard: Any) -> Sequence[Any]:
        chosen = self._chosen(guard)
        if len(chosen) == 0:
            return [np.zeros(self.count, f"u{size}") for _ in range(count)]
        addresses = self._spread(address)[chosen]
        if space == "generic":
            values = self._load_generic(at, addresses, size, count, chosen)
        else:
            values = self._load(at, self.batch.spaces[space], addresses, size, count, chosen)
        if len(chosen) == self.count:
            return values
        spread = [np.zeros(self.count, f"u{size}") for _ in range(count)]
        for target, value in zip(spread, values, strict=True):
            target[chosen] = value
        return spread

    def _load(self, at: int, space: Any, addresses: Array, size: int, count: int, chosen: Array) -> list[Array]:
        offsets = self._locate(at, space, addresses, size * count, False, chosen)
        return memory.load(space, offsets, size, count)

    def _load_generic(self, at: int, addresses: Array, size: int, count: int, chosen: Array) -> list[Array]:
        out = [np.zeros(len(addresses), f"u{size}") for _ in range(count)]
        for space, mask in self._split(addresses):
            inside = addresses[mask] & ~_WINDOW_BITS if space.name != "global" else addresses[mask]
            for target, value in zip(out, self._load(at, space, inside, size, count, chosen[mask]), strict=True):
                target[mask] = value
        return out

    def store(self, at: int, space: str, address: Any, values: Sequence[Any], guard: Any) -> None:
        chosen = self._chosen(guard)
        if len(chosen) == 0:
            return
        addresses = self._spread(address)[chosen]
        data = [self._spread(v)[chosen] for v in values]
        if space != "generic":
            self._store(at, self.batch.spaces[space], addresses, data, chosen)
            return
        for part, mask in self._split(addresses):
            inside = addresses[mask] & ~_WINDOW_BITS if part.name != "global" else addresses[mask]
            self._store(at, part, inside, [d[mask] for d in data], chosen[mask])

    def _store(self, at: int, space: Any, addresses: Array, data: list[Array], chosen: Array) -> None:
        offsets = self._locate(at, space, addresses, data[0].dtype.itemsize * len(data), True, chosen)
        lost = memory.store(space, offsets, data)
        if lost is not None:
            self._fail(at, "lanes store different values to one address", lost, addresses, chosen)

    def _split(self, addresses: Array) -> list[tuple[Any, Array]]:
        window = addresses & _WINDOW_BITS
        masks = [(name, window == np.uint64(base)) for name, base in WINDOWS.items()]
        masks.append(("global", ~(masks[0][1] | masks[1][1])))
        return [(self.batch.spaces[name], mask) for name, mask in masks if mask.any()]

    def _locate(self, at: int, space: Any, addresses: Array, size: int, writes: bool, chosen: Array) -> Array:
        odd = memory.check_aligned(addresses, size)
        if odd is not None:
            self._fail(at, f"an address that is no multiple of {size}", odd, addresses, chosen)
        offsets, problem, where = space.locate(addresses, size, writes, self.index[chosen])
        if where is not None:
            self._fail(at, f"{'store' if writes else 'load'} of {size} bytes: {problem}", where, addresses, chosen)
        return offsets  # type: ignore[no-any-return]

    def _fail(self, at: int, what: str, where: Array, addresses: Array, chosen: Array) -> None:
        one = int(np.flatnonzero(where)[0])
        raise self.error(at, f"{what}, address {int(addresses[one]):#x}", int(chosen[one]))

    def _chosen(self, guard: Any) -> Array:
        return np.arange(self.count) if guard is None else np.flatnonzero(self._spread(guard))

    # --- other lanes of the warp

    def _bits(self, chosen: Array) -> Array:
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
        here, left = self._bits(chosen), ~self.batch.live_bits()
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
        ballot = self._bits(wants)[self.index // 32] & mask
        expected = self._bits(chosen)[self.index // 32] & mask
        answers = {"ballot": ballot, "any": ballot != 0, "all": ballot == expected}
        return answers[mode] if mode != "uni" else (ballot == 0) | (ballot == expected)

    def active_mask(self, guard: Any) -> Any:
        return self._bits(self._chosen(guard))[self.index // 32]

    def trap(self, at: int, guard: Any) -> None:
        chosen = self._chosen(guard)
        if len(chosen):
            raise self.error(at, "trap", int(chosen[0]))

    def error(self, at: int, what: str, position: int) -> PTXError:
        """`position`: which of the running lanes."""
        block, thread = self.batch.thread(int(self.index[position]))
        kernel = self.batch.compiled.kernel
        text = kernel.instructions[at].text
        return PTXError(f"{what}: block {block}, thread {thread}: {text} (kernel {kernel.name})")
