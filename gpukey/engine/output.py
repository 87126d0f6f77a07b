"""What a request gives back."""

from __future__ import annotations

from dataclasses import dataclass, field


class RequestFailed(RuntimeError):
    """A request's forward raised; `__cause__` is what it raised."""


@dataclass
class RequestStats:
    """Times are seconds on time.perf_counter; 0.0 until known."""

    arrival: float = 0.0
    first_scheduled: float = 0.0
    first_token: float = 0.0
    finished: float = 0.0
    num_preemptions: int = 0

    @property
    def ttft(self) -> float:
        """Seconds from submit to the first token."""
        return self.first_token - self.arrival


@dataclass
class RequestOutput:
    """`token_ids` so far (all of them once `finish_reason` is set: stop, length, abort or error).

    `num_cached_tokens` counts prompt tokens whose KV came from the prefix cache at first admission. `uncached_reason`
    says why nothing of the request is cached, where that is so. `logprobs` has one {token id: log probability} a token
    when asked for.
    """

    request_id: str
    prompt_token_ids: list[int]
    token_ids: list[int]
    num_cached_tokens: int = 0
    finish_reason: str | None = None
    text: str | None = None
    logprobs: list[dict[int, float]] | None = None
    error: BaseException | None = None
    uncached_reason: str | None = None
    stats: RequestStats = field(default_factory=RequestStats)

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None
