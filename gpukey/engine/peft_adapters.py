"""peft adapters in a transformers model: load, switch, scale, delete."""

from __future__ import annotations

import itertools
import json
import os
import warnings
from typing import Any

from gpukey.engine.quiet import quiet


class PeftAdapters:
    """Adapters of one model under names of our own, since peft's may not hold dots and may not be reused at once."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._names: dict[str, str] = {}
        self._serial = itertools.count()
        self._layers: list[Any] = []
        self._active: str | None = None

    def load(self, name: str, path: str, scale: float | None) -> None:
        """Load the adapter directory `path`; `scale` multiplies alpha / rank in every layer."""
        check_adapter(path)
        inner = f"gpukey{next(self._serial)}"
        # transformers and peft wonder at a second adapter, and that the first one's weights are not in its file.
        with quiet(reports=False), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            self._model.load_adapter(path, adapter_name=inner, adapter_kwargs={"local_files_only": True})
        self._model.eval()
        self._names[name] = inner
        self._refresh()
        scaled = [layer for layer in self._layers if inner in getattr(layer, "scaling", {})]
        if not scaled:
            self.delete(name)
            raise ValueError(f"path is {path!r}, which changes no layer of this model")
        for layer in scaled:
            if scale is not None:
                layer.set_scale(inner, scale)

    def delete(self, name: str) -> None:
        """Remove an adapter's weights from the model."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # peft makes another one active, which _refresh undoes
            self._model.delete_adapter(self._names.pop(name))
        self._refresh()

    def use(self, name: str | None) -> None:
        """Make the next forward run with this adapter alone, or with none."""
        inner = None if name is None else self._names[name]
        if inner == self._active:
            return
        for layer in self._layers:
            layer.enable_adapters(inner is not None)
            if inner is not None:
                layer.set_adapter(inner)
        self._active = inner

    def _refresh(self) -> None:
        """After a change of the modules: find peft's layers again, and leave them all off."""
        from peft.tuners.tuners_utils import BaseTunerLayer

        self._layers = [module for module in self._model.modules() if isinstance(module, BaseTunerLayer)]
        for layer in self._layers:
            layer.enable_adapters(False)
        self._active = None


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
