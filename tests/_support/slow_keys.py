"""Block keys position by position through `gpukey.reference`: slow, and written without a look at `gpukey.overlays`.

A span is (start, [row fingerprint, …], attention 0 or 1, layout); an item (start, length, modality, identifier, named,
layout).
"""

from __future__ import annotations

from gpukey import reference


def block_overlays(secret, block, block_size, spans, items, digest_size=16):
    """Overlays of one block, in no order, as bytes each."""
    positions = range(block * block_size, (block + 1) * block_size)
    row_at = {start + i: row for start, rows, _, _ in spans for i, row in enumerate(rows)}
    overlays = []
    run = []
    for position in [*positions, None]:
        if position in row_at:
            run.append(position)
        elif run:
            overlays.append(reference.rows_overlay(run[0] - positions[0], [row_at[p] for p in run]))
            run = []
    for start, rows, attention, layout in spans:
        here = [p for p in positions if start <= p < start + len(rows)]
        if here and (attention or layout):
            placed = reference.placed_span(secret, rows, attention, layout, digest_size)
            overlays.append(reference.placed_overlay(here[0] - positions[0], len(here), here[0] - start, placed))
    for start, length, modality, identifier, named, layout in items:
        here = [p for p in positions if start <= p < start + length]
        if here:
            overlays.append(
                reference.item_overlay(
                    here[0] - positions[0],
                    len(here),
                    here[0] - start,
                    length,
                    modality,
                    identifier,
                    layout,
                    named=named,
                )
            )
    return overlays


def block_keys(secret, token_ids, *, block_size, fields, digest_size=16, spans=(), items=()):
    """Keys of the full blocks."""
    parent = reference.root_key(secret, {**fields, "block_size": block_size})
    keys = []
    for block in range(len(token_ids) // block_size):
        ids = token_ids[block * block_size : (block + 1) * block_size]
        overlays = block_overlays(secret, block, block_size, spans, items, digest_size)
        parent = reference.block_key(secret, parent, ids, overlays, digest_size)
        keys.append(parent)
    return keys
