"""vLLM's own Request, block hasher and multimodal hasher, in vLLM's environment (.ci/engines/vllm.sh)."""

from __future__ import annotations

import itertools
import warnings
from types import SimpleNamespace

import pytest

BLOCK = 16


@pytest.fixture(scope="session")
def kv():
    """vllm.v1.core.kv_cache_utils, ready to hash."""
    warnings.simplefilter("ignore")
    from vllm.utils.hashing import sha256
    from vllm.v1.core import kv_cache_utils

    kv_cache_utils.init_none_hash(sha256)
    return kv_cache_utils


@pytest.fixture
def hooks(kv, monkeypatch, secret):
    """gpukey's hooks, in for one test, with a configured secret; the engine core is another process, as by default."""
    import gpukey.integrations.vllm as integration

    monkeypatch.setattr("gpukey.secret._default", secret)
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
    monkeypatch.delenv("GPUKEY_VLLM", raising=False)
    assert integration.install()
    yield integration
    integration.uninstall()


@pytest.fixture
def one_process(monkeypatch):
    """The engine core in the caller's process."""
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")


@pytest.fixture
def admit(kv):
    """admit(token_ids=None, embeds=None, mask=None, **fields) -> a Request, made as the engine core makes it."""
    from vllm import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.engine import EngineCoreRequest
    from vllm.v1.request import Request

    numbers = itertools.count()

    def make(
        token_ids=None, embeds=None, mask=None, *, lora=None, salt=None, extra=None, block_size=BLOCK, params=None
    ):
        made = EngineCoreRequest(
            request_id=str(next(numbers)),
            prompt_token_ids=token_ids,
            mm_features=None,
            sampling_params=params or SamplingParams(max_tokens=4, extra_args=extra),
            pooling_params=None,
            arrival_time=0.0,
            lora_request=lora,
            cache_salt=salt,
            data_parallel_rank=None,
            prompt_embeds=embeds,
            prompt_is_token_ids=mask,
        )
        return Request.from_engine_core_request(made, kv.get_request_block_hasher(block_size, sha256))

    return make


@pytest.fixture
def mm_hash(kv):
    """mm_hash(item, **options) -> the identifier that vLLM gives an image item."""
    from vllm.multimodal.processing.inputs import ProcessorInputs

    def identify(item, *, uuid=None, **options):
        items = {"image": SimpleNamespace(get_all_items_for_hash=lambda: [item], __len__=lambda self: 1)}
        inputs = ProcessorInputs([], items, {"image": [uuid]}, hf_processor_mm_kwargs=options)
        return inputs.get_mm_hashes("model", "blake3")["image"][0]

    return identify
