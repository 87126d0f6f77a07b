"""Refusals at start-up: keys that leave the process need a configured secret, and a store that ignores rows must not see them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from gpukey.integrations.patches import Hook
from gpukey.secret import default_secret

PRIVATE_CONNECTORS = {"SimpleCPUOffloadConnector", "DecodeBenchConnector"}
"""Connectors whose blocks never leave this process."""
TOKEN_CONNECTORS = {"LMCacheConnectorV1", "LMCacheMPConnector", "HF3FSKVConnector", "ExampleConnector"}
"""Connectors that key blocks by token ids of their own accord: two prompts of embeddings would be one."""


def check(config: Any) -> None:
    """ValueError, with what to change, when `config` exports keys that would be wrong or could never match."""
    connectors = _connectors(config)
    blind = TOKEN_CONNECTORS.intersection(connectors)
    if blind and config.model_config.enable_prompt_embeds:
        raise ValueError(
            f"kv_connector is {sorted(blind)[0]}, which keys blocks by token ids alone; with enable_prompt_embeds it would reuse one prompt's "
            "blocks for another: turn one of the two off"
        )
    if default_secret().is_random:
        for what in _exports(config, connectors):
            raise ValueError(
                f"{what} shares keys between processes, and each process drew a secret of its own; set GPUKEY_SECRET_FILE for all of them "
                "(`gpukey keygen` makes a secret)"
            )


def _connectors(config: Any) -> list[str]:
    transfer = config.kv_transfer_config
    if transfer is None or transfer.kv_connector is None:
        return []
    inner = (transfer.kv_connector_extra_config or {}).get("connectors", [])
    return [transfer.kv_connector, *(one.get("kv_connector", "") for one in inner)]


def _exports(config: Any, connectors: list[str]) -> Iterator[str]:
    for connector in connectors:
        if connector not in PRIVATE_CONNECTORS | {"MultiConnector"}:
            yield f"kv_connector {connector}"
    events = config.kv_events_config
    if events is not None and events.enable_kv_cache_events:
        yield "kv_events_config"
    if config.ec_transfer_config is not None:
        yield "ec_transfer_config"


def _init(found: Callable[..., None]) -> Callable[..., None]:
    def __init__(self: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        check(vllm_config)
        found(self, vllm_config, *args, **kwargs)

    return __init__


def hooks() -> Iterator[Hook]:
    # EngineCore loads the plugins inside its own __init__; its scheduler is made after that and has the whole configuration.
    from vllm.v1.core.sched.scheduler import Scheduler

    yield Scheduler, "__init__", _init
