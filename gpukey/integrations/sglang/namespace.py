"""Adapters apart from `extra_key`: the engine joins the two strings, so that an adapter's id in a caller's extra_key is that adapter's namespace."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from gpukey.integrations.patches import Hook


def typed(extra_key: str | None, lora_id: str | None) -> str | None:
    """One string that tells every pair apart; None for neither. The adapter's id stays last, where the engine's events look for it."""
    if lora_id is not None:
        extra_key = extra_key or ""
        return f"lora {len(extra_key)}:{extra_key}{lora_id}"
    return None if extra_key is None else f"key {len(extra_key)}:{extra_key}"


def _init(found: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(found)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        found(self, *args, **kwargs)
        joined, lora_id = self.extra_key, self.lora_id
        if lora_id is None:
            self.extra_key = typed(joined, None)
        elif joined is not None and joined.endswith(lora_id):
            self.extra_key = typed(joined.removesuffix(lora_id), lora_id)
        else:
            raise RuntimeError("Req.extra_key does not end with its lora_id; gpukey's hook does not fit this SGLang")

    return __init__


def hooks() -> Iterator[Hook]:
    from sglang.srt.managers.schedule_batch import Req

    yield Req, "__init__", _init
