"""Block keys of `prompt_embeds`: rows are fingerprinted once a request, then any range that the engine asks for is combined from them."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from gpukey.envelope import pack, unpack
from gpukey.fingerprint import fingerprint_rows
from gpukey.integrations.patches import Hook
from gpukey.secret import Secret, default_secret, keyed_hash

FIELD = "gpukey"
"""The key in SamplingParams.extra_args. Only bytes count: JSON, and with it `vllm_xargs`, cannot carry them."""
DIGEST_SIZE = 16


@dataclass(frozen=True)
class Rows:
    """What stands under a request's embeddings: fingerprints, the mask, and the key that folds a run of them."""

    fingerprints: bytes
    span_key: bytes
    token_mask: list[bool] | None

    def overlay(self, start: int, end: int) -> bytes:
        """Runs of replaced positions in start..end, each `u32 start ‖ u32 count ‖ span fingerprint`; empty where only tokens stand."""
        end = min(end, len(self.fingerprints) // DIGEST_SIZE)
        out = []
        for first, last in self._runs(start, end):
            rows = self.fingerprints[first * DIGEST_SIZE : last * DIGEST_SIZE]
            out.append(struct.pack("<II", first - start, last - first) + keyed_hash(self.span_key, rows, DIGEST_SIZE))
        return b"".join(out)

    def _runs(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        mask = self.token_mask
        if mask is None:
            if start < end:
                yield start, end
            return
        position = start
        while position < end:
            first = position
            while position < end and not mask[position]:
                position += 1
            if first < position:
                yield first, position
            position += 1


def rows_of(request: Any) -> Rows:
    """The request's rows, made on first use and kept on the request itself."""
    rows = request.__dict__.get("_gpukey_rows")
    if rows is None:
        rows = request._gpukey_rows = _read(request)
    assert isinstance(rows, Rows)
    return rows


def extra_keys(request: Any, start_token_idx: int, end_token_idx: int) -> list[tuple[str, bytes]]:
    """Replaces `_gen_prompt_embeds_extra_hash_keys`; ranges may pass the rows' end and may be asked for again at another block size."""
    if request.prompt_embeds is None:
        return []
    kept = request._prompt_embeds_per_block_hashes
    block_range = (start_token_idx, end_token_idx)
    overlay = kept.get(block_range)
    if overlay is None:
        overlay = kept[block_range] = rows_of(request).overlay(start_token_idx, end_token_idx)
    return [("prompt_embeds", overlay)] if overlay else []


def seal(embeds: torch.Tensor, secret: Secret | None) -> dict[str, bytes]:
    """`extra_args` with the fingerprints of `embeds`; ValueError for a random secret, which the engine core cannot know."""
    secret = (default_secret() if secret is None else secret).require_configured()
    rows = fingerprint_rows(embeds, secret=secret, digest_size=DIGEST_SIZE).cpu()
    return {FIELD: pack(rows, secret=secret, dtype=embeds.dtype, hidden=embeds.shape[1])}


def _read(request: Any) -> Rows:
    secret, embeds, mask = default_secret(), request.prompt_embeds, request.prompt_is_token_ids
    if mask is not None and len(mask) != len(embeds):
        raise ValueError(f"prompt_is_token_ids has {len(mask)} positions; prompt_embeds has {len(embeds)} rows")
    if not _engine_core_is_elsewhere():
        # The tensor is the caller's own here: key and run what stands in it now, whatever is written to it later.
        embeds = request.prompt_embeds = embeds.detach().clone(memory_format=torch.contiguous_format)
        mask = request.prompt_is_token_ids = None if mask is None else list(mask)
    sealed = _sealed(request)
    if sealed is None:
        fingerprints = fingerprint_rows(embeds, secret=secret, digest_size=DIGEST_SIZE).numpy().tobytes()
    else:
        fingerprints = _open(sealed, secret, embeds)
    return Rows(fingerprints, secret.host_key("span", str(embeds.dtype), embeds.shape[1], DIGEST_SIZE), mask)


def _sealed(request: Any) -> bytes | None:
    extra = getattr(request.sampling_params, "extra_args", None) or {}
    sealed = extra.get(FIELD)
    return sealed if type(sealed) is bytes else None


def _open(sealed: bytes, secret: Secret, embeds: torch.Tensor) -> bytes:
    """The fingerprints of an envelope for just these rows; ValueError, which ends the request, for any other."""
    opened = unpack(sealed, secret=secret, dtype=embeds.dtype, hidden=embeds.shape[1])
    if opened.rows.shape != (len(embeds), DIGEST_SIZE):
        raise ValueError(
            f"extra_args[{FIELD!r}] holds {len(opened.rows)} fingerprints of {opened.digest_size} bytes; "
            f"{len(embeds)} of {DIGEST_SIZE} are needed for prompt_embeds"
        )
    return opened.rows.tobytes()


def _engine_core_is_elsewhere() -> bool:
    import vllm.envs as envs

    return bool(envs.VLLM_ENABLE_V1_MULTIPROCESSING)


def _from_engine_core_request(found: Any) -> Any:
    original: Callable[..., Any] = found.__func__

    def from_engine_core_request(cls: type, request: Any, block_hasher: Any) -> Any:
        made = original(cls, request, block_hasher)
        if made.prompt_embeds is not None:
            # Also for a prompt shorter than a block: it is first keyed in decode, where an error would stop the engine, not the request.
            rows_of(made)
        return made

    return classmethod(from_engine_core_request)


def hooks() -> Iterator[Hook]:
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.request import Request

    yield kv_cache_utils, "_gen_prompt_embeds_extra_hash_keys", lambda found: extra_keys
    yield Request, "from_engine_core_request", _from_engine_core_request
