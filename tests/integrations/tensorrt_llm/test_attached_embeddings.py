"""TensorRT-LLM#22117: 416 tokens, 391 of them an attached image, 32 a block. Objects of the engine's shape, not the engine."""

from __future__ import annotations

import struct
import sys
import types

import pytest
import torch

IMAGE_TOKEN = 999
PROMPT = [*range(1, 15), IMAGE_TOKEN, *range(20, 31)]
SPAN_START = 14


@pytest.fixture
def image():
    return torch.randn(391, 64, generator=torch.Generator().manual_seed(5)).bfloat16()


def test_all_13_blocks_alias_without_the_hooks(block_keys, image):
    before, other = block_keys(PROMPT, [image]), block_keys(PROMPT, [-image])
    assert len(before) == 13
    assert before == other


def test_none_aliases_from_the_spans_first_block_on(hooks, block_keys, image):
    """The span starts at token 14, in block 0: no block is shared. A prompt with 40 tokens before it shares its first block."""
    ours, other = block_keys(PROMPT, [image]), block_keys(PROMPT, [-image])
    assert len(ours) == 13
    assert not set(ours) & set(other)
    later = [*range(100, 140), *PROMPT]
    ours, other = block_keys(later, [image]), block_keys(later, [-image])
    assert ours[0] == other[0]
    assert not set(ours[1:]) & set(other[1:])


def test_equal_embeddings_keep_all_13(hooks, block_keys, image):
    assert block_keys(PROMPT, [image]) == block_keys(PROMPT, [image.clone()])
    assert block_keys(PROMPT, image) == block_keys(PROMPT, [image])


def test_one_bit_dtype_and_order_are_bound(hooks, block_keys, image):
    flipped = image.clone()
    flipped.view(torch.int16)[390, 63] ^= 1
    prompts = [
        block_keys(PROMPT, [image]),
        block_keys(PROMPT, [flipped]),
        block_keys(PROMPT, [image.view(torch.float16)]),
        block_keys(PROMPT, [image.float()]),
        block_keys(PROMPT, [image.flip(0)]),
    ]
    assert len({keys[0] for keys in prompts}) == len(prompts)
    two = [1, IMAGE_TOKEN, 2, IMAGE_TOKEN, 3]
    a, b = image[:190], image[200:390]
    assert block_keys(two, [a, b])[0] != block_keys(two, [b, a])[0]


def test_eight_signed_big_endian_int32_an_item(secret, image):
    """bfloat16 cannot go through NumPy; the digest's high bit is a sign."""
    from gpukey.integrations.content import content_id
    from gpukey.integrations.tensorrt_llm import multimodal_hash

    words = multimodal_hash(image, secret=secret)
    assert len(words) == 8
    assert all(-(1 << 31) <= word < 1 << 31 for word in words)
    assert struct.pack(">8i", *words) == content_id(image, "image", secret=secret)
    signs = {word < 0 for seed in range(8) for word in multimodal_hash(image[seed : seed + 1], secret=secret)}
    assert signs == {True, False}


def test_what_the_caller_writes_later_changes_neither_key_nor_forward(hooks, engine, image):
    processor = engine.processors.Qwen2VLInputProcessorBase()
    mine = image.clone()
    _, extra = processor._attach_multimodal_embeddings_impl({"prompt": PROMPT}, {"image": [mine]}, None)
    mine.zero_()
    assert torch.equal(extra["multimodal_data"]["multimodal_embedding"][0], image)


def _request(**fields):
    return types.SimpleNamespace(**fields)


def test_other_processors_fail_closed(hooks, engine):
    """imp PR#1180: content without hashes gets blocks of its own, also after the engine has dropped the content."""
    augment = engine.managers.KVCacheManagerV2()._augment_tokens_for_block_reuse
    ids = [IMAGE_TOKEN] * 64
    data = {"multimodal_embedding": [torch.zeros(64, 8)]}
    one, two = _request(py_multimodal_data=dict(data)), _request(py_multimodal_data=dict(data))
    first, second = augment(ids, one), augment(ids, two)
    assert isinstance(first[0], bytes)
    assert len(first[0]) == 32
    assert first[0] != second[0]
    assert first[1:] == second[1:] == ids[1:]
    one.py_multimodal_data.clear()
    assert augment(ids, one) == first
    assert augment(ids, one, 0, 32) == first[:32]
    assert augment(ids, one, start=32, end=64) == ids[32:]


def _attach(engine, given, *arguments, **keywords):
    return engine.processors.Qwen2VLInputProcessorBase()._attach_multimodal_embeddings_impl(
        {"prompt": PROMPT}, given, *arguments, **keywords
    )


def test_keywords_and_positions_are_one_call(hooks, engine, image):
    by_position, by_name = (
        _attach(engine, {"image": [image]}, None),
        _attach(engine, given := {"image": [image]}, sampling_params=None),
    )
    assert given["image"][0] is image
    assert by_position[1]["multimodal_input"] == by_name[1]["multimodal_input"]


