"""Which models are right here. A model that would be silently wrong is refused with the reason."""

from __future__ import annotations

from typing import Any

LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")


class UnsupportedModel(ValueError):
    """The engine would compute something else than this model."""


def rope_parameters(config: Any) -> list[dict[str, Any]]:
    """RoPE settings of the model; some models have one set for each layer type."""
    found = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    nested = [value for value in found.values() if isinstance(value, dict)]
    return nested or [found]


def reasons(model: Any) -> list[str]:
    """Why `model` (a transformers causal language model) would be wrong here; empty where it is right."""
    config = model.config
    found = []
    if not getattr(model, "_supports_attention_backend", False):
        found.append(
            "its attention does not go through transformers' attention interface (_supports_attention_backend)"
        )
    if getattr(config, "is_encoder_decoder", False):
        found.append("it is an encoder-decoder: cross-attention inputs are not in the keys")
    if hasattr(config, "text_config") or hasattr(config, "vision_config"):
        found.append("it is multimodal: its positions and masks depend on more than the token's index")
    layer_types = set(getattr(config, "layer_types", None) or ["full_attention"])
    if layer_types != {"full_attention"}:
        found.append(f"its layers are {sorted(layer_types)}; only full_attention is paged here")
    elif getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True):
        found.append(f"it attends within a sliding window of {config.sliding_window} tokens")
    for name in (
        "attn_logit_softcapping",
        "attention_chunk_size",
        "num_kv_shared_layers",
        "hidden_size_per_layer_input",
    ):
        if getattr(config, name, None):
            found.append(f"it sets {name}, which this engine does not compute")
    if getattr(config, "use_bidirectional_attention", None) or not getattr(config, "is_causal", True):
        found.append("it attends both ways: a block's KV depends on tokens that come after it")
    for rope in rope_parameters(config):
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind in LENGTH_DEPENDENT_ROPE:
            found.append(f"its RoPE ({kind}) depends on the total length: cached KV would be another request's")
        if "mrope_section" in rope or kind == "mrope":
            found.append("its RoPE is multi-axis (M-RoPE): positions are not the index in the prompt")
    return found


def check_model(model: Any) -> None:
    """UnsupportedModel with every reason, unless the model is right here."""
    found = reasons(model)
    if found:
        raise UnsupportedModel(f"{type(model).__name__} is not served: " + "; ".join(found))
