"""vLLM 0.31 to 0.33: prefix-cache keys that see embedding rows, the token/embedding mask, image embeddings and adapter weights.

    GPUKEY_VLLM=1 vllm serve ...                       the plugin, in every process of the server
    gpukey.integrations.vllm.install()                 the same from Python, before the first LLM(...)
    SamplingParams(extra_args=envelope(embeds))        fingerprints made on the GPU or by an encode worker

Without GPUKEY_SECRET each process draws a secret of its own: right for a private cache, refused where keys leave the process (connectors, events).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from gpukey.integrations.patches import Hook, Patches, check_version

if TYPE_CHECKING:
    import torch

    from gpukey.secret import Secret

FIRST, LAST = (0, 31), (0, 33)
SWITCH, PLUGIN = "GPUKEY_VLLM", "gpukey"
_patches = Patches("vLLM")
_switched_on = False


def plugin() -> None:
    """The entry point of `vllm.general_plugins`: installs when GPUKEY_VLLM is 1, does nothing otherwise. vLLM calls it in every process."""
    if os.environ.get(SWITCH) == "1":
        install()


def install() -> bool:
    """Hooks in, also in the engine processes that this one starts. False when already in; RuntimeError for a version that was not checked."""
    global _switched_on
    import vllm

    check_version("vLLM", vllm.__version__, FIRST, LAST)
    _check_reach()
    changed = _patches.install(_hooks, "prompt_embeds, image embeddings and LoRA weights are part of prefix-cache keys")
    if changed and os.environ.get(SWITCH) != "1":
        os.environ[SWITCH] = "1"
        _switched_on = True
    return changed


def uninstall() -> bool:
    """Everything as before `install()`, in this process. False when nothing was in."""
    global _switched_on
    changed = _patches.uninstall()
    if changed and _switched_on:
        del os.environ[SWITCH]
        _switched_on = False
    return changed


def installed() -> bool:
    """Whether the hooks are in, in this process."""
    return _patches.installed


def envelope(embeds: torch.Tensor, *, secret: Secret | None = None) -> dict[str, bytes]:
    """`extra_args` for SamplingParams: the fingerprints of `embeds` [num_rows, hidden], made where it lies, sealed for the engine core.

    The tensor must be the one that goes to vLLM as `prompt_embeds`, with its dtype. An encode worker packs the same with `gpukey.pack`. ValueError
    without a configured secret: the engine core could not open the envelope.
    """
    from gpukey.integrations.vllm.prompt_embeds import seal

    return seal(embeds, secret)


def _check_reach() -> None:
    """RuntimeError where the engine core is another process and would not load the plugin: it would key without the hooks."""
    import vllm.envs as envs

    if not envs.VLLM_ENABLE_V1_MULTIPROCESSING:
        return
    if envs.VLLM_PLUGINS is not None and PLUGIN not in envs.VLLM_PLUGINS:
        raise RuntimeError(
            f"VLLM_PLUGINS leaves out {PLUGIN!r}, so the engine core's process would run without the hooks; add it"
        )
    if PLUGIN not in entry_points(group="vllm.general_plugins").names:
        raise RuntimeError(
            "gpukey is importable but not installed, so the engine core's process cannot find its plugin; pip install it"
        )


def _hooks() -> Iterator[Hook]:
    from gpukey.integrations.vllm import export, lora, multimodal, prompt_embeds

    for part in (prompt_embeds, lora, multimodal, export):
        yield from part.hooks()
