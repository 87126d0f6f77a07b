"""The engine: submit, step, abort. Threads take turns; `LLM` and `AsyncLLM` drive it."""

from __future__ import annotations

import functools
import itertools
import secrets
import threading
import time
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from gpukey._checks import text
from gpukey.engine.batch import Scheduled, build_batch, order, wants_output
from gpukey.engine.config import EngineConfig
from gpukey.engine.keying import Keying
from gpukey.engine.lora import Adapters
from gpukey.engine.model import Runner
from gpukey.engine.prompt import Prompt, checked_ids, checked_spans
from gpukey.engine.request import Request, Status
from gpukey.engine.sampler import logprobs, sample
from gpukey.engine.sampling_params import SamplingParams
from gpukey.engine.scheduler import Scheduler
from gpukey.engine.staging import Staging
from gpukey.engine.stats import EngineStats
from gpukey.engine.text import find_stop, settled
from gpukey.secret import Secret

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def exclusive(
    method: Callable[Concatenate[Engine, Arguments], Result],
) -> Callable[Concatenate[Engine, Arguments], Result]:
    """One thread at a time: two that took half a step each would give one request the other's tokens."""

    @functools.wraps(method)
    def alone(self: Engine, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with self._lock:
            return method(self, *args, **kwargs)

    return alone


class Engine:
    """Continuous batching of requests over one runner.

    A step that raises fails the requests of that forward with the cause; their blocks are given back without keys.
    Nothing of a step is recorded before all of it has worked, so an interrupted step simply runs again.
    """

    def __init__(self, runner: Runner, config: EngineConfig, secret: Secret, tokenizer: Any | None = None) -> None:
        self.runner, self.config, self.tokenizer = runner, config, tokenizer
        self.adapters = Adapters(runner)
        model = dict(runner.identity)
        if config.model_name is not None:
            model["model"] = config.model_name
        self.keying = Keying(config, model, secret)
        self.scheduler = Scheduler(config, self._prepare)
        self.staging = Staging(
            runner.hidden, runner.dtype, runner.device, self.keying if self.keying.keys_rows else None
        )
        self.requests: dict[str, Request] = {}
        self._stats = EngineStats()
        self._arrivals = itertools.count()
        self._lock = threading.RLock()
        runner.allocate(config.num_blocks, config.block_size)

    @property
    def stats(self) -> EngineStats:
        """Counters so far."""
        self._stats.preemptions = self.scheduler.num_preemptions
        self._stats.evictions = self.scheduler.cache.stats.evictions
        self._stats.fingerprint_launches = self.staging.num_launches
        return self._stats

    # --- requests -----------------------------------------------------------------------------------------------------

    @exclusive
    def submit(self, prompt: Prompt, params: SamplingParams, request_id: str | None = None) -> Request:
        """Check everything, snapshot the rows, queue. A wrong prompt raises here, before anything of it is kept."""
        arrived = time.perf_counter()
        ids = checked_ids(prompt.token_ids, self.runner.vocab_size)
        spans = checked_spans(prompt.embeds, len(ids), self.runner.hidden)
        self._check_size(len(ids), params.max_tokens)
        if prompt.cache_salt is not None and not isinstance(prompt.cache_salt, (str, bytes)):
            raise TypeError(f"cache_salt is a {type(prompt.cache_salt).__name__}; text or bytes are needed")
        if params.stop and self.tokenizer is None:
            raise ValueError("stop holds strings; this engine has no tokenizer, so only stop_token_ids can be used")
        self.adapters.check(prompt.lora_name)
        arrival = next(self._arrivals)
        request_id = f"request-{arrival}" if request_id is None else request_id
        if request_id in self.requests:
            raise ValueError(f"request_id is {request_id!r}, which is in use; another is needed")
        request = Request(
            request_id=request_id,
            arrival=arrival,
            prompt_ids=ids,
            spans=[],
            params=params,
            seed=secrets.randbits(64) if params.seed is None else params.seed,
            cache_salt=prompt.cache_salt,
            lora_name=prompt.lora_name,
            items=tuple(prompt.items),
            uncached_reason=None if self.config.prefix_caching else "prefix caching is off (prefix_caching=False)",
        )
        checked = time.perf_counter()
        if request.uncached_reason is None and (not spans or request.items or request.cache_salt is not None):
            # Wrong items and salts must raise here, not in a step that serves others; rows cannot be wrong any more.
            chain = self.keying.chain(request, self.adapters.fields(request.lora_name))
            chain.require_complete()
            request.chain = None if spans else chain
        request.spans = [self.staging.submit(span) for span in spans]
        request.stats.arrival = arrived
        self._stats.keying_seconds += time.perf_counter() - checked
        self.requests[request_id] = request
        self.scheduler.add(request)
        return request

    @exclusive
    def abort(self, request_id: str) -> Request | None:
        """End a request now; None when it is not here (any more)."""
        request = self.requests.get(request_id)
        if request is not None:
            self._finish(request, "abort")
            self._stats.requests_aborted += 1
        return request

    @property
    def has_unfinished(self) -> bool:
        return bool(self.requests)

    # --- steps --------------------------------------------------------------------------------------------------------

    @exclusive
    def step(self) -> list[Request]:
        """One scheduler step: at most one forward an adapter. Returns the requests that got a token or ended."""
        began = time.perf_counter()
        self.staging.launch()
        self._stats.keying_seconds += time.perf_counter() - began
        groups: dict[str | None, list[Scheduled]] = {}
        for request, count in self.scheduler.schedule():
            if request.stats.first_scheduled == 0.0:
                request.stats.first_scheduled = time.perf_counter()
                self._stats.prompt_tokens += len(request.prompt_ids)
                self._stats.cached_tokens += request.num_cached_tokens or 0
            groups.setdefault(request.lora_name, []).append((request, count))
        changed: list[Request] = []
        for adapter, scheduled in groups.items():
            changed += self._run(order(scheduled), adapter)
        if groups:
            self._stats.steps += 1
            self._stats.busy_seconds += time.perf_counter() - began
        return changed

    def _run(self, scheduled: list[Scheduled], adapter: str | None) -> list[Request]:
        sampled = [request for request, count in scheduled if wants_output((request, count))]
        try:
            self._stats.forwards += 1
            batch = build_batch(scheduled, self.config.block_size, self.runner.device)
            logits = self.runner.forward(batch, adapter)
            tokens = sample(logits, sampled) if sampled else []
            logs = logprobs(logits, sampled, tokens) if sampled else []
            self.scheduler.commit(scheduled, self.runner.finite)
        except Exception as error:
            for request, _ in scheduled:
                self._fail(request, error)
            return [request for request, _ in scheduled]
        self._stats.computed_tokens += sum(count for _, count in scheduled)
        for request, token, log in zip(sampled, tokens, logs, strict=True):
            try:
                self._append(request, token, log)
            except Exception as error:  # its text, say: the others have their tokens all the same
                self._fail(request, error)
        return sampled

    def _fail(self, request: Request, error: Exception) -> None:
        request.error = error
        self._finish(request, "error")
        self._stats.requests_failed += 1

    def _append(self, request: Request, token: int, log: dict[int, float] | None) -> None:
        request.output_ids.append(token)
        self._stats.generated_tokens += 1
        if log is not None:
            request.logprobs.append(log)
        if len(request.output_ids) == 1:
            request.stats.first_token = time.perf_counter()
            self._stats.first_tokens += 1
            self._stats.ttft_seconds += request.stats.ttft
        request.extend_chain()
        reason = self._reason_to_stop(request, token)
        if reason is not None:
            self._finish(request, reason)
            self._stats.requests_finished += 1

    def _reason_to_stop(self, request: Request, token: int) -> str | None:
        params, reason = request.params, None
        if token in params.stop_token_ids or (token in self.runner.eos_token_ids and not params.ignore_eos):
            reason = "stop"
        elif len(request.output_ids) == params.max_tokens:
            reason = "length"
        if self.tokenizer is not None:
            decoded = self.tokenizer.decode(request.output_ids, skip_special_tokens=True)
            cut = find_stop(decoded, params.stop)
            if cut is not None:
                decoded, reason = decoded[:cut], "stop"
            elif reason is None:
                decoded = settled(decoded, params.stop)
            request.text = decoded
        return reason

    def _finish(self, request: Request, reason: str) -> None:
        self.scheduler.finish(request)
        request.finish_reason = reason
        request.stats.finished = time.perf_counter()
        del self.requests[request.request_id]

    # --- what the keys depend on --------------------------------------------------------------------------------------

    @exclusive
    def update_weights(self, load: Callable[[Runner], None], version: str | None = None) -> None:
        """Run `load(runner)`, forget every key, and compute the KV of unfinished requests anew under `version` (the
        next number if None).
        """
        if version is None:
            old = self.keying.weights_version
            version = str(int(old) + 1) if old.isdecimal() else f"{old}+1"
        version = text("version", version)
        if version == self.keying.weights_version:
            raise ValueError(f"version is {version!r}, the present one; a version names one set of weights")
        for request in list(self.scheduler.running):
            self.scheduler.preempt(request)
        try:
            load(self.runner)
        finally:
            # Also after a failure: some weights may have been written.
            self.scheduler.cache.reset()
            self.keying.weights_version = version
            for request in self.requests.values():
                request.chain = None

    @exclusive
    def forget(self) -> None:
        """Forget every key, as heavy traffic would."""
        self.scheduler.cache.reset()

    @exclusive
    def load_lora(self, name: str, path: str, *, version: str, scale: float | None = None) -> None:
        """Load a peft adapter; the same name again needs another version and no unfinished request that uses it."""
        self._check_unused(name)
        self.adapters.load(name, path, version=version, scale=scale)

    @exclusive
    def unload_lora(self, name: str) -> None:
        """Forget an adapter that no unfinished request uses."""
        self._check_unused(name)
        self.adapters.unload(name)

    def _check_unused(self, name: str) -> None:
        users = [request.request_id for request in self.requests.values() if request.lora_name == name]
        if users:
            raise ValueError(f"adapter {name!r} is in use by {users}; finish or abort them first")

    def _prepare(self, request: Request) -> None:
        """Give the request its keys, once its fingerprints are home. What cannot be keyed is not cached, and says why."""
        if request.chain is None and request.uncached_reason is None:
            began = time.perf_counter()
            try:
                request.chain = self.keying.chain(request, self.adapters.fields(request.lora_name))
            except Exception as error:
                request.uncached_reason = f"it could not be keyed: {error}"
            self._stats.keying_seconds += time.perf_counter() - began

    def _check_size(self, num_prompt: int, max_tokens: int) -> None:
        """The pool must hold the request alone, and the model must know its positions."""
        total = num_prompt + max_tokens
        needed, has = self.scheduler.blocks_for(total - 1), self.config.num_blocks
        if needed > has:
            raise ValueError(
                f"token_ids has {num_prompt} tokens and max_tokens is {max_tokens}: {needed} blocks are needed, "
                f"the pool has {has}"
            )
        limit = self.runner.max_positions
        if limit is not None and total > limit:
            raise ValueError(
                f"token_ids has {num_prompt} tokens and max_tokens is {max_tokens}; the model knows {limit} positions"
            )

    def check(self) -> None:
        """AssertionError unless the books of cache, scheduler and requests agree; for tests."""
        cache, scheduler = self.scheduler.cache, self.scheduler
        cache.check()
        held = sum(len(request.block_ids) for request in scheduler.running)
        assert held == sum(block.refs for block in cache._blocks), "references that no running request holds"
        queued = [*scheduler.running, *scheduler.waiting]
        assert sorted(r.request_id for r in queued) == sorted(self.requests), "a request is lost or queued twice"
        assert all(r.status is Status.RUNNING for r in scheduler.running), "a running request has another status"
        assert all(not r.block_ids and r.num_computed == 0 for r in scheduler.waiting), "a waiting request holds blocks"
