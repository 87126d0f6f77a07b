"""Keyed fingerprints of embedding rows, computed where the rows live, and prefix-cache keys that see them.

Every public name loads on first use: `import gpukey` starts no CUDA context, and `Secret`, `Root`, `block_keys` and `PrefixCache` work without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "Secret": "gpukey.secret",
    "fingerprint_rows": "gpukey.fingerprint",
    "fingerprint_spans": "gpukey.fingerprint",
    "fingerprint_rows_async": "gpukey.fingerprint",
    "Root": "gpukey.keys",
    "EmbeddingSpan": "gpukey.keys",
    "MultimodalItem": "gpukey.keys",
    "KeyChain": "gpukey.keys",
    "block_keys": "gpukey.keys",
    "item_id": "gpukey.keys",
    "PrefixCache": "gpukey.cache",
    "pack": "gpukey.envelope",
    "unpack": "gpukey.envelope",
}

__all__ = list(_HOME)

if TYPE_CHECKING:
    from gpukey.cache import PrefixCache as PrefixCache
    from gpukey.envelope import pack as pack
    from gpukey.envelope import unpack as unpack
    from gpukey.fingerprint import fingerprint_rows as fingerprint_rows
    from gpukey.fingerprint import fingerprint_rows_async as fingerprint_rows_async
    from gpukey.fingerprint import fingerprint_spans as fingerprint_spans
    from gpukey.keys import EmbeddingSpan as EmbeddingSpan
    from gpukey.keys import KeyChain as KeyChain
    from gpukey.keys import MultimodalItem as MultimodalItem
    from gpukey.keys import Root as Root
    from gpukey.keys import block_keys as block_keys
    from gpukey.keys import item_id as item_id
    from gpukey.secret import Secret as Secret


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'gpukey' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
