"""A request's block keys: one root for each model, adapter and salt, then the chain over its tokens and rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from gpukey.engine.config import EngineConfig
from gpukey.engine.request import Request
from gpukey.engine.staging import Handle
from gpukey.fingerprint import fingerprint_rows_async
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

    def fingerprint(self, rows: torch.Tensor) -> Handle:
        """One launch for all of `rows`, which come home on their own."""
        handle: Handle = fingerprint_rows_async(rows, secret=self.secret, digest_size=self.config.digest_size)
        return handle

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
