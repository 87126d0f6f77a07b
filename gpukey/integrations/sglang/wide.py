"""Row fingerprints as the radix tree's own ids, a position each, so that `input_embeds` could be cached where the engine refuses today. No torch."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

from gpukey.secret import Secret, keyed_hash, resolve
from gpukey.spans import EmbeddingSpan
from gpukey.token_ids import encode_token_ids

WIDE = 1 << 62
"""Set in the id of every replaced position: no vocabulary reaches it."""


def wide_ids(
    token_ids: Sequence[int], embeds: Iterable[EmbeddingSpan] = (), *, secret: Secret | None = None
) -> array[int]:
    """`array("q")` [num_tokens] for `RadixKey(token_ids=…)`: token ids below 2^62, and 2^62 + 62 bits at each replaced position.

    The id of a position follows from all rows of its run up to it, and from the token id under it, so that a chance match of 62 bits (the most that
    an id holds) ends at the next row; where the last row of a run is the one that differs, those 62 bits are all there is. Spans that touch are one
    run, however the caller cut it. Per token: a page of any size may end inside a run.
    """
    key = resolve(secret).derive("span", b"radix ids")
    ids = array("q")
    ids.frombytes(encode_token_ids(token_ids))
    if ids and max(ids) >= WIDE:
        wide = next(i for i, token in enumerate(ids) if token >= WIDE)
        raise ValueError(f"token_ids[{wide}] is {ids[wide]}; 0 to {WIDE - 1} is needed")
    spans = list(embeds)
    for i, span in enumerate(spans):
        if not isinstance(span, EmbeddingSpan):
            raise TypeError(f"embeds[{i}] is a {type(span).__name__}; a gpukey.EmbeddingSpan is needed")
    stop, state = -1, b""
    for span in sorted(spans, key=lambda span: span.start):
        if not span.num_rows:
            continue
        if span.attention != "causal" or span.layout:
            raise ValueError(
                f"the span at {span.start} is bidirectional or has a layout; a part of it cannot be reused: give it as an item"
            )
        if span.start < stop:
            raise ValueError(f"embeds overlap at position {span.start}; embedding spans may not")
        if span.start + span.num_rows > len(ids):
            raise ValueError(f"the span at {span.start} has {span.num_rows} rows; the prompt ends at {len(ids)}")
        if span.start != stop:
            state = b""
        for row in range(span.num_rows):
            at = row * span.digest_size
            position = span.start + row
            message = state + span.fingerprints[at : at + span.digest_size] + ids[position].to_bytes(8, "little")
            state = keyed_hash(key, message)
            ids[position] = WIDE | int.from_bytes(state[:8], "little") >> 2
        stop = span.start + span.num_rows
    return ids
