"""The weights of an adapter as part of its key: vLLM binds name and path, and says itself that a reload in place keeps stale blocks."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Iterator
from typing import Any

from blake3 import blake3

from gpukey.integrations.patches import Hook
from gpukey.secret import lp


class Versions:
    """lora_version of a LoRARequest: the digest of the adapter's files when they were last loaded.

    A directory that is not there (the worker fetches it) gets a version that no other load has: private, never stale. A worker that drops an
    adapter and reads changed files again without a load request is not seen; load changed weights through vLLM.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[tuple[int, str, str], tuple[object, str]] = {}

    def of(self, lora: Any, *, loads: bool = False) -> str:
        """`loads`: this request makes the worker read the files; so does every one with `load_inplace`."""
        name = (lora.lora_int_id, lora.lora_name, lora.lora_path)
        with self._lock:
            known = self._known.get(name)
            if known is None or loads or lora.load_inplace:
                stamp = _stamp(lora.lora_path)
                if known is None or stamp is None or known[0] != stamp:
                    known = self._known[name] = (stamp, _digest(lora.lora_path) if stamp else secrets.token_hex(16))
            return known[1]


def _files(path: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return sorted((entry for entry in entries if entry.is_file()), key=lambda entry: entry.name)
    except OSError:
        return []


def _stamp(path: str) -> tuple[object, ...] | None:
    """Changes when a file of the adapter is written anew; None where there is nothing to read."""
    stats = [(entry.name, entry.stat()) for entry in _files(path)]
    return tuple((name, s.st_ino, s.st_size, s.st_mtime_ns) for name, s in stats) or None


def _digest(path: str) -> str:
    """BLAKE3 over lp(name) ‖ 32-byte digest of each file, by name; 32 hex digits."""
    whole = blake3()
    for entry in _files(path):
        whole.update(lp(os.fsencode(entry.name)) + blake3().update_mmap(entry.path).digest())
    return whole.hexdigest(16)


def _extra_keys(versions: Versions) -> Callable[[Any], list[tuple[str, str, str, str]]]:
    def extra_keys(request: Any) -> list[tuple[str, str, str, str]]:
        lora = request.lora_request
        if not lora:
            return []
        version = request.__dict__.get("_gpukey_lora_version")
        if version is None:
            version = request._gpukey_lora_version = versions.of(lora)
        return [("lora", lora.lora_name, lora.lora_path, version)]

    return extra_keys


def _add_lora(versions: Versions) -> Callable[[Any], Callable[[Any, Any], Any]]:
    def wrap(found: Any) -> Callable[[Any, Any], Any]:
        def add_lora(self: Any, lora_request: Any) -> Any:
            versions.of(lora_request, loads=True)
            return found(self, lora_request)

        return add_lora

    return wrap


def hooks() -> Iterator[Hook]:
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.engine.core import EngineCore

    versions = Versions()
    keys = _extra_keys(versions)
    yield kv_cache_utils, "_gen_lora_extra_hash_keys", lambda found: keys
    yield EngineCore, "add_lora", _add_lora(versions)
