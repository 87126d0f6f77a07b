"""peft adapters in a transformers model: load, switch, scale, delete."""

from __future__ import annotations

import itertools
import json
import os
from typing import Any


class PeftAdapters:
    """Adapters of one model under names of our own, since peft's may not hold dots and may not be reused at once."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._names: dict[str, str] = {}
        self._serial = itertools.count()
        self._active: str | None = None

    def load(self, name: str, path: str, scale: float | None) -> None:
        """Load the adapter directory `path`; `scale` multiplies alpha / rank in every layer."""
        check_adapter(path)
        inner = f"gpukey{next(self._serial)}"
        self._model.load_adapter(path, adapter_name=inner)
        self._model.eval()
        self._active = inner
        self._names[name] = inner
        if scale is not None:
            layers = [module for module in self._model.modules() if inner in getattr(module, "scaling", {})]
            if not layers:
                self.delete(name)
                raise ValueError(f"scale is {scale}; the adapter at {path!r} has no scaled layers")
            for layer in layers:
                layer.set_scale(inner, scale)

    def delete(self, name: str) -> None:
        """Remove an adapter's weights from the model."""
        inner = self._names.pop(name)
        if not self._names:
            self.use(None)
        self._model.delete_adapter(inner)
        self._active = ""

    def use(self, name: str | None) -> None:
        """Make the next forward run with this adapter alone, or with none."""
        if not self._names and name is None and self._active is None:
            return
        inner = None if name is None else self._names[name]
        if inner == self._active:
            return
        if inner is None:
            self._model.disable_adapters()
        else:
            self._model.enable_adapters()
            self._model.set_adapter(inner)
        self._active = inner


def check_adapter(path: str) -> None:
    """ValueError unless `path` holds a LoRA whose effect on a token does not depend on the tokens around it."""
    try:
        with open(os.path.join(path, "adapter_config.json"), encoding="utf-8") as file:
            config = json.load(file)
    except OSError as error:
        raise ValueError(f"path is {path!r}; a directory with a peft adapter_config.json is needed") from error
    if config.get("peft_type") != "LORA":
        raise ValueError(f"path is {path!r}, a {config.get('peft_type')} adapter; LORA is needed")
    if config.get("alora_invocation_tokens"):
        raise ValueError(
            f"path is {path!r}, an activated LoRA; its effect depends on where a token stands in the prompt"
        )
