"""Multimodal items by content: 32 bytes over features, dtype, shape, grid and parameters, where the engine keeps 64 bits of features alone.

The engine takes names for identities in four places: `hash` in a request's dict, `mm_hashes` of a request and digests of its own media cache
(`set_hash`), `identity` in a request's dict (`set`), and `padded_input_ids` of a request. With the hooks none of them stands for content.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gpukey.integrations.content import content_id
from gpukey.integrations.patches import Hook
from gpukey.secret import Secret

IDENTITY_FIELDS = {"identity", "pad_value", "pad_values"}
TRANSPORT_STATE = "_sglang_"
"""Prefix of what the engine notes in `model_specific_data` about how a feature travels."""


def item_identity(item: Any, secret: Secret) -> bytes:
    """32 bytes for `MultimodalDataItem.set_identity`.

    Bound: modality, format, features or precomputed embeddings, and all that the processor put beside them (image_grid_thw, seconds a grid step,
    DeepStack features). A hash that the request brought counts only where there is no content to hash, and then as a name.
    """
    content = {"feature": item.feature, "precomputed_embeddings": item.precomputed_embeddings}
    described = {"format": item.format.name, "parameters": _parameters(item), **content}
    if all(value is None for value in content.values()):
        if item.hash is None:
            raise ValueError(
                "item has no feature, no precomputed_embeddings and no hash; nothing tells it from another one"
            )
        described["caller's name"] = item.hash
    return content_id(_local(described), item.modality.name, secret=secret, name="item")


def _parameters(item: Any) -> dict[str, Any]:
    return {name: value for name, value in item.model_specific_data.items() if not name.startswith(TRANSPORT_STATE)}


def _local(value: Any) -> Any:
    """A tensor of this process for one that travels as a handle: CUDA IPC proxies and shared-memory pointers."""
    if isinstance(value, (list, tuple)):
        return [_local(part) for part in value]
    if isinstance(value, Mapping):
        return {name: _local(part) for name, part in value.items()}
    if hasattr(value, "reconstruct_on_target_device"):
        import torch

        return value.reconstruct_on_target_device(torch.cuda.current_device())
    if _is_pointer(value):
        if value.tensor is None:
            raise ValueError("a feature in shared memory is not mapped in this process; its bytes cannot be read here")
        return value.tensor
    return value


def _is_pointer(value: Any) -> bool:
    return type(value).__name__ == "ShmPointerMMData"


def _travels(value: Any) -> bool:
    """Whether a handle stands anywhere in it; reading one here could use up a lease that the scheduler needs."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return any(map(_travels, value))
    return hasattr(value, "reconstruct_on_target_device") or _is_pointer(value)


def _set_pad_value(secret: Secret) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
    def make(found: Callable[[Any], None]) -> Callable[[Any], None]:
        from sglang.srt.environ import envs

        def set_pad_value(self: Any) -> None:
            # An item that was split off a bundle has no hash and still the bundle's identity.
            if None not in (self.pad_value, self.identity, self.hash):
                return
            if envs.SGLANG_MM_SKIP_COMPUTE_HASH.get():
                self.set_identity(secrets.token_bytes(32))
            else:
                self.set_identity(item_identity(self, secret))

        return set_pad_value

    return make


def _set_hash(found: Callable[[Any, int], None]) -> Callable[[Any, int], None]:
    def set_hash(self: Any, hash_value: int) -> None:
        if self.identity is not None and self.hash is not None:
            return
        self.hash = hash_value
        self.identity = self.pad_value = self.pad_values = None
        # Where a feature travels, the scheduler reads it first and sets the identity then.
        if not _travels([self.feature, self.precomputed_embeddings, self.model_specific_data]):
            self.set_pad_value()

    return set_hash


def _set(found: Callable[[Any, str, Any], None]) -> Callable[[Any, str, Any], None]:
    def set_(self: Any, key: str, value: Any) -> None:
        # The way of a request's own dict; the engine itself assigns attributes.
        if key not in IDENTITY_FIELDS:
            found(self, key, value)

    return set_


def _from_processor_output(found: Any) -> Any:
    prepare: Callable[..., Any] = found.__func__

    def from_processor_output(obj: Any, **options: Any) -> Any:
        inputs = prepare(obj, **options)
        if inputs.padded_input_ids is not None:
            inputs.padded_input_ids = type(obj).build_padded_input_ids(obj.input_ids, inputs.mm_items)
        return inputs

    return staticmethod(from_processor_output)


def hooks(secret: Secret) -> Iterator[Hook]:
    from sglang.srt.managers.schedule_batch import MultimodalDataItem, MultimodalInputs

    yield MultimodalDataItem, "set_pad_value", _set_pad_value(secret)
    yield MultimodalDataItem, "set_hash", _set_hash
    yield MultimodalDataItem, "set", _set
    yield MultimodalInputs, "from_processor_output", _from_processor_output
