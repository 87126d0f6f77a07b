"""The offline front: a list of prompts in, a list of outputs out."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from gpukey.device_keys import dtype_named, usable_device
from gpukey.engine.config import EngineConfig
from gpukey.engine.core import Engine
from gpukey.engine.model import Runner, TransformersRunner
from gpukey.engine.output import RequestFailed, RequestOutput
from gpukey.engine.prompt import Prompt
from gpukey.engine.request import Request
from gpukey.engine.sampling_params import SamplingParams
from gpukey.engine.stats import EngineStats
from gpukey.engine.text import load_tokenizer
from gpukey.secret import Secret, resolve

log = logging.getLogger(__name__)

PromptLike = Prompt | Sequence[int] | str
IDLE_SECONDS = 50e-6
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class LLM:
    """LLM(model=None, *, dtype=None, device="cpu", secret=None, config=None, **options).

    `model`: None for a tiny random Qwen2, a directory in Hugging Face layout, a transformers module (the engine takes
    it over: its attention then belongs to the engine), or a `Runner`. `options` are the fields of `EngineConfig`, in
    place of `config`.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | torch.nn.Module | Runner | None = None,
        *,
        dtype: torch.dtype | str | None = None,
        device: torch.device | str = "cpu",
        secret: Secret | None = None,
        config: EngineConfig | None = None,
        **options: Any,
    ) -> None:
        if config is not None and options:
            raise TypeError(f"config and {sorted(options)} are both given; one of the two is needed")
        self.config = EngineConfig(**options) if config is None else config
        if self.config.identity == "tokens":
            log.warning(
                "identity='tokens' is blind to embeddings: it reuses wrong KV on purpose, for demonstration only"
            )
        dtype = None if dtype is None else dtype_named(dtype)
        if dtype is not None and dtype not in DTYPES:
            raise ValueError(f"dtype is {dtype}; {', '.join(map(str, DTYPES))} is needed")
        is_runner = hasattr(model, "forward") and hasattr(model, "allocate")
        runner: Any = model if is_runner else TransformersRunner(model, dtype=dtype, device=usable_device(device))
        self.tokenizer = load_tokenizer(model)
        self.engine = Engine(runner, self.config, resolve(secret), self.tokenizer)

    @property
    def stats(self) -> EngineStats:
        """Counters of the engine so far."""
        return self.engine.stats

    def generate(
        self,
        prompts: PromptLike | Sequence[PromptLike],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        return_errors: bool = False,
    ) -> list[RequestOutput]:
        """All outputs, in the order of the prompts: lists of ids, `Prompt`s, or text where the model has a tokenizer.

        A forward that raised ends its requests: `RequestFailed` after the others are done, or their `error` with
        `return_errors`.
        """
        requests = self._submit_all(as_prompts(prompts), sampling_params)
        try:
            while not all(request.finish_reason for request in requests):
                if not self.engine.step():
                    time.sleep(IDLE_SECONDS)
        except BaseException:
            for request in requests:
                self.engine.abort(request.request_id)
            raise
        for request in requests:
            if request.error is not None and not return_errors:
                raise RequestFailed(f"{request.request_id} failed: {request.error}") from request.error
        return [request.output() for request in requests]

    def stream(self, prompt: PromptLike, sampling_params: SamplingParams | None = None) -> Iterator[RequestOutput]:
        """The output so far after each new token; the last one has its `finish_reason`. Closing the iterator aborts the
        request.
        """
        request, told = self.submit(prompt, sampling_params or SamplingParams()), 0
        try:
            while True:
                # Another call's steps may have brought tokens, or the end, since the last one was taken.
                if request.finish_reason is None and len(request.output_ids) == told and not self.engine.step():
                    time.sleep(IDLE_SECONDS)
                if request.error is not None:
                    raise RequestFailed(f"{request.request_id} failed: {request.error}") from request.error
                if request.finish_reason is None and len(request.output_ids) == told:
                    continue
                ended, told = request.finish_reason is not None, len(request.output_ids)
                yield request.output()
                if ended:
                    return
        finally:
            self.engine.abort(request.request_id)

    def update_weights(
        self, weights: dict[str, torch.Tensor] | Callable[[Any], None], version: str | None = None
    ) -> None:
        """Load a state dict into the model, or call `weights(runner)`; every cached key is forgotten."""
        load = weights if callable(weights) else lambda runner: load_state(runner, weights)
        self.engine.update_weights(load, version)

    def load_lora(self, name: str, path: str | os.PathLike[str], *, version: str, scale: float | None = None) -> None:
        """Load a peft adapter directory; `version` names its weights, `scale` multiplies its own scaling."""
        self.engine.load_lora(name, os.fspath(path), version=version, scale=scale)

    def unload_lora(self, name: str) -> None:
        """Forget an adapter."""
        self.engine.unload_lora(name)

    def evict_all(self) -> None:
        """Forget every cached block, as heavy traffic would."""
        self.engine.forget()

    def submit(self, prompt: PromptLike, params: SamplingParams) -> Request:
        """Queue one prompt; `engine.step()` then runs it."""
        if not isinstance(params, SamplingParams):
            raise TypeError(f"sampling_params holds a {type(params).__name__}; SamplingParams are needed")
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise TypeError("prompts holds text; this model has no tokenizer, so token ids are needed")
            prompt = Prompt(self.tokenizer.encode(prompt))
        return self.engine.submit(prompt if isinstance(prompt, Prompt) else Prompt(prompt), params)

    def _submit_all(
        self, prompts: Sequence[PromptLike], params: SamplingParams | Sequence[SamplingParams] | None
    ) -> list[Request]:
        each = [params or SamplingParams()] * len(prompts) if not isinstance(params, Sequence) else list(params)
        if len(each) != len(prompts):
            raise ValueError(f"sampling_params has {len(each)} entries; {len(prompts)}, one a prompt, are needed")
        requests: list[Request] = []
        try:
            for prompt, param in zip(prompts, each, strict=True):
                requests.append(self.submit(prompt, param))
        except BaseException:
            for request in requests:
                self.engine.abort(request.request_id)
            raise
        return requests


def as_prompts(prompts: Any) -> list[PromptLike]:
    """A single prompt as a list of one; a flat list of integers, or a 1-D array of them, is one prompt."""
    if isinstance(prompts, (Prompt, str)) or getattr(prompts, "ndim", None) == 1:
        return [prompts]
    if isinstance(prompts, Mapping) or not isinstance(prompts, Iterable):
        raise TypeError(f"prompts is a {type(prompts).__name__}; a Prompt, token ids, text or a list of them is needed")
    prompts = list(prompts)
    flat = bool(prompts) and not isinstance(prompts[0], (Prompt, str)) and not hasattr(prompts[0], "__len__")
    return [prompts] if flat else prompts


def load_state(runner: Any, weights: dict[str, torch.Tensor]) -> None:
    """Copy a state dict into a transformers runner's model; every name must be known, some may be missing."""
    known = runner.model.state_dict().keys()
    named = {}
    for name, weight in weights.items():
        module, _, leaf = name.rpartition(".")
        under_adapters = f"{module}.base_layer.{leaf}"
        named[under_adapters if under_adapters in known else name] = weight
    unknown = sorted(named.keys() - known)
    if unknown:
        raise ValueError(f"weights holds {unknown[:3]}, which the model has not")
    runner.model.load_state_dict(named, strict=False)
