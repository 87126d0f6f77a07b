"""Text of decoded tokens, and stop strings in it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any


def load_tokenizer(model: Any) -> Any | None:
    """The tokenizer in a model directory, or None where there is none."""
    if not isinstance(model, (str, os.PathLike)):
        return None
    if not any(os.path.exists(os.path.join(model, name)) for name in ("tokenizer.json", "tokenizer_config.json")):
        return None
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(os.fspath(model), local_files_only=True)


def find_stop(text: str, stops: Sequence[str]) -> int | None:
    """Where the earliest stop string begins."""
    found = [place for place in (text.find(stop) for stop in stops) if place >= 0]
    return min(found) if found else None


def settled(text: str, stops: Sequence[str]) -> str:
    """Unfinished text less what later tokens may change: half a stop string, half a character."""
    text = text.rstrip("\ufffd")
    held = 0
    for stop in stops:
        for size in range(min(len(stop) - 1, len(text)), 0, -1):
            if text.endswith(stop[:size]):
                held = max(held, size)
                break
    return text[: len(text) - held]
