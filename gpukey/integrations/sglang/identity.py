"""Multimodal items by content: 32 bytes over features, dtype, shape, grid and parameters, where the engine keeps 64 bits of features alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from gpukey.integrations.content import content_id
from gpukey.integrations.patches import Hook
from gpukey.secret import Secret, default_secret


def item_identity(item: Any, secret: Secret) -> bytes:
    """32 bytes for `MultimodalDataItem.set_identity`.

    Bound: modality, format, features or precomputed embeddings, and all that the processor put beside them (image_grid_thw, seconds a grid step,
    DeepStack features). A hash that the request brought counts only where there is no content to hash, and then as a name.
    """
    content = {"feature": item.feature, "precomputed_embeddings": item.precomputed_embeddings}
    described = {
        "format": item.format.name,
        "parameters": {name: _local(value) for name, value in item.model_specific_data.items()},
        **{name: _local(value) for name, value in content.items()},
    }
    if all(value is None for value in content.values()):
        if item.hash is None:
            raise ValueError(
                "item has no feature, no precomputed_embeddings and no hash; nothing tells it from another one"
            )
        described["caller's name"] = f"{item.hash:016x}"
    return content_id(described, item.modality.name, secret=secret, name="item")


def _local(value: Any) -> Any:
    """A tensor of this process for one that travels as a handle: CUDA IPC proxies and shared-memory pointers."""
    if isinstance(value, (list, tuple)):
        return [_local(part) for part in value]
    if hasattr(value, "reconstruct_on_target_device"):
        import torch

        return value.reconstruct_on_target_device(torch.cuda.current_device())
    if type(value).__name__ == "ShmPointerMMData":
        return value.tensor
    return value


def _set_pad_value(found: Callable[[Any], None]) -> Callable[[Any], None]:
    def set_pad_value(self: Any) -> None:
        if self.pad_value is None:
            self.set_identity(item_identity(self, default_secret()))

    return set_pad_value


def hooks() -> Iterator[Hook]:
    from sglang.srt.managers.schedule_batch import MultimodalDataItem

    yield MultimodalDataItem, "set_pad_value", _set_pad_value
