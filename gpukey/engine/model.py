"""A transformers model over paged pools: loading, the attention hook, one forward for a batch."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from blake3 import blake3

import gpukey.engine.ops  # noqa: F401  (registers the two ops)
from gpukey.engine import selfcheck
from gpukey.engine.batch import Batch
from gpukey.engine.kv import KVPool, LayerShape
from gpukey.engine.peft_adapters import PeftAdapters
from gpukey.engine.quiet import quiet
from gpukey.engine.support import UnsupportedModel as UnsupportedModel
from gpukey.engine.support import check_model
from gpukey.engine.tiny import tiny_model

ATTENTION = "gpukey_paged"
CHANGES_ATTENTION = ("sliding_window", "softcap", "s_aux", "position_bias", "head_mask")
VOLATILE_CONFIG = ("_name_or_path", "transformers_version", "_attn_implementation", "dtype", "torch_dtype")


class Runner(Protocol):
    """What the engine needs of a model. `TransformersRunner` is the real one; tests put a witness here."""

    vocab_size: int
    hidden: int
    dtype: torch.dtype
    device: torch.device
    max_positions: int | None
    eos_token_ids: frozenset[int]
    identity: Mapping[str, Any]
    """Root fields that name the model: model, dtype, config."""

    def allocate(self, num_blocks: int, block_size: int) -> None:
        """Make the KV pool."""

    def forward(self, batch: Batch, adapter: str | None) -> torch.Tensor:
        """Write the batch's KV; return logits [num_outputs, vocab_size] of the tokens in `batch.output_index`."""

    def finite(self, block_ids: list[int]) -> list[bool]:
        """Which of these full blocks hold neither NaN nor infinity."""


@dataclass
class PagedStep:
    """Carried through the model's forward to every attention layer."""

    keys: dict[int, torch.Tensor]
    values: dict[int, torch.Tensor]
    batch: Batch


@dataclass
class Probe:
    """In place of a `PagedStep` at load: records each attention layer's shape, and refuses what the op does not
    compute.
    """

    layers: dict[int, LayerShape]

    def record(self, module: Any, key: torch.Tensor, value: torch.Tensor, mask: Any, extra: dict[str, Any]) -> None:
        changed = [name for name in CHANGES_ATTENTION if extra.get(name) is not None]
        if changed or mask is not None or not getattr(module, "is_causal", True):
            what = ", ".join(changed) or ("a mask of its own" if mask is not None else "attention both ways")
            raise UnsupportedModel(
                f"{type(module).__name__} is not served: it needs {what}, which paged attention has not"
            )
        layer = module.layer_idx
        if layer in self.layers:
            raise UnsupportedModel(f"{type(module).__name__} is not served: layer {layer} attends more than once")
        self.layers[layer] = LayerShape(key.shape[1], key.shape[3], value.shape[3])


