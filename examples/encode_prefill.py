"""Encode here, prefill there: rows travel with the envelope of their fingerprints, and prefill keys them without
hashing. Runs anywhere:

    GPUKEY_SECRET=$(gpukey keygen) python examples/encode_prefill.py

Both sides have the secret; what lies between them has not. `examples/handoff_processes.py` does it over real
transports.
"""

from __future__ import annotations

import torch

import gpukey

HIDDEN, BLOCK_SIZE = 896, 16
TEXT = list(range(100, 132))


def encode(image: int) -> tuple[torch.Tensor, bytes]:
    """The encode worker: embedding rows, and their fingerprints as an envelope. On a GPU nothing here waits for the
    rows."""
    rows = torch.randn(64, HIDDEN, generator=torch.Generator().manual_seed(image)).bfloat16()
    handle = gpukey.fingerprint_rows_async(rows)
    return rows, gpukey.pack(handle.result(), dtype=rows.dtype, hidden=HIDDEN)


def block_keys(rows: torch.Tensor, envelope: bytes) -> list[bytes]:
    """The prefill worker: 32 text tokens, then the rows. ValueError where the envelope is not authentic, or not of
    these rows' kind."""
    prints = gpukey.unpack(envelope, dtype=rows.dtype, hidden=rows.shape[1]).rows
    if len(prints) != len(rows):
        raise ValueError(f"the envelope has {len(prints)} fingerprints; {len(rows)} rows came")
    root = gpukey.Root(model="demo", dtype="bfloat16")
    span = gpukey.EmbeddingSpan(len(TEXT), prints)
    return gpukey.block_keys(TEXT + [0] * len(rows), block_size=BLOCK_SIZE, root=root, secret=SECRET, embeds=[span])


def shared(one: list[bytes], other: list[bytes]) -> int:
    """Blocks of the common prefix."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


SECRET = gpukey.Secret.from_env()


def main() -> None:
    cat, cat_again, dog = (block_keys(*encode(image)) for image in (1, 1, 2))
    print(f"the same image again: {shared(cat, cat_again)} of {len(cat)} blocks are shared")
    print(f"another image: {shared(cat, dog)} blocks are shared, the text before it")
    rows, envelope = encode(1)
    forged = envelope[:-20] + bytes([envelope[-20] ^ 1]) + envelope[-19:]
    try:
        block_keys(rows, forged)
    except ValueError as error:
        print(f"a changed envelope is refused: {error}")


if __name__ == "__main__":
    main()
