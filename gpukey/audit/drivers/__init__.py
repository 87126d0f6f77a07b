"""One module an engine, each with `create(options) -> Driver`; imported only when it is asked for."""

from __future__ import annotations

import importlib
from typing import cast

from gpukey.audit.protocol import Driver, Options

ENGINES = ("gpukey", "vllm", "lmdeploy")


def create(options: Options) -> Driver:
    """The driver of `options.engine`; ValueError for an unknown one, RuntimeError where the engine is not installed."""
    if options.engine not in ENGINES:
        raise ValueError(f"engine is {options.engine!r}; one of {', '.join(ENGINES)} is needed")
    if options.identity != "content" and options.engine != "gpukey":
        raise ValueError(f"identity is {options.identity!r}; {options.engine} keys as it does, see --no-plugin")
    try:
        module = importlib.import_module(f"{__name__}.{options.engine}")
        return cast(Driver, module.create(options))
    except ImportError as error:
        ours = "; pip install 'gpukey[engine]' brings it" if options.engine == "gpukey" else ""
        raise RuntimeError(f"engine {options.engine!r} cannot be driven here: {error}{ours}") from error
