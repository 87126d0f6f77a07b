"""A request inside the engine: its tokens, its rows, and how far its KV has come."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

from gpukey.engine.output import RequestOutput, RequestStats
from gpukey.engine.sampling_params import SamplingParams

if TYPE_CHECKING:
    from gpukey.engine.staging import Wave
    from gpukey.keys import KeyChain, MultimodalItem


class Status(enum.Enum):
    WAITING = enum.auto()
    RUNNING = enum.auto()
    FINISHED = enum.auto()


@dataclass(eq=False)
class StagedSpan:
    """The engine's own snapshot of a span's rows, in the model's dtype on its device, and where its fingerprints will
    be.
    """

    start: int
    rows: torch.Tensor
    layout: bytes
    wave: Wave | None = None
    wave_offset: int = 0

    @property
    def stop(self) -> int:
        return self.start + self.rows.shape[0]

    def ready(self) -> bool:
        """Whether `fingerprints` would not wait."""
        return self.wave is None or self.wave.ready()

    def fingerprints(self) -> np.ndarray:
        """uint8 [num_rows, digest_size]."""
        if self.wave is None:
            raise RuntimeError(f"span at {self.start} has no fingerprints: its engine does not key rows")
        return self.wave.result()[self.wave_offset : self.wave_offset + self.rows.shape[0]]


@dataclass(eq=False)
class Request:
    """`num_computed` tokens have their KV in `block_ids`; the tokens are the prompt and then the output."""

    request_id: str
    arrival: int
    prompt_ids: list[int]
    spans: list[StagedSpan]
    params: SamplingParams
    seed: int
    cache_salt: str | bytes | None = field(default=None, repr=False)
    lora_name: str | None = None
    items: tuple[MultimodalItem, ...] = ()
    uncached_reason: str | None = None

    status: Status = Status.WAITING
    output_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, float]] = field(default_factory=list)
    chain: KeyChain | None = None
    root_key: bytes = b""
    block_ids: list[int] = field(default_factory=list)
    num_computed: int = 0
    num_cached_tokens: int | None = None
    last_step: int = -1
    finish_reason: str | None = None
    error: BaseException | None = None
    text: str | None = None
    stats: RequestStats = field(default_factory=RequestStats)

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_ids) + len(self.output_ids)

    def tokens(self, start: int, stop: int) -> list[int]:
        """Ids at positions start .. stop."""
        num_prompt = len(self.prompt_ids)
        if stop <= num_prompt:
            return self.prompt_ids[start:stop]
        return self.prompt_ids[start:] + self.output_ids[max(start - num_prompt, 0) : stop - num_prompt]

    def extend_chain(self) -> None:
        """Keys of whatever tokens are new; an interrupted call is made up for by the next one."""
        if self.chain is not None and self.chain.num_tokens < self.num_tokens:
            self.chain.append(self.tokens(self.chain.num_tokens, self.num_tokens))

    def ready(self) -> bool:
        """Whether every fingerprint is home."""
        return all(span.ready() for span in self.spans)

    def output(self) -> RequestOutput:
        """A snapshot for the caller."""
        return RequestOutput(
            request_id=self.request_id,
            prompt_token_ids=list(self.prompt_ids),
            token_ids=list(self.output_ids),
            num_cached_tokens=self.num_cached_tokens or 0,
            finish_reason=self.finish_reason,
            text=self.text,
            logprobs=[dict(entry) for entry in self.logprobs] if self.params.logprobs is not None else None,
            error=self.error,
            uncached_reason=self.uncached_reason,
            stats=self.stats,
        )
