"""LoRA adapters: which are loaded, under which version and scale. All three are in the keys."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from gpukey._checks import text


@dataclass(frozen=True)
class Adapter:
    """One set of adapter weights; `scale` multiplies the adapter's own alpha / rank, None leaves it as it is."""

    name: str
    version: str
    scale: float | None


class Adapters:
    """Registry over a runner that has `load_adapter(name, path, scale)` and `delete_adapter(name)`."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self._loaded: dict[str, Adapter] = {}
        self._versions: dict[str, set[tuple[str, float | None]]] = {}

    def load(self, name: str, path: str, *, version: str, scale: float | None = None) -> None:
        """Load or replace; a version and scale that this name had before are refused, since they name one set of
        weights.
        """
        name, version = text("name", name), text("version", version)
        if not name:
            raise ValueError("name is empty; the adapter needs one")
        if scale is not None and (isinstance(scale, bool) or not isinstance(scale, (int, float))):
            raise TypeError(f"scale is a {type(scale).__name__}; a number is needed")
        if scale is not None and not math.isfinite(scale):
            raise ValueError(f"scale is {scale}; a finite number is needed")
        scale = None if scale is None else float(scale)
        seen = self._versions.setdefault(name, set())
        if (version, scale) in seen:
            raise ValueError(
                f"version is {version!r}, which {name!r} had before at this scale; a new version is needed"
            )
        if not hasattr(self._runner, "load_adapter"):
            raise ValueError(f"name is {name!r}; this runner serves no adapters")
        if name in self._loaded:
            self.unload(name)
        self._runner.load_adapter(name, path, scale)
        seen.add((version, scale))
        self._loaded[name] = Adapter(name, version, scale)

    def unload(self, name: str) -> None:
        """Forget an adapter."""
        self.check(name)
        del self._loaded[name]
        self._runner.delete_adapter(name)

    def check(self, name: str | None) -> None:
        """ValueError unless `name` is loaded or None."""
        if name is not None and text("lora_name", name) not in self._loaded:
            raise ValueError(f"lora_name is {name!r}; loaded are {sorted(self._loaded)}")

    def fields(self, name: str | None) -> dict[str, Any]:
        """The root fields of an adapter, none for the bare model."""
        if name is None:
            return {}
        adapter = self._loaded[name]
        fields: dict[str, Any] = {"lora_name": adapter.name, "lora_version": adapter.version}
        return fields if adapter.scale is None else {**fields, "lora_scale": adapter.scale}
