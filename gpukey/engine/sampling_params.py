"""How a request's tokens are chosen and when it ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpukey._checks import integer
from gpukey.engine.checks import as_number


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """Greedy at temperature 0 (the default). A seeded request draws the same tokens in any batch and after any
    preemption.

    `top_k` 0 and `top_p` 1 keep every token. `stop_token_ids` end the request and stay in its tokens; `stop` strings
    need a tokenizer and are cut off its text. The model's own end-of-sequence ids stop too, unless `ignore_eos`.
    `logprobs=n` returns the chosen token's log probability and the n best, from the raw logits.
    """

    max_tokens: int = 16
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop_token_ids: Sequence[int] = ()
    stop: Sequence[str] | str = ()
    ignore_eos: bool = False
    logprobs: int | None = None

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "max_tokens", integer("max_tokens", self.max_tokens, 1))
        put(self, "temperature", as_number("temperature", self.temperature, low=0.0))
        put(self, "top_p", as_number("top_p", self.top_p, low=0.0, high=1.0))
        if self.top_p == 0.0:
            raise ValueError("top_p is 0; a number above 0 and at most 1 is needed")
        put(self, "top_k", integer("top_k", self.top_k))
        if self.seed is not None:
            put(self, "seed", integer("seed", self.seed, most=2**64 - 1))
        if self.logprobs is not None:
            put(self, "logprobs", integer("logprobs", self.logprobs))
        put(self, "stop_token_ids", frozenset(integer("stop_token_ids", i) for i in self.stop_token_ids))
        stops = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        for text in stops:
            if not isinstance(text, str) or not text:
                raise ValueError(f"stop holds {text!r}; non-empty strings are needed")
        put(self, "stop", stops)
