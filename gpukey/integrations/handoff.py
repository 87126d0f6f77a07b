"""From an encode worker to a prefill worker: rows are hashed once, where they were made; prefill checks the envelope and never hashes again.

    encoder    envelope = seal(embeds)                      one launch; 16 bytes a row come home and are authenticated
    prefill    span = accept(embeds, envelope, start=35)    an EmbeddingSpan for block_keys, or an error; no row is read

The envelope proves that a holder of the secret made these fingerprints; which rows it comes with is the transport's word. Take both from the encode
worker, over one channel that clients cannot write to: a replayed envelope beside other rows would be those rows' key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpukey.envelope import pack, unpack
from gpukey.fingerprint import fingerprint_rows_async
from gpukey.secret import Secret
from gpukey.spans import EmbeddingSpan

if TYPE_CHECKING:
    import torch


def seal(embeds: torch.Tensor, *, secret: Secret | None = None, digest_size: int = 16) -> bytes:
    """The envelope of [num_rows, hidden] rows on any device, to send beside them. Waits for 16 bytes a row, not for the rows to go anywhere.

    ValueError without a configured secret (`GPUKEY_SECRET_FILE`): the other worker could not open it.
    """
    secret = _configured(secret)
    handle = fingerprint_rows_async(embeds, secret=secret, digest_size=digest_size)
    return pack(handle.result(), dtype=embeds.dtype, hidden=embeds.shape[1], secret=secret)


def accept(
    embeds: torch.Tensor,
    envelope: bytes,
    *,
    start: int,
    secret: Secret | None = None,
    attention: str = "causal",
    layout: bytes = b"",
) -> EmbeddingSpan:
    """The span that `embeds` [num_rows, hidden] replaces from position `start` on, keyed by the envelope's fingerprints.

    ValueError for another secret's envelope, a wrong MAC, and rows of another count, width or dtype than it was made for. There is no way on from
    here without an envelope: rows that cannot be keyed are an error, never a text prompt.
    """
    shape = tuple(getattr(embeds, "shape", ()))
    if len(shape) != 2:
        raise ValueError(f"embeds is a {type(embeds).__name__} of shape {list(shape)}; [num_rows, hidden] is needed")
    sealed = unpack(envelope, secret=_configured(secret), dtype=embeds.dtype, hidden=shape[1])
    if len(sealed.rows) != shape[0]:
        raise ValueError(
            f"envelope holds {len(sealed.rows)} fingerprints; embeds has {shape[0]} rows, and one each is needed"
        )
    return EmbeddingSpan(start, sealed.rows, attention=attention, layout=layout)


def _configured(secret: Any) -> Secret:
    return Secret.from_env() if secret is None else secret
