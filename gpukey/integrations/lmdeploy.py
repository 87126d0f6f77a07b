"""LMDeploy 0.14 to 0.18, PyTorch engine: the prefix trie sees input embeddings as spans `(start, end, fingerprint)`.

    import gpukey.integrations.lmdeploy
    gpukey.integrations.lmdeploy.install()             before the engine starts, in each of its processes

The digest is made where an `InputEmbeddings` is made, at submit; the engine loop only reads it. A text request then no longer takes blocks that were
computed from another request's embeddings, so the Mooncake store connector, which saves text requests by token ids alone, no longer publishes them.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator
from typing import Any

from gpukey.integrations.patches import Hook, Patches, check_version

FIRST, LAST = (0, 14), (0, 18)
MODALITY = "input_embeds"
logger = logging.getLogger("gpukey")
_patches = Patches("LMDeploy")


def install() -> bool:
    """Hooks in. False when already in; RuntimeError for a version that was not checked."""
    from lmdeploy.version import __version__

    version = check_version("LMDeploy", __version__, FIRST, LAST)
    return _patches.install(lambda: _hooks(version), "input embeddings are part of the prefix trie's identity")


def uninstall() -> bool:
    """Everything as before `install()`. False when nothing was in."""
    return _patches.uninstall()


def fingerprint(embeddings: Any) -> str:
    """32 hex digits: the span fingerprint of rows [num_rows, hidden], a tensor on any device or a numpy array."""
    import torch

    from gpukey.fingerprint import fingerprint_spans

    rows = torch.as_tensor(embeddings)
    bounds = torch.tensor([0, rows.shape[0]], device=rows.device)
    return bytes(fingerprint_spans(rows, bounds)[0].tolist()).hex()


def _sealed_init(found: Callable[..., None]) -> Callable[..., None]:
    def __init__(self: Any, embeddings: Any, start: int, end: int) -> None:
        import torch

        # The engine reads this copy, and so does the digest: what the caller writes into its own array later changes neither.
        rows = torch.as_tensor(embeddings).detach().clone(memory_format=torch.contiguous_format)
        if rows.ndim != 2 or rows.shape[0] != end - start:
            raise ValueError(
                f"embeddings has shape {list(rows.shape)}; {end - start} rows are needed for the span [{start}, {end})"
            )
        found(self, rows, start, end)
        self._gpukey = (rows, fingerprint(rows))

    return __init__


def _identity(span: Any) -> str:
    rows, digest = getattr(span, "_gpukey", (None, ""))
    if rows is not None and rows is span.embeddings and rows.shape[0] == span.end - span.start:
        return str(digest)
    logger.warning(
        "gpukey: embeddings of span [%d, %d) were exchanged after submit; its blocks are not reused",
        span.start,
        span.end,
    )
    return secrets.token_hex(16)


def _update_embeddings(version: tuple[int, int]) -> Callable[[Any], Callable[[Any, Any], None]]:
    record = _record_metas if version < (0, 16) else _record_spans

    def wrap(found: Any) -> Callable[[Any, Any], None]:
        def update_embeddings(self: Any, embeddings: Any) -> None:
            found(self, embeddings)
            if embeddings and _caches_prefixes(self):
                # The original has moved the spans to the positions at which the engine puts the rows.
                record(self.prefix_cache, embeddings)

        return update_embeddings

    return wrap


def _caches_prefixes(sequence: Any) -> bool:
    known = getattr(sequence._seq_meta, "enable_prefix_caching", None)
    return bool(sequence.session.scheduler.cache_config.enable_prefix_caching if known is None else known)


def _record_spans(state: Any, embeddings: list[Any]) -> None:
    from lmdeploy.pytorch.prefix_cache_state import MultimodalSpan

    state.multimodal_spans.extend(MultimodalSpan(e.start, e.end, MODALITY, _identity(e)) for e in embeddings)


def _record_metas(state: Any, embeddings: list[Any]) -> None:
    from lmdeploy.pytorch.messages import PrefixCacheMeta

    state.metas.extend(PrefixCacheMeta(e.start, e.end, MODALITY, _identity(e)) for e in embeddings)


def _hooks(version: tuple[int, int]) -> Iterator[Hook]:
    from lmdeploy.pytorch import messages

    yield messages.InputEmbeddings, "__init__", _sealed_init
    yield messages.SchedulerSequence, "_update_embeddings", _update_embeddings(version)
