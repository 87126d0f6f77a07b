"""Overlays: how replaced rows and items enter the keys of the blocks that they touch (docs/spec.md, "Overlays").
Imports without torch."""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Generic, TypeVar

from gpukey.secret import Secret
from gpukey.spans import EmbeddingSpan, MultimodalItem

ROWS, PLACED_SPAN = 1, 4
HEAD = struct.Struct("<BII")  # kind, start in block, count
Part = tuple[int, int, int, bytes]  # start in block, kind, count, payload: the order in which overlays are sorted
Thing = TypeVar("Thing", EmbeddingSpan, MultimodalItem)


@dataclass(frozen=True, slots=True)
class _Known(Generic[Thing]):
    """A span or item, and the position before which the prompt is known to have it: less than its end after a
    truncation."""

    thing: Thing
    stop: int
    payload: bytes  # what an overlay of it says after the offset: a placed-span digest, or an item's identity

    @property
    def start(self) -> int:
        return self.thing.start

    @property
    def is_cut(self) -> bool:
        return self.stop < self.thing.start + self.thing.length


class Overlays:
    """The spans and items of one prompt, by absolute position. Never changed in place: `add` and `cut` return
    another."""

    __slots__ = ("_digest_size", "_items", "_secret", "_spans", "stop")

    def __init__(self, secret: Secret, digest_size: int) -> None:
        self._secret, self._digest_size = secret, digest_size
        self._spans: list[_Known[EmbeddingSpan]] = []
        self._items: list[_Known[MultimodalItem]] = []
        self.stop = 0
        """The position after the last one that has an overlay."""

    def add(self, embeds: Iterable[EmbeddingSpan], items: Iterable[MultimodalItem], first: int) -> Overlays:
        """With more spans and items; positions before `first` have their keys already, and it is an error to change
        what stands there."""
        spans, known = list(self._spans), list(self._items)
        for i, span in enumerate(_listed("embeds", embeds)):
            name = f"embeds[{i}]"
            _check_type(name, span, EmbeddingSpan)
            if not span.num_rows:
                continue
            if span.digest_size != self._digest_size:
                raise ValueError(
                    f"{name} has fingerprints of {span.digest_size} bytes; digest_size is {self._digest_size}"
                )
            _insert(spans, name, span, first, span.placed(self._secret) if span.is_placed else b"")
        for before, after in pairwise(spans):
            if after.start < before.stop:
                raise ValueError(
                    f"embeds has spans at {before.start} to {before.stop} and {after.start} to {after.stop}; "
                    "each position is replaced once"
                )
        for i, item in enumerate(_listed("items", items)):
            _check_type(f"items[{i}]", item, MultimodalItem)
            _insert(known, f"items[{i}]", item, first, item.tail())
        return self._with(spans, known)

    def cut(self, stop: int) -> Overlays:
        """Without whatever stands at position `stop` and after it."""
        spans = [replace(span, stop=min(span.stop, stop)) for span in self._spans if span.start < stop]
        items = [replace(item, stop=min(item.stop, stop)) for item in self._items if item.start < stop]
        return self._with(spans, items)

    def require_before(self, num_tokens: int) -> None:
        """ValueError when a span or an item goes past the prompt."""
        known: dict[str, Sequence[_Known[Any]]] = {"embeds": self._spans, "items": self._items}
        for name, entries in known.items():
            for entry in entries:
                if entry.stop > num_tokens:
                    raise ValueError(
                        f"{name} has positions {entry.start} to {entry.stop}; token_ids has {num_tokens} tokens, "
                        "and an id for every position is needed (0 where there is none)"
                    )

    def encode(self, begin: int, end: int, block_size: int) -> dict[int, bytes]:
        """Block number → its overlays, for the blocks of positions `begin` to `end` that have any."""
        parts: dict[int, list[Part]] = {}
        for span in self._spans:
            for block, start, count, offset in _pieces(span, begin, end, block_size):
                found = parts.get(block)
                if found is None:
                    found = parts[block] = []
                _add_rows(found, start, count, span.thing, offset)
                if span.payload:
                    found.append((start, PLACED_SPAN, count, struct.pack("<I", offset) + span.payload))
        for item in self._items:
            for block, start, count, offset in _pieces(item, begin, end, block_size):
                payload = struct.pack("<I", offset) + item.payload
                parts.setdefault(block, []).append((start, item.thing.kind, count, payload))
        return {block: _spell(found) for block, found in parts.items()}

    def _with(self, spans: list[_Known[EmbeddingSpan]], items: list[_Known[MultimodalItem]]) -> Overlays:
        other = Overlays(self._secret, self._digest_size)
        other._spans, other._items = spans, items
        everything: list[_Known[Any]] = [*spans, *items]
        other.stop = max((known.stop for known in everything), default=0)
        return other


def _insert(known: list[_Known[Thing]], name: str, thing: Thing, first: int, payload: bytes) -> None:
    """Into its place by start. One that a truncation has cut may be given again, and is then whole again."""
    whole = _Known(thing, thing.start + thing.length, payload)
    place = bisect_left(known, thing.start, key=_start)
    for i in range(place, len(known)):
        entry = known[i]
        if entry.start != thing.start:
            break
        if entry.thing == thing:
            if not entry.is_cut:
                raise ValueError(f"{name} is given twice: {thing!r}")
            if entry.stop < first:
                raise ValueError(
                    f"{name} goes on at {entry.stop}; the blocks before position {first} have their keys already"
                )
            known[i] = whole
            return
    if thing.start < first:
        raise ValueError(f"{name} starts at {thing.start}; the blocks before position {first} have their keys already")
    known.insert(place, whole)


def _start(known: _Known[Any]) -> int:
    return known.start


def _pieces(known: _Known[Any], begin: int, end: int, block_size: int) -> Iterator[tuple[int, int, int, int]]:
    """(block, start in block, count, offset in the span or item) for each block that it touches between `begin` and
    `end`."""
    position, stop = max(known.start, begin), min(known.stop, end)
    while position < stop:
        block, start = divmod(position, block_size)
        count = min(block_size - start, stop - position)
        yield block, start, count, position - known.start
        position += count


def _add_rows(parts: list[Part], start: int, count: int, span: EmbeddingSpan, offset: int) -> None:
    """As kind 1; a run that goes on where the block's last one ended becomes one with it."""
    size = span.digest_size
    rows = span.fingerprints[offset * size : (offset + count) * size]
    if parts:
        for i, (before, kind, length, payload) in enumerate(parts):
            if kind == ROWS and before + length == start:
                parts[i] = (before, ROWS, length + count, payload + rows)
                return
    parts.append((start, ROWS, count, rows))


def _spell(parts: list[Part]) -> bytes:
    if len(parts) == 1:
        start, kind, count, payload = parts[0]
        return HEAD.pack(kind, start, count) + payload
    return b"".join(HEAD.pack(kind, start, count) + payload for start, kind, count, payload in sorted(parts))


def _listed(name: str, things: Iterable[Any]) -> Iterable[Any]:
    if isinstance(things, (EmbeddingSpan, MultimodalItem)) or not isinstance(things, Iterable):
        raise TypeError(f"{name} is a {type(things).__name__}; a list is needed")
    return things


def _check_type(name: str, thing: Any, wanted: type) -> None:
    if not isinstance(thing, wanted):
        raise TypeError(f"{name} is a {type(thing).__name__}; a gpukey.{wanted.__name__} is needed")
