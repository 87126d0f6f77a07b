"""What the engine has done so far."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class EngineStats:
    """Counters since the engine was made; tokens count once for each time that they ran or were found cached."""

    steps: int = 0
    forwards: int = 0
    requests_finished: int = 0
    requests_failed: int = 0
    requests_aborted: int = 0
    prompt_tokens: int = 0  # of admitted requests, at first admission
    cached_tokens: int = 0  # of them, found in the prefix cache
    computed_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    evictions: int = 0
    fingerprint_launches: int = 0
    busy_seconds: float = 0.0
    ttft_seconds: float = 0.0  # summed over requests with a first token
    first_tokens: int = 0
    keying_seconds: float = 0.0  # snapshots, fingerprints and keys, on the host's clock

    @property
    def hit_rate(self) -> float:
        """Share of prompt tokens found in the prefix cache."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens a second of the engine's busy time."""
        return self.generated_tokens / self.busy_seconds if self.busy_seconds else 0.0

    @property
    def mean_ttft(self) -> float:
        """Mean seconds from submit to the first token."""
        return self.ttft_seconds / self.first_tokens if self.first_tokens else 0.0
