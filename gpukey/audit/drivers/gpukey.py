"""Our own mini engine, keyed by content, or by token ids alone to show what that does."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import tempfile
from typing import Any

import torch
from safetensors.torch import save_file

from gpukey import __version__
from gpukey.audit.protocol import Embeds, Options
from gpukey.device_keys import usable_device
from gpukey.engine import LLM, Prompt, SamplingParams

NUM_BLOCKS_OF_TOKENS = 8192
ADAPTER = "X"


class GpukeyDriver:
    """`LLM` with greedy decoding that no stop token ends."""

    note = None

    def __init__(self, options: Options) -> None:
        # float32 on a CPU: outputs of other dtypes depend there on how rows are batched.
        dtype = options.dtype or ("float32" if usable_device(options.device).type == "cpu" else None)
        self._llm = LLM(
            options.model,
            dtype=dtype,
            device=options.device,
            identity=options.identity,
            block_size=options.block_size,
            num_blocks=-(-NUM_BLOCKS_OF_TOKENS // options.block_size),
        )
        runner: Any = self._llm.engine.runner
        self._runner, self._sampling = runner, SamplingParams(max_tokens=options.max_tokens, ignore_eos=True)
        self.block_size = options.block_size
        self.vocab_size, self.hidden, self.dtype = int(runner.vocab_size), int(runner.hidden), runner.dtype
        weight = runner.model.get_input_embeddings().weight.detach()
        self.scale = float(weight[: min(4096, len(weight))].float().std())
        name = options.model or "a tiny random Qwen2"
        self.name = (
            f"gpukey {__version__}, {name}, {str(self.dtype).removeprefix('torch.')}, identity by {options.identity}"
        )

    def run(
        self,
        token_ids: list[int],
        embeds: Embeds | None,
        *,
        lora_name: str | None = None,
        cache_salt: str | None = None,
    ) -> tuple[list[int], int]:
        prompt = Prompt(token_ids, embeds=list(embeds or ()), lora_name=lora_name, cache_salt=cache_salt)
        output = self._llm.generate([prompt], self._sampling)[0]
        return output.token_ids, output.num_cached_tokens

    def evict(self) -> None:
        self._llm.evict_all()

    def lora_against_salt(self, token_ids: list[int]) -> int | None:
        if importlib.util.find_spec("peft") is None:
            return None
        with tempfile.TemporaryDirectory() as directory:
            write_adapter(directory, self._runner.model)
            self._llm.load_lora(ADAPTER, directory, version="1")
        try:
            self.run(token_ids, None, lora_name=ADAPTER)
            return self.run(token_ids, None, cache_salt=ADAPTER)[1]
        finally:
            self._llm.unload_lora(ADAPTER)

    def close(self) -> None:
        self._llm.evict_all()


def create(options: Options) -> GpukeyDriver:
    """The driver; ValueError for options that the engine refuses."""
    if not sys.stderr.isatty():
        from transformers.utils import logging

        logging.disable_progress_bar()
    return GpukeyDriver(options)


def write_adapter(directory: str, model: torch.nn.Module, rank: int = 2) -> None:
    """A small random LoRA on the query projections, as peft lays it out."""
    dice, weights = torch.Generator().manual_seed(0), {}
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and name.endswith("q_proj"):
            prefix = f"base_model.model.{name}"
            weights[f"{prefix}.lora_A.weight"] = torch.randn(rank, module.in_features, generator=dice)
            weights[f"{prefix}.lora_B.weight"] = torch.randn(module.out_features, rank, generator=dice)
    save_file(weights, os.path.join(directory, "adapter_model.safetensors"))
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": rank,
        "target_modules": ["q_proj"],
    }
    with open(os.path.join(directory, "adapter_config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file)
