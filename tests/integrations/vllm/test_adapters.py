"""LoRA weights in the key: vLLM binds an adapter's name and path, and says itself that a reload in place keeps stale blocks."""

from __future__ import annotations

import pytest

from gpukey.audit.drivers.vllm import VllmKeys
from gpukey.audit.protocol import Options

pytestmark = pytest.mark.engine

IDS = list(range(48))


@pytest.fixture
def adapter(tmp_path):
    """A directory that looks like an adapter's, with 1 KiB of weights."""
    folder = tmp_path / "sql"
    folder.mkdir()
    (folder / "adapter_config.json").write_text("{}")
    (folder / "adapter_model.safetensors").write_bytes(bytes(1024))
    return folder


@pytest.fixture
def lora(kv):
    from vllm.lora.request import LoRARequest

    def make(folder, *, number=1, name="sql", **options):
        return LoRARequest(lora_name=name, lora_int_id=number, lora_path=str(folder), **options)

    return make


@pytest.fixture
def load(monkeypatch):
    """load(lora): what the engine core does for /v1/load_lora_adapter, with a worker that has nothing to do."""
    from types import SimpleNamespace

    from vllm.v1.engine.core import EngineCore

    core = SimpleNamespace(model_executor=SimpleNamespace(add_lora=lambda lora: True))
    return lambda lora: EngineCore.add_lora(core, lora)


def _train(folder):
    (folder / "adapter_model.safetensors").write_bytes(bytes(1023) + b"\1")


def test_without_the_hooks_new_weights_hit_the_old_ones_blocks(admit, adapter, lora, load):
    old = admit(IDS, lora=lora(adapter)).block_hashes
    _train(adapter)
    load(lora(adapter, load_inplace=True))
    assert admit(IDS, lora=lora(adapter)).block_hashes == old


def test_new_weights_have_new_keys_on_every_block(admit, hooks, adapter, lora, load):
    load(lora(adapter))
    old = admit(IDS, lora=lora(adapter)).block_hashes
    assert admit(IDS, lora=lora(adapter)).block_hashes == old
    _train(adapter)
    assert admit(IDS, lora=lora(adapter)).block_hashes == old, "the worker has not read the new weights yet"
    load(lora(adapter, load_inplace=True))
    new = admit(IDS, lora=lora(adapter)).block_hashes
    assert len(new) == 3
    assert not set(new) & set(old)


def test_each_request_that_loads_in_place_sees_what_is_there(admit, hooks, adapter, lora):
    one = admit(IDS, lora=lora(adapter, load_inplace=True)).block_hashes
    assert admit(IDS, lora=lora(adapter, load_inplace=True)).block_hashes == one
    _train(adapter)
    assert not set(admit(IDS, lora=lora(adapter, load_inplace=True)).block_hashes) & set(one)


def test_unload_and_load_under_the_same_name(admit, hooks, adapter, lora):
    """vllm#42125: the server gives the adapter a new number, the name and the path stay."""
    one = admit(IDS, lora=lora(adapter, number=1)).block_hashes
    assert admit(IDS, lora=lora(adapter, number=2)).block_hashes == one, "the same weights"
    _train(adapter)
    assert not set(admit(IDS, lora=lora(adapter, number=3)).block_hashes) & set(one)


def test_weights_that_cannot_be_read_share_with_no_other_load(admit, hooks, tmp_path, lora, load):
    gone = tmp_path / "hub" / "repository"
    load(lora(gone))
    one = admit(IDS, lora=lora(gone)).block_hashes
    assert admit(IDS, lora=lora(gone)).block_hashes == one
    load(lora(gone))
    assert not set(admit(IDS, lora=lora(gone)).block_hashes) & set(one)


def test_the_version_stays_inside_the_adapter_field(kv, admit, hooks, adapter, lora):
    """Events publish the second element of each field, so consumers see what they did."""
    request = admit(IDS, lora=lora(adapter), salt="tenant")
    keys, _ = kv.generate_block_hash_extra_keys(request, 0, 16, 0)
    assert [key[0] for key in keys] == ["lora", "cache_salt"]
    assert keys[0][:3] == ("lora", "sql", str(adapter))
    assert len(bytes.fromhex(keys[0][3])) == 16
    assert kv.to_event_extra_keys([keys]) == [("sql", "tenant")]


def test_name_and_salt_do_not_alias(kv, admit, hooks, adapter, lora):
    """vllm#44701: adapter "X" without a salt against salt "X" without an adapter."""
    adapted, salted = admit(IDS, lora=lora(adapter, name="X")), admit(IDS, salt="X")
    assert not set(adapted.block_hashes) & set(salted.block_hashes)
    assert VllmKeys(Options(lora_salt=True)).lora_against_salt(IDS) == 0


def test_a_request_without_an_adapter_costs_nothing(admit, hooks):
    assert "_gpukey_lora_version" not in admit(IDS, salt="tenant").__dict__
