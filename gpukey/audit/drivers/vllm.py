"""vLLM with prompt_embeds, on whatever device it runs; for the adapter and the salt alone its key code, without a model."""

from __future__ import annotations

import inspect
import json
import os
import tempfile
from typing import Any

import torch

from gpukey.audit.protocol import Embeds, Options
from gpukey.integrations import vllm as hooks

MAX_MODEL_LEN = 1024
NAME = "X"


class VllmKeys:
    """vLLM's own Request and block hasher: equal block keys are reused blocks."""

    note: str | None = "driven at the level of its block keys: no model runs"
    vocab_size, hidden, dtype, scale = 512, 128, torch.float32, 1.0

    def __init__(self, options: Options) -> None:
        import vllm

        self.block_size = options.block_size
        if options.plugin is not None:
            os.environ[hooks.SWITCH] = str(int(options.plugin))
        hooks.plugin()
        self.name = f"vLLM {vllm.__version__}, {'with' if hooks.installed() else 'without'} gpukey's hooks"

    def run(self, token_ids: list[int], embeds: Embeds | None) -> tuple[list[int] | None, int]:
        raise RuntimeError("block keys alone cannot run a prompt")

    def evict(self) -> None:
        pass

    def lora_against_salt(self, token_ids: list[int]) -> int:
        """vllm#44701: tokens in the leading blocks whose keys are equal; 0 is right, vLLM before 0.31 shares one block."""
        from vllm.lora.request import LoRARequest

        adapted = _block_keys(token_ids, self.block_size, lora_request=LoRARequest(NAME, 1, "/adapters/" + NAME))
        salted = _block_keys(token_ids, self.block_size, cache_salt=NAME)
        if not len(adapted) == len(salted) == len(token_ids) // self.block_size:
            raise RuntimeError(f"vLLM made {len(adapted)} and {len(salted)} block keys for {len(token_ids)} tokens")
        equal = [one == two for one, two in zip(adapted, salted, strict=True)]
        return [*equal, False].index(False) * self.block_size

    def close(self) -> None:
        hooks.uninstall()


class VllmDriver(VllmKeys):
    """`LLM`, greedy; rows travel as prompt_embeds of the whole prompt with a mask of the positions that are tokens."""

    note = None

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._folder = None if options.model else tempfile.TemporaryDirectory()
        model = options.model or _tiny_model(self._folder.name)  # type: ignore[union-attr]
        self._llm, self.block_size = _llm(model, options)
        config = _config(model)
        self.vocab_size, self.hidden = config["vocab_size"], config["hidden_size"]
        self.dtype = getattr(torch, options.dtype or "float32")
        self.scale = config.get("initializer_range", 0.02)
        self._max_tokens = options.max_tokens
        self.name += f", {options.model or 'a tiny random Qwen2'}, {str(self.dtype).removeprefix('torch.')}"

    def run(self, token_ids: list[int], embeds: Embeds | None) -> tuple[list[int] | None, int]:
        from vllm import SamplingParams

        prompt: dict[str, Any] = {"prompt_token_ids": token_ids}
        if embeds is not None:
            rows = torch.zeros(len(token_ids), self.hidden, dtype=self.dtype)
            is_token = [True] * len(token_ids)
            for start, span in embeds:
                rows[start : start + len(span)] = span
                is_token[start : start + len(span)] = [False] * len(span)
            prompt |= {"prompt_embeds": rows, "prompt_is_token_ids": is_token}
        params = SamplingParams(temperature=0, max_tokens=self._max_tokens, ignore_eos=True, detokenize=False)
        (output,) = self._llm.generate([prompt], params, use_tqdm=False)
        return list(output.outputs[0].token_ids), int(output.num_cached_tokens or 0)

    def evict(self) -> None:
        if not self._llm.reset_prefix_cache():
            raise RuntimeError("vLLM did not reset its prefix cache")

    def close(self) -> None:
        self._llm.llm_engine.engine_core.shutdown()
        if self._folder:
            self._folder.cleanup()
        super().close()


def _llm(model: str, options: Options) -> tuple[Any, int]:
    from vllm import LLM
    from vllm.platforms import current_platform

    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    # vLLM's attention on a CPU takes multiples of 32.
    block_size = -(-options.block_size // 32) * 32 if current_platform.is_cpu() else options.block_size
    llm = LLM(
        model,
        dtype=options.dtype or "float32",
        block_size=block_size,
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=4,
        enable_prompt_embeds=True,
        enable_prefix_caching=True,
        enforce_eager=True,
        skip_tokenizer_init=True,
    )
    return llm, block_size


def _block_keys(token_ids: list[int], block_size: int, **fields: Any) -> list[bytes]:
    from vllm import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.request import Request

    if getattr(kv_cache_utils, "NONE_HASH", None) is None:
        kv_cache_utils.init_none_hash(sha256)
    request = Request(
        request_id="audit",
        prompt_token_ids=list(token_ids),
        sampling_params=SamplingParams(max_tokens=1),
        pooling_params=None,
        block_hasher=kv_cache_utils.get_request_block_hasher(block_size, sha256),
        **({"eos_token_id": None} if "eos_token_id" in inspect.signature(Request).parameters else {}),
        **fields,
    )
    return list(request.block_hashes)


def _config(model: str) -> dict[str, Any]:
    with open(os.path.join(model, "config.json"), encoding="utf-8") as file:
        config: dict[str, Any] = json.load(file)
    return config


def _tiny_model(folder: str) -> str:
    """A random Qwen2 of 2 layers whose weights are large enough for every prompt to matter."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VllmKeys.vocab_size,
        hidden_size=VllmKeys.hidden,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.3,
        tie_word_embeddings=False,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return folder


def create(options: Options) -> VllmKeys:
    """The driver; ImportError where vLLM is not installed, RuntimeError for a version that the hooks refuse."""
    return VllmKeys(options) if options.lora_salt else VllmDriver(options)
