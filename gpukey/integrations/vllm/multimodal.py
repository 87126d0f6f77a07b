"""Identifiers of image and other embeddings: tensors are fingerprinted where they lie; names that callers give stay names."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from gpukey.fingerprint import fingerprint_rows
from gpukey.integrations.content import as_rows
from gpukey.integrations.patches import Hook

DIGEST_SIZE = 32


def describe(tensor: torch.Tensor) -> dict[str, object]:
    """What identifies a tensor: dtype, shape and row fingerprints. One launch where it lies and 32 bytes a row to bring home."""
    fingerprints = b""
    if tensor.numel():
        fingerprints = fingerprint_rows(as_rows(tensor), digest_size=DIGEST_SIZE).cpu().numpy().tobytes()
    return {"dtype": str(tensor.dtype), "shape": tuple(tensor.shape), "rows": fingerprints}


def _serialize_item(found: Any) -> Any:
    original: Callable[..., Any] = found.__func__

    def serialize_item(cls: Any, obj: object) -> Iterable[bytes | memoryview]:
        if isinstance(obj, torch.Tensor) and obj.layout is torch.strided and not obj.is_quantized:
            chunks: Iterable[bytes | memoryview] = cls.iter_item_to_bytes("gpukey", describe(obj))
        else:
            chunks = original(cls, obj)
        return chunks

    return classmethod(serialize_item)


def _get_mm_hashes(found: Callable[..., Any]) -> Callable[..., Any]:
    def get_mm_hashes(self: Any, model_id: str, hash_algorithm: str) -> Any:
        if self.mm_uuid_items:
            named = {m: [_named(u, hash_algorithm) for u in uuids] for m, uuids in self.mm_uuid_items.items()}
            self = dataclasses.replace(self, mm_uuid_items=named)
        return found(self, model_id, hash_algorithm)

    return get_mm_hashes


def _named(uuid: str | None, hash_algorithm: str) -> str | None:
    """A client can send a `uuid`, and vLLM takes it for the identifier: hashed as a name, it never equals the identifier of a content."""
    from vllm.multimodal.hasher import MultiModalHasher

    return None if uuid is None else str(MultiModalHasher.hash_kwargs(hash_algorithm, gpukey_name=uuid))


def hooks() -> Iterator[Hook]:
    from vllm.multimodal.hasher import MultiModalHasher
    from vllm.multimodal.processing.inputs import ProcessorInputs

    yield MultiModalHasher, "serialize_item", _serialize_item
    yield ProcessorInputs, "get_mm_hashes", _get_mm_hashes
