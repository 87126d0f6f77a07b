"""Adapters: each request runs with its own, and keys bind name, version and scale."""

import pytest
import torch
from generate import greedy
from tiny_lora import write_lora

from gpukey.engine import Prompt, SamplingParams
from gpukey.engine.tiny import tiny_model

PARAMS = SamplingParams(max_tokens=6)


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    config = tiny_model().config
    return [write_lora(tmp_path_factory.mktemp("lora"), config, seed=seed) for seed in range(2)]


@pytest.fixture
def loaded(llm, paths):
    llm.load_lora("a", paths[0], version="1")
    llm.load_lora("b", paths[1], version="1")
    return llm


def merged(path, scale=1.0, seed=0):
    """The model with an adapter merged into its weights, by peft."""
    from peft import PeftModel

    model = PeftModel.from_pretrained(tiny_model(dtype=torch.float64, seed=seed), path)
    for module in model.modules():
        if isinstance(getattr(module, "scaling", None), dict):
            module.scaling = {name: value * scale for name, value in module.scaling.items()}
    return model.merge_and_unload()


def test_outputs_are_those_of_merged_weights(loaded, paths, ids, rows):
    """All three in one step; then again, from the cache."""
    spans = [(3, rows(6))]
    want = [greedy(tiny_model(dtype=torch.float64), ids(21), spans, 6)]
    want += [greedy(merged(path), ids(21), spans, 6) for path in paths]
    assert want[0] != want[1] != want[2] != want[0]
    prompts = [Prompt(ids(21), spans, lora_name=name) for name in (None, "a", "b")]
    for cached in (0, 20):
        outs = loaded.generate(prompts, PARAMS)
        assert [out.token_ids for out in outs] == want
        assert [out.num_cached_tokens for out in outs] == [cached] * 3


def test_name_is_no_salt(loaded, ids):
    """vllm#44701."""
    forms = [{"lora_name": "a"}, {"cache_salt": "a"}, {"lora_name": "a", "cache_salt": "a"}, {"lora_name": "b"}]
    cached = [loaded.generate(Prompt(ids(17), **form), PARAMS)[0].num_cached_tokens for form in forms]
    assert cached == [0] * 4


def test_another_version_is_another_adapter(loaded, paths, ids):
    """vllm#42125: other weights under the same name are not served from the old ones' cache."""
    first = loaded.generate(Prompt(ids(17), lora_name="a"), PARAMS)[0]
    with pytest.raises(ValueError, match="'1', which 'a' had before"):
        loaded.load_lora("a", paths[1], version="1")
    loaded.load_lora("a", paths[1], version="2")
    second = loaded.generate(Prompt(ids(17), lora_name="a"), PARAMS)[0]
    assert second.num_cached_tokens == 0
    assert second.token_ids == greedy(merged(paths[1]), ids(17), [], 6) != first.token_ids


def test_scale_is_keyed_and_applied(loaded, paths, ids):
    """llama.cpp#26207."""
    loaded.generate(Prompt(ids(17), lora_name="a"), PARAMS)
    loaded.load_lora("a", paths[0], version="1", scale=0.25)
    out = loaded.generate(Prompt(ids(17), lora_name="a"), PARAMS)[0]
    assert out.num_cached_tokens == 0
    assert out.token_ids == greedy(merged(paths[0], 0.25), ids(17), [], 6)


def test_weights_can_be_updated_under_adapters(loaded, paths, ids):
    state = tiny_model(dtype=torch.float64, seed=5).state_dict()
    loaded.update_weights(state)
    outs = loaded.generate([Prompt(ids(17)), Prompt(ids(17), lora_name="a")], PARAMS)
    other = tiny_model(dtype=torch.float64, seed=5)
    assert outs[0].token_ids == greedy(other, ids(17), [], 6)
    assert outs[1].token_ids == greedy(merged(paths[0], seed=5), ids(17), [], 6) != outs[0].token_ids


def test_unload(loaded, ids):
    bare = loaded.generate([ids(9)], PARAMS)[0].token_ids
    loaded.unload_lora("a")
    with pytest.raises(ValueError, match="loaded are \\['b'\\]"):
        loaded.generate(Prompt(ids(9), lora_name="a"), PARAMS)
    loaded.unload_lora("b")
    loaded.evict_all()
    assert loaded.generate([ids(9)], PARAMS)[0].token_ids == bare


def test_in_use(loaded, paths, ids):
    request = loaded.submit(Prompt(ids(9), lora_name="a"), PARAMS)
    with pytest.raises(ValueError, match="in use by"):
        loaded.unload_lora("a")
    with pytest.raises(ValueError, match="in use by"):
        loaded.load_lora("a", paths[1], version="2")
    loaded.engine.abort(request.request_id)
    loaded.unload_lora("a")


@pytest.mark.parametrize(
    ("keywords", "error", "message"),
    [({"version": 1}, TypeError, "version is a int"), ({"version": "1", "scale": float("nan")}, ValueError, "scale"),
     ({"version": "1", "scale": "big"}, TypeError, "scale is a str")],
)  # fmt: skip
def test_wrong_arguments(llm, paths, keywords, error, message):
    with pytest.raises(error, match=message):
        llm.load_lora("a", paths[0], **keywords)


def test_no_lora(llm, tmp_path):
    with pytest.raises(ValueError, match=r"adapter_config\.json is needed"):
        llm.load_lora("a", tmp_path, version="1")
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "IA3"}')
    with pytest.raises(ValueError, match="a IA3 adapter"):
        llm.load_lora("a", tmp_path, version="1")
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA", "alora_invocation_tokens": [5]}')
    with pytest.raises(ValueError, match="activated LoRA"):
        llm.load_lora("a", tmp_path, version="1")
    with pytest.raises(ValueError, match="loaded are \\[\\]"):
        llm.unload_lora("a")
