"""SGLang 0.5.23: radix-cache identities that see content, dtype, grid and processing parameters, and adapters apart from `extra_key`.

    GPUKEY_SGLANG=1 python -m sglang.launch_server ...     the plugin, in every process of the server
    gpukey.integrations.sglang.install()                   the same from Python, before the engine starts
    wide_ids(token_ids, embeds, ...)                       ids for a RadixKey in which each replaced row is one 63-bit token

Every rank keys what it receives without an identity, so a secret drawn by each process would split them: a configured one is required, and ranks
compare key ids when they start. With --enable-broadcast-mm-inputs-process, or SGLANG_MM_PRECOMPUTE_HASH=1, one process hashes and the ranks read
its identity.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from gpukey.integrations.patches import Hook, Patches
from gpukey.integrations.sglang.wide import wide_ids
from gpukey.secret import Secret

__all__ = ["install", "plugin", "uninstall", "wide_ids"]

SWITCH = "GPUKEY_SGLANG"
SUPPORTED = ("0.5.23",)
_patches = Patches("SGLang")


def plugin() -> None:
    """The entry point of `sglang.srt.plugins`: installs when GPUKEY_SGLANG is 1, does nothing otherwise."""
    if os.environ.get(SWITCH) != "1":
        return
    try:
        install()
    except Exception as error:
        # SGLang logs a plugin's exception and serves on without it; whoever asked for the keys must not be served without them.
        raise SystemExit(f"{SWITCH} is 1 and gpukey could not install: {error}") from error


def install() -> bool:
    """Hooks in. False when already in; RuntimeError for a version that was not checked; ValueError without a configured secret."""
    import sglang

    if sglang.__version__ not in SUPPORTED:
        raise RuntimeError(
            f"gpukey's hooks for SGLang were checked with {', '.join(SUPPORTED)}; {sglang.__version__} is installed"
        )
    secret = Secret.from_env()
    return _patches.install(
        lambda: _hooks(secret),
        "multimodal items are known by content, grid and parameters; adapters are typed in extra_key",
    )


def uninstall() -> bool:
    """Everything as before `install()`, in this process. False when nothing was in."""
    return _patches.uninstall()


def _hooks(secret: Secret) -> Iterator[Hook]:
    from gpukey.integrations.sglang import identity, namespace, ranks

    yield from identity.hooks(secret)
    yield from namespace.hooks()
    yield from ranks.hooks(secret)
