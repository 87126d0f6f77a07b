"""Objects of TensorRT-LLM's shape: its wheel needs a GPU, so nothing here shows that the engine itself works with the hooks."""

from __future__ import annotations

import hashlib
import sys
import types

import pytest
import torch

VOCAB_SIZE = 1000
IMAGE_TOKEN = 999
BLOCK = 32


class Layout:
    """What the layout builder returns: the expanded prompt and where the items stand."""

    def __init__(self, prompt_token_ids, positions, lengths):
        self.prompt_token_ids, self.positions, self.lengths = prompt_token_ids, positions, lengths

    def to_multimodal_input(self, hashes):
        if len(hashes) != len(self.positions):
            raise ValueError("one hash an item")
        for one in hashes:
            if len(one) != 8 or not all(type(word) is int and -(1 << 31) <= word < 1 << 31 for word in one):
                raise ValueError("a hash is 8 signed int32")
        return types.SimpleNamespace(
            multimodal_hashes=hashes, multimodal_positions=self.positions, multimodal_lengths=self.lengths
        )


class Qwen2VLInputProcessorBase:
    """A prompt is a list of ids in which IMAGE_TOKEN stands once for each image."""

    def build_disagg_prefill_multimodal_inputs(self, inputs, mm_handles):
        ids, positions, lengths, handles = [], [], [], iter(mm_handles)
        for token in inputs["prompt"]:
            if token == IMAGE_TOKEN:
                length = next(handles)["tensor_size"][0]
                positions.append(len(ids))
                lengths.append(length)
                ids += [IMAGE_TOKEN] * length
            else:
                ids.append(token)
        return Layout(ids, positions, lengths)

    def _attach_multimodal_embeddings_impl(self, inputs, multimodal_embedding, sampling_params):
        images = multimodal_embedding["image"]
        images = [images] if isinstance(images, torch.Tensor) else images
        handles = [{"tensor_size": tuple(image.shape)} for image in images]
        ids = self.build_disagg_prefill_multimodal_inputs(inputs, handles).prompt_token_ids
        return ids, {"multimodal_data": {"multimodal_embedding": images, "mrope_config": {"mrope_position_ids": None}}}


class KVCacheManagerV2:
    """The digest stands at an item's first token, ids above the vocabulary at its others; requests without hashes keep placeholders."""

    vocab_size = VOCAB_SIZE

    def _augment_tokens_for_block_reuse(self, tokens, req, start=0, end=None):
        out = list(tokens)
        for words, position, length in zip(
            getattr(req, "multimodal_hashes", None) or [],
            getattr(req, "multimodal_positions", None) or [],
            getattr(req, "multimodal_lengths", None) or [],
            strict=True,
        ):
            out[position] = b"".join(word.to_bytes(4, "big", signed=True) for word in words)
            out[position + 1 : position + length] = [self.vocab_size + i for i in range(1, length)]
        return out[start:end]


@pytest.fixture
def engine(monkeypatch, secret_bytes):
    """The two classes, importable under TensorRT-LLM's names, with a configured secret."""
    processors = types.ModuleType("tensorrt_llm._torch.models.modeling_qwen2vl")
    managers = types.ModuleType("tensorrt_llm._torch.pyexecutor.kv_cache_manager_v2")
    processors.Qwen2VLInputProcessorBase = type("Qwen2VLInputProcessorBase", (), dict(vars(Qwen2VLInputProcessorBase)))
    managers.KVCacheManagerV2 = type("KVCacheManagerV2", (), dict(vars(KVCacheManagerV2)))
    for module in (processors, managers):
        parts = module.__name__.split(".")
        for end in range(1, len(parts)):
            package = types.ModuleType(".".join(parts[:end]))
            package.__path__ = []
            if package.__name__ not in sys.modules:
                monkeypatch.setitem(sys.modules, package.__name__, package)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setenv("GPUKEY_SECRET", secret_bytes.decode())
    return types.SimpleNamespace(processors=processors, managers=managers)


@pytest.fixture
def hooks(engine):
    """The integration, installed for one test."""
    from gpukey.integrations import tensorrt_llm

    assert tensorrt_llm.install()
    yield tensorrt_llm
    assert tensorrt_llm.uninstall()


@pytest.fixture
def block_keys(engine):
    """block_keys(prompt, images) -> the keys of the full blocks of that request, as the engine chains them."""

    def keys(prompt, images):
        ids, extra = engine.processors.Qwen2VLInputProcessorBase()._attach_multimodal_embeddings_impl(
            {"prompt": prompt}, {"image": images}, None
        )
        known = vars(extra["multimodal_input"]) if "multimodal_input" in extra else {}
        request = types.SimpleNamespace(py_multimodal_data=extra["multimodal_data"], **known)
        return chain(engine.managers.KVCacheManagerV2()._augment_tokens_for_block_reuse(ids, request))

    return keys


def chain(tokens):
    """SHA-256 over the parent and each token: 8 bytes of an id, 32 of a digest, told apart by a tag."""
    parent, out = b"", []
    for start in range(0, len(tokens) // BLOCK * BLOCK, BLOCK):
        body = b"".join(
            b"d" + t if isinstance(t, bytes) else b"i" + t.to_bytes(8, "little") for t in tokens[start : start + BLOCK]
        )
        parent = hashlib.sha256(parent + body).digest()
        out.append(parent)
    return out
