"""The async front: one engine thread, any number of `async for` readers."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import torch

from gpukey import streams
from gpukey.engine.llm import IDLE_SECONDS, LLM, PromptLike
from gpukey.engine.output import RequestFailed, RequestOutput
from gpukey.engine.prompt import EmbedSpan, Prompt
from gpukey.engine.request import Request
from gpukey.engine.sampling_params import SamplingParams
from gpukey.engine.stats import EngineStats

Reader = Callable[[RequestOutput | BaseException], None]


class AsyncLLM:
    """AsyncLLM(...): arguments as `LLM`. Use as a context manager, or call `close()`.

    async for out in llm.generate(prompt, SamplingParams(max_tokens=64)):
        print(out.token_ids)
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._llm = LLM(*args, **kwargs)
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._readers: dict[str, Reader] = {}
        self._closed = False
        self._gate = threading.Lock()  # no call is queued behind the last one that runs
        self._thread = threading.Thread(target=self._serve, name="gpukey-engine", daemon=True)
        self._thread.start()

    async def generate(
        self, prompt: PromptLike, sampling_params: SamplingParams | None = None
    ) -> AsyncIterator[RequestOutput]:
        """The output so far after each new token. Leaving the loop or cancelling the task aborts the request."""
        loop, outputs = asyncio.get_running_loop(), asyncio.Queue[RequestOutput | BaseException]()

        def deliver(output: RequestOutput | BaseException) -> None:
            # The reader's loop may be gone by now; then nobody waits for this.
            if not loop.is_closed():
                loop.call_soon_threadsafe(outputs.put_nowait, output)

        submitted = self._submit(prompt, sampling_params or SamplingParams(), deliver)
        try:
            request = await asyncio.wrap_future(submitted)
        except asyncio.CancelledError:
            submitted.add_done_callback(self._drop_result)
            raise
        try:
            while True:
                output = await outputs.get()
                if isinstance(output, BaseException):
                    raise RequestFailed(f"{request.request_id} failed: {output}") from output
                yield output
                if output.finished:
                    return
        finally:
            if not self._closed:
                self._calls.put(lambda: self._drop(request.request_id))

    async def stats(self) -> EngineStats:
        """Counters of the engine so far."""
        return await asyncio.wrap_future(self.call(lambda llm: llm.stats))

    def call(self, function: Callable[[LLM], Any]) -> Future[Any]:
        """Run `function(llm)` between two steps in the engine's thread, e.g. update_weights; a future of its result."""
        future: Future[Any] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(function(self._llm))
            except BaseException as error:
                future.set_exception(error)

        with self._gate:
            if self._closed:
                raise RuntimeError("this AsyncLLM is closed")
            self._calls.put(run)
        return future

    def close(self) -> None:
        """End the engine's thread; readers still waiting get RequestFailed."""
        with self._gate:
            self._closed = True
            self._calls.put(lambda: None)
        self._thread.join()

    def __enter__(self) -> AsyncLLM:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _submit(self, prompt: PromptLike, params: SamplingParams, deliver: Reader) -> Future[Request]:
        # The rows come from this thread's streams, and the engine's thread has its own.
        produced = []
        if isinstance(prompt, Prompt):
            prompt = replace(prompt, embeds=tuple(prompt.embeds))  # it may be read once only
            for span in prompt.embeds:
                for part in (span.rows,) if isinstance(span, EmbedSpan) else span:
                    if isinstance(part, torch.Tensor) and part.is_cuda:
                        produced.append((streams.produced(part), part))

        def submit(llm: LLM) -> Request:
            for event, tensor in produced:
                streams.wait_for(event, tensor)
            request = llm.submit(prompt, params)
            self._readers[request.request_id] = deliver
            return request

        return self.call(submit)

    def _drop_result(self, submitted: Future[Request]) -> None:
        """The reader was cancelled while its request was being submitted."""
        if not submitted.cancelled() and submitted.exception() is None:
            request_id = submitted.result().request_id
            self._calls.put(lambda: self._drop(request_id))

    def _drop(self, request_id: str) -> None:
        self._readers.pop(request_id, None)
        self._llm.engine.abort(request_id)

    def _serve(self) -> None:
        engine, end = self._llm.engine, RuntimeError("the engine was closed")
        try:
            while not self._closed:
                self._run_calls(wait=not engine.has_unfinished)
                if engine.has_unfinished:
                    changed = engine.step()
                    for request in changed:
                        self._deliver(request)
                    if not changed:
                        self._run_calls(wait=True, timeout=IDLE_SECONDS)
        except Exception as error:
            end = RuntimeError(f"the engine's thread ended: {error!r}")
            end.__cause__ = error
        with self._gate:
            self._closed = True
        self._run_calls(wait=False)
        for request_id in list(engine.requests):
            engine.abort(request_id)
        for reader in self._readers.values():
            reader(end)
        self._readers.clear()

    def _run_calls(self, *, wait: bool, timeout: float | None = None) -> None:
        try:
            while True:
                self._calls.get(block=wait, timeout=timeout)()
                wait = False
        except queue.Empty:
            return

    def _deliver(self, request: Request) -> None:
        reader = self._readers.get(request.request_id)
        if reader is None:
            return
        if request.finish_reason is not None:
            del self._readers[request.request_id]
        reader(request.output() if request.error is None else request.error)
