"""Hostile and wrong prompts raise at submit, name the argument, and leave nothing behind."""

import numpy as np
import pytest
import torch

from gpukey.engine import LLM, EmbedSpan, EngineConfig, Prompt, SamplingParams
from gpukey.engine.llm import as_prompts
from gpukey.keys import MultimodalItem

OK = [1, 2, 3, 4, 5, 6, 7, 8]


def span(start, *shape, **keywords):
    return EmbedSpan(start, torch.zeros(*shape, dtype=torch.float64), **keywords)


PROMPTS = {
    "empty": (Prompt([]), ValueError, "token_ids is empty"),
    "text": (Prompt("abc"), TypeError, "token_ids is a str"),
    "id past the vocabulary": (Prompt([1, 512]), ValueError, r"token_ids\[1\] is 512"),
    "negative id": (Prompt([-1]), ValueError, r"token_ids\[0\] is -1"),
    "boolean id": (Prompt([True]), TypeError, r"token_ids\[0\] is a bool"),
    "float id": (Prompt([1.0]), TypeError, r"token_ids\[0\] is a float"),
    "2-D ids": (Prompt(np.zeros((2, 2), dtype=np.int64)), TypeError, "2-D"),
    "float ids": (Prompt(torch.zeros(3)), TypeError, "float32"),
    "too long for the pool": (Prompt([1] * 600), ValueError, "blocks are needed, the pool has 16"),
    "row too wide": (Prompt(OK, [span(0, 2, 65)]), ValueError, r"\[num_rows, 64\] is needed"),
    "3-D rows": (Prompt(OK, [span(0, 1, 2, 64)]), ValueError, r"\[num_rows, 64\] is needed"),
    "too many rows": (Prompt(OK, [span(2, 7, 64)]), ValueError, "positions 2 to 9; the prompt has 8 tokens"),
    "negative start": (Prompt(OK, [span(-1, 2, 64)]), ValueError, r"embeds\[0\].start is -1"),
    "start past the prompt": (Prompt(OK, [span(9, 0, 64)]), ValueError, "the prompt has 8 tokens"),
    "overlap": (Prompt(OK, [span(4, 2, 64), span(2, 3, 64)]), ValueError, "embeds overlap"),
    "integer rows": (Prompt(OK, [(0, torch.zeros(2, 64, dtype=torch.int32))]), TypeError, "floating-point"),
    "complex rows": (Prompt(OK, [(0, torch.zeros(2, 64, dtype=torch.complex64))]), TypeError, "floating-point"),
    "numpy rows": (Prompt(OK, [(0, np.zeros((2, 64)))]), TypeError, "torch.Tensor is needed"),
    "meta rows": (Prompt(OK, [(0, torch.zeros(2, 64, device="meta"))]), TypeError, "with data"),
    "sparse rows": (Prompt(OK, [(0, torch.zeros(2, 64).to_sparse())]), TypeError, "strided"),
    "bidirectional": (Prompt(OK, [span(0, 2, 64, attention="bidirectional")]), ValueError, "attends causally"),
    "text layout": (Prompt(OK, [span(0, 2, 64, layout="x")]), TypeError, "layout is a str"),
    "salt of another type": (Prompt(OK, cache_salt=7), TypeError, "cache_salt is a int"),
    "lone surrogate": (Prompt(OK, cache_salt="\ud800"), ValueError, "cache_salt"),
    "unknown adapter": (Prompt(OK, lora_name="none"), ValueError, "lora_name is 'none'; loaded are"),
    "item past the prompt": (Prompt(OK, items=[MultimodalItem(4, 9, "image", b"i" * 16)]), ValueError, "items"),
}


@pytest.fixture(scope="module")
def llm():
    return LLM(dtype=torch.float64, block_size=4, num_blocks=16)


@pytest.mark.parametrize("name", PROMPTS)
def test_prompt(name, llm):
    prompt, error, message = PROMPTS[name]
    with pytest.raises(error, match=message):
        llm.generate([Prompt(OK), prompt], SamplingParams(max_tokens=2))
    assert not llm.engine.has_unfinished
    llm.engine.check()
    assert llm.engine.scheduler.cache.num_free == 16


PARAMS = [
    ({"max_tokens": 0}, ValueError), ({"max_tokens": True}, TypeError), ({"temperature": -1}, ValueError),
    ({"temperature": float("nan")}, ValueError), ({"top_p": 0}, ValueError), ({"top_p": 1.1}, ValueError),
    ({"top_k": -1}, ValueError), ({"seed": 2**64}, ValueError), ({"seed": 0.5}, TypeError),
    ({"logprobs": -1}, ValueError), ({"stop_token_ids": ["a"]}, TypeError), ({"stop": [""]}, ValueError),
]  # fmt: skip