def paged_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    step: PagedStep | Probe | None = None,
    **extra: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention interface: query [1, heads, num_tokens, dim] and so on; returns [1, num_tokens, heads,
    dim].
    """
    if step is None:
        raise RuntimeError(
            f"this model's attention belongs to a gpukey engine ({ATTENTION}); call the engine, not the model"
        )
    if isinstance(step, Probe):
        step.record(module, key, value, attention_mask, extra)
        return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[3]), None
    batch, layer = step.batch, module.layer_idx
    out = torch.ops.gpukey.paged_attention(
        query[0].transpose(0, 1),
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        step.keys[layer],
        step.values[layer],
        batch.slots,
        batch.block_tables,
        batch.query_start,
        batch.context_lens,
        batch.num_decodes,
        batch.max_query,
        batch.max_context,
        query.shape[-1] ** -0.5 if scaling is None else scaling,
    )
    return out[None], None


def config_digest(config: Any) -> bytes:
    """Digest of every setting that changes the forward."""
    settings = {k: v for k, v in config.to_dict().items() if k not in VOLATILE_CONFIG}
    return bytes(blake3(json.dumps(settings, sort_keys=True, default=str).encode()).digest())


def load(model: Any, dtype: torch.dtype | None, device: torch.device) -> Any:
    """The tiny model for None; a directory in Hugging Face layout; or a module, which the engine takes over."""
    if model is None:
        return tiny_model(dtype=dtype or torch.float32).to(device)
    if isinstance(model, torch.nn.Module):
        if dtype is not None and dtype != next(model.parameters()).dtype:
            raise ValueError(f"dtype is {dtype}; the module's own is {next(model.parameters()).dtype}")
        return model.eval()
    if not isinstance(model, (str, os.PathLike)):
        raise TypeError(f"model is a {type(model).__name__}; None, a directory or a transformers module is needed")
    if not os.path.isdir(model):
        raise ValueError(f"model is {os.fspath(model)!r}; a directory in Hugging Face layout is needed")
    from transformers import AutoModelForCausalLM

    with quiet():
        loaded = AutoModelForCausalLM.from_pretrained(
            os.fspath(model), dtype=dtype or "auto", local_files_only=True, use_safetensors=True
        )
    return loaded.to(device).eval()


class TransformersRunner:
    """One transformers causal language model. `forward` takes a batch of many sequences as one flattened sequence."""

    def __init__(self, model: Any, *, dtype: torch.dtype | None = None, device: torch.device | None = None) -> None:
        from transformers import AttentionInterface

        self.model = load(model, dtype, device or torch.device("cpu"))
        check_model(self.model)
        AttentionInterface.register(ATTENTION, paged_attention)
        own = self.model.config._attn_implementation
        self._own_attention = "eager" if own in (None, ATTENTION) else own
        self.use_paged_attention()
        weight = self.model.get_input_embeddings().weight
        self.vocab_size, self.hidden = weight.shape
        self.dtype, self.device = weight.dtype, weight.device
        config = self.model.config
        self.max_positions = getattr(config, "max_position_embeddings", None)
        eos = getattr(self.model.generation_config, "eos_token_id", None)
        self.eos_token_ids = frozenset([eos] if isinstance(eos, int) else eos or [])
        self.identity: dict[str, Any] = {
            "model": str(self.model.name_or_path) or type(self.model).__name__,
            "dtype": str(self.dtype).removeprefix("torch."),
            "config": config_digest(config),
        }
        self.pool: KVPool | None = None
        self.adapters = PeftAdapters(self.model)
        self._shapes = self._probe()
        self.allocate(5, selfcheck.BLOCK)
        selfcheck.check_forward(self, self._own_attention)

    def use_paged_attention(self) -> None:
        """The model's attention is the engine's."""
        self.model.set_attn_implementation(ATTENTION)

    def allocate(self, num_blocks: int, block_size: int) -> None:
        """See `Runner.allocate`."""
        self.pool = KVPool(
            self._shapes, num_blocks=num_blocks, block_size=block_size, dtype=self.dtype, device=self.device
        )

    @torch.inference_mode()
    def _probe(self) -> dict[int, LayerShape]:
        """The attention layers and their shapes, by a forward of one token."""
        probe = Probe({})
        ids = torch.zeros(1, 1, dtype=torch.int64, device=self.device)
        self.model(inputs_embeds=self.model.get_input_embeddings()(ids), position_ids=ids, use_cache=False, step=probe)
        if not probe.layers:
            raise UnsupportedModel(
                f"{type(self.model).__name__} is not served: no layer of it calls the attention interface"
            )
        return probe.layers

    @torch.inference_mode()
    def forward(self, batch: Batch, adapter: str | None) -> torch.Tensor:
        """See `Runner.forward`."""
        self.adapters.use(adapter)
        return self.compute(batch)

    @torch.inference_mode()
    def finite(self, block_ids: list[int]) -> list[bool]:
        """See `Runner.finite`."""
        return self._allocated().finite(block_ids)

    def load_adapter(self, name: str, path: str, scale: float | None) -> None:
        """Load a peft LoRA directory."""
        self.adapters.load(name, path, scale)

    def delete_adapter(self, name: str) -> None:
        """Remove a LoRA."""
        self.adapters.delete(name)

    def compute(self, batch: Batch) -> torch.Tensor:
        """The traceable part: embeddings, replaced rows, the model with paged attention, logits."""
        pool = self._allocated()
        embeds = self.model.get_input_embeddings()(batch.token_ids)
        if batch.rows is not None:
            torch.ops.gpukey.replace_rows(embeds, batch.rows, batch.row_index)
        result = self.model(
            inputs_embeds=embeds[None],
            position_ids=batch.positions[None],
            use_cache=False,
            logits_to_keep=batch.output_index,
            step=PagedStep(pool.keys, pool.values, batch),
        )
        logits: torch.Tensor = result.logits[0]
        return logits

    def _allocated(self) -> KVPool:
        if self.pool is None:
            raise RuntimeError("allocate was not called: there is no KV pool")
        return self.pool