@pytest.mark.parametrize(
    "given", [{"video": []}, {"image": [], "video": []}, None], ids=["video", "image and video", "nothing"]
)
def test_what_has_no_known_layout_gets_no_identity_and_so_no_reuse(hooks, engine, image, given, monkeypatch):
    """Videos have another layout; the engine's own answer goes through, and the executor salts the request."""
    if given:
        given = {name: [image] for name in given}
    answer = ([IMAGE_TOKEN] * 64, {"multimodal_data": {"multimodal_embedding": [image]}})
    attach = hooks._attach(lambda self, inputs, embeddings, params: answer, None)
    token_ids, extra = attach(engine.processors.Qwen2VLInputProcessorBase(), {"prompt": PROMPT}, given or {}, None)
    assert extra == {"multimodal_data": {"multimodal_embedding": [image]}}
    request = _request(py_multimodal_data=extra["multimodal_data"])
    assert isinstance(engine.managers.KVCacheManagerV2()._augment_tokens_for_block_reuse(token_ids, request)[0], bytes)


def test_a_processor_without_a_layout_builder_is_left_alone(hooks, engine, image, monkeypatch):
    answer = ([IMAGE_TOKEN] * 64, {"multimodal_data": {"multimodal_embedding": [image]}})
    attach = hooks._attach(lambda self, inputs, embeddings, params: answer, None)
    assert attach(object(), {"prompt": PROMPT}, {"image": [image]}, None) == answer
    assert attach(object(), {"prompt": PROMPT}, ["not a dict"], None) == answer
    assert attach(object(), {"prompt": PROMPT}, {"image": [image]}, None)[1] is answer[1]
    assert hooks._attach(lambda *_: ([1], None), None)(object(), {}, {"image": []}, None) == ([1], None)


def test_a_layout_that_expands_otherwise_is_an_error(hooks, engine, image, monkeypatch):
    attach = hooks._attach(lambda *_: ([1, 2], {"multimodal_data": {"multimodal_embedding": [image]}}), None)
    with pytest.raises(RuntimeError, match="expand the prompt differently"):
        attach(engine.processors.Qwen2VLInputProcessorBase(), {"prompt": PROMPT}, {"image": [image]}, None)


def test_identities_that_the_engine_made_for_itself_stay(hooks, engine, image):
    answer = ([1], {"multimodal_input": "its own", "multimodal_data": {"multimodal_embedding": [image]}})
    attach = hooks._attach(lambda *_: answer, None)
    processor = engine.processors.Qwen2VLInputProcessorBase()
    assert attach(processor, {"prompt": PROMPT}, {"image": [image]}, None)[1]["multimodal_input"] == "its own"


def test_one_hash_for_two_embeddings_is_none(hooks, engine):
    """imp PR#1180: a request that is known in part has an item that is not."""
    two = {"multimodal_embedding": [torch.zeros(2, 8), torch.ones(2, 8)]}
    known = {"multimodal_positions": [1], "multimodal_lengths": [2], "multimodal_hashes": [[1] * 8]}
    augment = engine.managers.KVCacheManagerV2()._augment_tokens_for_block_reuse
    ids = [7, IMAGE_TOKEN, IMAGE_TOKEN, IMAGE_TOKEN, IMAGE_TOKEN, 8]
    first, second = (augment(ids, _request(py_multimodal_data=two, **known)) for _ in range(2))
    assert first[0] != second[0]
    assert first[1:] == second[1:]


def test_the_secret_of_the_start_is_kept(hooks, block_keys, image, monkeypatch):
    before = block_keys(PROMPT, [image])
    monkeypatch.delenv("GPUKEY_SECRET")
    assert block_keys(PROMPT, [image]) == before


@pytest.mark.parametrize("data", [None, {}, {"mrope_config": {"mrope_position_ids": 0}}])
def test_text_requests_are_untouched(hooks, engine, data):
    augment = engine.managers.KVCacheManagerV2()._augment_tokens_for_block_reuse
    assert augment([5] * 40, _request(py_multimodal_data=data)) == [5] * 40
    assert augment([], _request(py_multimodal_data={"image": 1})) == []


def test_identities_that_the_engine_made_stay(hooks, engine):
    augment = engine.managers.KVCacheManagerV2()._augment_tokens_for_block_reuse
    request = _request(
        py_multimodal_data={"image": 1}, multimodal_hashes=[[1] * 8], multimodal_positions=[1], multimodal_lengths=[2]
    )
    assert augment([7, IMAGE_TOKEN, IMAGE_TOKEN, 8], request) == [7, struct.pack(">8i", *[1] * 8), 1001, 8]


def test_install_is_idempotent_undone_and_refuses_what_it_does_not_know(engine, monkeypatch):
    from gpukey.integrations import tensorrt_llm

    processor = engine.processors.Qwen2VLInputProcessorBase
    before = processor._attach_multimodal_embeddings_impl
    assert tensorrt_llm.install() is True
    assert tensorrt_llm.install() is False
    assert tensorrt_llm.uninstall() is True
    assert tensorrt_llm.uninstall() is False
    assert processor._attach_multimodal_embeddings_impl is before

    monkeypatch.setattr(processor, "_attach_multimodal_embeddings_impl", lambda self, inputs, extra: None)
    with pytest.raises(RuntimeError, match=r"takes .*'extra'.*was written for"):
        tensorrt_llm.install()
    monkeypatch.delitem(sys.modules, engine.processors.__name__)
    with pytest.raises(RuntimeError, match="is not in this TensorRT-LLM"):
        tensorrt_llm.install()
    monkeypatch.delenv("GPUKEY_SECRET")
    with pytest.raises(ValueError, match="neither GPUKEY_SECRET nor GPUKEY_SECRET_FILE is set"):
        tensorrt_llm.install()
