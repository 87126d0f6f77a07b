"""A request's block keys: one root for each model, adapter and salt, then the chain over its tokens and rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from gpukey.engine.config import EngineConfig
from gpukey.engine.request import Request
from gpukey.engine.staging import Handle
from gpukey.fingerprint import fingerprint_rows
from gpukey.handle import send_home
from gpukey.keys import EmbeddingSpan, KeyChain, Root
from gpukey.secret import Secret


class Keying:
    """`identity="tokens"` leaves the rows out of the keys: blind, for demonstration only."""

    def __init__(self, config: EngineConfig, model: Mapping[str, Any], secret: Secret) -> None:
        self.config, self.model, self.secret = config, model, secret
        self.weights_version = config.weights_version

    @property
    def keys_rows(self) -> bool:
        """Whether rows are fingerprinted at all."""
        return self.config.prefix_caching and self.config.identity == "content"

    def fingerprint(self, rows: torch.Tensor) -> torch.Tensor:
        """uint8 [num_rows, digest_size] on the rows' device."""
        return fingerprint_rows(rows, secret=self.secret, digest_size=self.config.digest_size)

    def stage(self, rows: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Copy rows to `out` and fingerprint what was written, in one pass."""
        size = self.config.digest_size
        key = self.secret.row_key(rows.dtype, rows.shape[1], digest_size=size, device=rows.device)
        digests: torch.Tensor = torch.ops.gpukey.stage_rows(rows, out, key, size)
        return digests

    def send_home(self, digests: torch.Tensor) -> Handle:
        """A handle on the digests; waits for nothing."""
        return send_home(digests)

    def root(self, request: Request, adapter: Mapping[str, Any]) -> Root:
        """Everything that fixes the request's KV besides its tokens and rows; `adapter` has the lora_* fields."""
        return Root(
            **self.model,
            **adapter,
            weights_version=self.weights_version,
            kv_layout="gpukey-engine-1",
            cache_salt=request.cache_salt,
        )

    def chain(self, request: Request, adapter: Mapping[str, Any]) -> KeyChain:
        """Keys of the request's full blocks so far; grows by `append` as tokens are decoded."""
        spans = request.spans if self.keys_rows else []
        embeds = [EmbeddingSpan(span.start, span.fingerprints(), layout=span.layout) for span in spans]
        return KeyChain(
            block_size=self.config.block_size,
            root=self.root(request, adapter),
            secret=self.secret,
            digest_size=self.config.digest_size,
            token_ids=request.prompt_ids + request.output_ids,
            embeds=embeds,
            items=request.items,
        )
