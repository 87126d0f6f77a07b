"""The lanes that run one basic block now: their registers, and what they load and store."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from . import memory
from .errors import PTXError

Array = np.ndarray[Any, Any]
WINDOWS = {"shared": 0x4000_0000_0000_0000, "local": 0x4800_0000_0000_0000}  # in the generic address space
_WINDOW_BITS = np.uint64(0x7800_0000_0000_0000)


class Lanes:
    """`index`: global numbers of the running lanes, in order; `full`: all of the batch."""

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
