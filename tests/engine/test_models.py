"""Which models are served, and why others are not."""

import pytest
import torch
from generate import greedy

from gpukey.engine import LLM, SamplingParams, UnsupportedModel
from gpukey.engine import model as engine_model
from gpukey.engine.model import TransformersRunner
from gpukey.engine.tiny import tiny_model

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024, "rope_theta": 1e4}
LONG = {"rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": 1024, "rope_theta": 1e4,
        "long_factor": [1.0] * 8, "short_factor": [1.0] * 8}  # fmt: skip
REFUSED = {
    "sliding window": ("Qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0}, "sliding"),
    "sliding window everywhere": ("Mistral", {"sliding_window": 8}, "sliding"),
    "dynamic RoPE": ("Llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, "length"),
    "longrope": ("Llama", {"rope_parameters": LONG}, "length"),
    "M-RoPE": ("Qwen2", {"rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 1e4}}, "M-RoPE"),
    "both ways": ("Llama", {"is_causal": False}, "both ways"),
    "softcap": ("Gemma2", {"head_dim": 16, "sliding_window": None, "layer_types": ["full_attention"] * 2}, "softcap"),
    "no interface": ("Bloom", {"n_layer": 2, "n_head": 4}, "attention interface"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    architecture, settings, reason = REFUSED[name]
    with pytest.raises(UnsupportedModel, match=reason):
        LLM(tiny_model(architecture, **settings), num_blocks=4)


def test_another_attention_is_noticed(monkeypatch):
    """Whatever the config says: a forward that differs from the model's own is refused."""
    right = engine_model.paged_attention

    def other(*args, scaling, **keywords):
        return right(*args, scaling=1.1 * scaling, **keywords)

    monkeypatch.setattr(engine_model, "paged_attention", other)
    with pytest.raises(UnsupportedModel, match="logits differ"):
        TransformersRunner(tiny_model())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("architecture", ["Qwen2", "Qwen3", "Llama", "Mistral", "Phi3", "Granite", "Olmo2", "Gemma"])
def test_served(architecture, dtype):
    settings = {"sliding_window": None} if architecture == "Mistral" else {}
    TransformersRunner(tiny_model(architecture, dtype=dtype, head_dim=16, **settings))


def test_a_fixed_rope_scaling_is_served(ids, secret):
    """YaRN with a fixed factor does not look at the length."""
    llm = LLM(tiny_model("Llama", dtype=torch.float64, rope_parameters=YARN), secret=secret, num_blocks=16)
    want = greedy(tiny_model("Llama", dtype=torch.float64, rope_parameters=YARN), ids(40), [], 8)
    assert llm.generate([ids(40)], SamplingParams(max_tokens=8))[0].token_ids == want


def test_the_model_belongs_to_the_engine(ids):
    model = tiny_model()
    TransformersRunner(model)
    with pytest.raises(RuntimeError, match="belongs to a gpukey engine"):
        model(torch.tensor([ids(4)]))


def test_another_config_is_another_root():
    """RoPE parameters change the forward, so they change the keys."""
    runners = [TransformersRunner(tiny_model("Llama", rope_theta=theta)) for theta in (1e4, 1e4, 1e6)]
    digests = [runner.identity["config"] for runner in runners]
    assert digests[0] == digests[1] != digests[2]


def test_a_directory(tmp_path, ids, secret, capfd):
    """Hugging Face layout on disk, safetensors, loaded by transformers; silently where nobody watches."""
    tiny_model(dtype=torch.float64).save_pretrained(tmp_path)
    capfd.readouterr()
    llm = LLM(tmp_path, dtype="float64", secret=secret, num_blocks=16)
    assert capfd.readouterr() == ("", "")
    want = greedy(tiny_model(dtype=torch.float64), ids(20), [], 6)
    assert llm.generate([ids(20)], SamplingParams(max_tokens=6))[0].token_ids == want


def test_positions_end_where_the_model_s_do(ids):
    llm = LLM(tiny_model(max_position_embeddings=32), num_blocks=16)
    with pytest.raises(ValueError, match="knows 32 positions"):
        llm.generate([ids(20)], SamplingParams(max_tokens=13))
    assert len(llm.generate([ids(20)], SamplingParams(max_tokens=12))[0].token_ids) == 12
