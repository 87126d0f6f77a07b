"""Random schedules: requests that look alike, in pools and budgets that hurt, with aborts and preemptions. One seed
gives one schedule.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from gpukey.engine import EngineConfig, Prompt, SamplingParams
from gpukey.engine.core import Engine
from gpukey.engine.request import Request
from gpukey.secret import Secret

BUDGETS = (1, 2, 3, 4, 5, 7, 64)
SECRET = Secret(b"schedules of the engine's tests!")
ADAPTERS = ("x", "y")


@dataclass(frozen=True)
class Spec:
    """One request: what it asks, when it comes, and at which step of its life it is aborted, if ever."""

    ids: tuple[int, ...]
    spans: tuple[tuple[int, int, int], ...]  # start, number of rows, number of the content
    salt: str | None
    lora: str | None
    params: SamplingParams
    arrives: int = field(compare=False)
    aborted: int | None = field(compare=False)

    def identity(self) -> Any:
        """What its output depends on."""
        return self.ids, self.spans, self.lora, self.params


@dataclass
class Schedule:
    seed: int
    config: EngineConfig
    specs: list[Spec]
    preempt_rate: float
    slow_fingerprints: bool


def content(number: int, count: int, hidden: int) -> torch.Tensor:
    """Rows of a numbered content. 2k + 1 is 2k with a sign or a bit changed in its last row only."""
    rows = np.random.Generator(np.random.Philox(key=number // 2)).standard_normal((count, hidden))
    if number % 2:
        rows[-1] *= -1
    return torch.from_numpy(rows).float().double()


def make(seed: int, vocab_size: int, *, max_requests: int = 32, adapters: bool = True) -> Schedule:
    """The schedule of a seed."""
    rng = random.Random(seed)
    block_size = rng.choice((1, 2, 3, 4, 8))
    texts = [tuple(rng.randrange(vocab_size) for _ in range(28)) for _ in range(rng.choice((1, 1, 2)))]
    specs = [_spec(rng, texts, vocab_size, adapters) for _ in range(rng.randint(3, rng.choice((6, 12, max_requests))))]
    least = max(-(-(len(spec.ids) + spec.params.max_tokens - 1) // block_size) for spec in specs)
    config = EngineConfig(
        block_size=block_size,
        num_blocks=least + rng.choice((0, 1, 2, least, 4 * least, 10 * least, 10 * least)),
        max_num_batched_tokens=BUDGETS[seed % len(BUDGETS)],
        max_num_seqs=rng.choice((1, 2, 4, 64)),
    )
    return Schedule(seed, config, specs, rng.choice((0.0, 0.0, 0.1)), rng.random() < 0.3)


def _spec(rng: random.Random, texts: list[tuple[int, ...]], vocab_size: int, adapters: bool) -> Spec:
    length = rng.randint(1, 28)
    ids = list(rng.choice(texts)[:length])
    if rng.random() < 0.1:
        ids[rng.randrange(length)] = rng.randrange(vocab_size)
    spans = []
    if rng.random() < 0.7:
        # Starts and lengths from few values, so that ids and places coincide and only contents differ.
        start = min(rng.choice((0, 4, 6)), length - 1)
        count = min(rng.choice((3, 8, 28)), length - start)
        spans.append((start, count, rng.choice((0, 0, 1, 2, 3))))
        if start + count < length and rng.random() < 0.5:
            spans.append((start + count, min(2, length - start - count), rng.randrange(4)))
    sampled = rng.random() < 0.25
    return Spec(
        ids=tuple(ids),
        spans=tuple(spans),
        salt=rng.choice((*[None] * 8, "x", "y")),
        lora=rng.choice((*[None] * 8, *ADAPTERS)) if adapters else None,
        params=SamplingParams(
            max_tokens=rng.randint(1, 9),
            temperature=0.8 if sampled else 0.0,
            top_p=rng.choice((1.0, 0.9)) if sampled else 1.0,
            seed=rng.randrange(3) if sampled else None,
            stop_token_ids=(rng.randrange(vocab_size),),
        ),
        arrives=rng.choice((0, rng.randint(0, 60))),
        aborted=rng.randint(0, 12) if rng.random() < 0.1 else None,
    )


def prompt(spec: Spec, hidden: int) -> Prompt:
    """The request as a caller makes it."""
    embeds = [(start, content(number, count, hidden)) for start, count, number in spec.spans]
    # Some as float32, which the engine casts: its staging has another path for them. The values are exact in both.
    embeds = [(start, rows.float() if start else rows) for start, rows in embeds]
    return Prompt(spec.ids, embeds, cache_salt=spec.salt, lora_name=spec.lora)


class SlowHandle:
    """A fingerprint that needs a while to come home."""

    def __init__(self, handle: Any, polls: int) -> None:
        self.handle, self.polls = handle, polls

    def ready(self) -> bool:
        self.polls -= 1
        return self.polls < 0

    def result(self) -> Any:
        assert self.polls < 0, "the engine waited for a fingerprint that was not ready"
        return self.handle.result()


def run(schedule: Schedule, engine: Engine, *, check: bool = True) -> list[Request]:
    """Drive the engine through the schedule; the requests in the order of its specs."""
    rng = random.Random(schedule.seed + 1)
    if schedule.slow_fingerprints:
        send_home = engine.keying.send_home
        engine.keying.send_home = lambda digests: SlowHandle(send_home(digests), rng.randint(0, 6))
    requests: list[Request | None] = [None] * len(schedule.specs)
    for step in range(100_000):
        for i, spec in enumerate(schedule.specs):
            if spec.arrives == step:
                requests[i] = engine.submit(prompt(spec, engine.runner.hidden), spec.params)
        for request, spec in zip(requests, schedule.specs, strict=True):
            if request is not None and spec.aborted is not None and step - spec.arrives == spec.aborted:
                engine.abort(request.request_id)
        if engine.scheduler.running and rng.random() < schedule.preempt_rate:
            engine.scheduler.preempt(rng.choice(engine.scheduler.running))
        engine.step()
        if check:
            engine.check()
        if all(requests) and not engine.has_unfinished:
            return [request for request in requests if request is not None]
    raise AssertionError(f"schedule {schedule.seed} does not end")


def differences(
    schedule: Schedule,
    make_engine: Callable[[EngineConfig], Engine],
    *,
    check: bool = True,
    memo: dict[Any, list[int]] | None = None,
) -> list[str]:
    """Requests whose tokens are not those of the same request alone on a fresh engine (aborted ones: not a beginning of
    them).
    """
    memo = {} if memo is None else memo
    requests = run(schedule, make_engine(schedule.config), check=check)
    wrong = []
    for i, (spec, request) in enumerate(zip(schedule.specs, requests, strict=True)):
        if spec.identity() not in memo:
            fresh = make_engine(EngineConfig(num_blocks=64, block_size=4, max_num_batched_tokens=64))
            alone = fresh.submit(prompt(spec, fresh.runner.hidden), spec.params)
            while fresh.has_unfinished:
                fresh.step()
            memo[spec.identity()] = alone.output_ids
        want = memo[spec.identity()]
        if request.finish_reason == "abort":
            want = want[: len(request.output_ids)]
        if request.output_ids != want or request.error is not None:
            wrong.append(f"seed {schedule.seed}, request {i}: {request.output_ids} is not {want} ({request.error!r})")
    return wrong