@pytest.mark.parametrize(("keywords", "error"), PARAMS)
def test_sampling_params(keywords, error):
    with pytest.raises(error, match=next(iter(keywords))):
        SamplingParams(**keywords)


@pytest.mark.parametrize(
    ("keywords", "error"),
    [({"block_size": 0}, ValueError), ({"num_blocks": 1.5}, TypeError), ({"identity": "none"}, ValueError),
     ({"digest_size": 8}, ValueError), ({"prefix_caching": 1}, TypeError), ({"weights_version": 1}, TypeError),
     ({"max_num_batched_tokens": 0}, ValueError), ({"max_num_seqs": True}, TypeError)],
)  # fmt: skip
def test_config(keywords, error):
    with pytest.raises(error, match=next(iter(keywords))):
        EngineConfig(**keywords)


def test_stop_strings_need_a_tokenizer(llm):
    with pytest.raises(ValueError, match="no tokenizer"):
        llm.generate([OK], SamplingParams(stop="x"))
    with pytest.raises(TypeError, match="no tokenizer"):
        llm.generate(["text"])


def test_request_ids_are_unique(llm):
    request = llm.engine.submit(Prompt(OK), SamplingParams(), "mine")
    with pytest.raises(ValueError, match="'mine'"):
        llm.engine.submit(Prompt(OK), SamplingParams(), "mine")
    llm.engine.abort("mine")
    assert request.finish_reason == "abort"
    assert llm.engine.abort("mine") is None


def test_models():
    with pytest.raises(TypeError, match="model is a int"):
        LLM(3)
    with pytest.raises(ValueError, match="directory in Hugging Face layout"):
        LLM("/nowhere/at/all")
    with pytest.raises(TypeError, match="dtype"):
        LLM(dtype="float33")


def test_empty_spans_add_nothing(llm):
    out = llm.generate(Prompt(OK, [span(3, 0, 64)]), SamplingParams(max_tokens=3))[0]
    assert out.token_ids == llm.generate(Prompt(OK), SamplingParams(max_tokens=3))[0].token_ids


def test_the_last_block_may_be_full_to_the_last_slot(llm):
    """Sixteen blocks of 4 hold 64 tokens; the last sampled token needs no slot."""
    assert len(llm.generate([[1] * 60], SamplingParams(max_tokens=5))[0].token_ids) == 5
    with pytest.raises(ValueError, match="17 blocks are needed"):
        llm.generate([[1] * 60], SamplingParams(max_tokens=6))


def test_a_salt_does_not_show(llm):
    """As in a Root: whoever knows a tenant's salt can probe its cache."""
    prompt = Prompt([1, 2, 3], cache_salt="tenant-7-secret")
    request = llm.submit(prompt, SamplingParams())
    assert "tenant-7" not in repr(prompt) + repr(request) + repr(request.output())


@pytest.mark.parametrize("wrong", [None, 7, {"prompt": "x"}])
def test_what_is_no_prompt(wrong):
    with pytest.raises(TypeError, match=f"prompts is a {type(wrong).__name__}; a Prompt, token ids"):
        as_prompts(wrong)


def test_an_array_of_ids_is_one_prompt(llm):
    few = SamplingParams(max_tokens=2, ignore_eos=True)
    (want,) = llm.generate(OK, few)
    for ids in (np.array(OK), torch.tensor(OK)):
        (output,) = llm.generate(ids, few)
        assert output.token_ids == want.token_ids


def test_a_secret_is_a_secret():
    with pytest.raises(TypeError, match=r"secret is a str; a gpukey\.Secret"):
        LLM(secret="a password of 16 characters")


@pytest.mark.parametrize("dtype", ["int32", "complex64", torch.float8_e4m3fn])
def test_dtypes_that_no_forward_runs_in(dtype):
    with pytest.raises(ValueError, match=r"dtype is torch\..* is needed"):
        LLM(dtype=dtype)


def test_names_in_keys_are_text_before_anything_depends_on_them(llm, ids):
    """A version that no key can hold failed every request after the update."""
    for wrong, error in ((5, TypeError), ("\ud800", ValueError)):
        with pytest.raises(error, match="version"):
            llm.update_weights(lambda runner: pytest.fail("weights were written"), wrong)
        with pytest.raises(error, match="version"):
            llm.load_lora("a", "/nowhere", version=wrong)
        with pytest.raises(error, match="weights_version"):
            EngineConfig(weights_version=wrong)
    with pytest.raises(TypeError, match="lora_name is a list"):
        llm.submit(Prompt([1], lora_name=[]), SamplingParams())
    assert llm.generate([ids(9)])[0].uncached_reason is None
