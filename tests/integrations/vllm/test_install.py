"""install() and uninstall(): once, from any thread, all or nothing, for versions that were read."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from inspect import getattr_static
from types import SimpleNamespace

import pytest

from gpukey.secret import Secret

pytestmark = pytest.mark.engine


@pytest.fixture
def integration(kv, monkeypatch):
    import gpukey.integrations.vllm as integration

    monkeypatch.delenv("GPUKEY_VLLM", raising=False)
    yield integration
    integration.uninstall()


def _places():
    from gpukey.integrations.vllm import _hooks

    return [(owner, name, getattr_static(owner, name)) for owner, name, _ in _hooks()]


def test_uninstall_leaves_everything_as_it_was(integration, monkeypatch, caplog):
    import os

    before = _places()
    with caplog.at_level(logging.INFO, "gpukey"):
        assert integration.install()
        assert os.environ["GPUKEY_VLLM"] == "1", "engine processes inherit it"
        assert all(getattr_static(owner, name) is not found for owner, name, found in before)
        assert not integration.install()
        assert len(caplog.messages) == 1
        assert integration.uninstall()
    assert all(getattr_static(owner, name) is found for owner, name, found in before)
    assert not integration.uninstall()
    assert "GPUKEY_VLLM" not in os.environ


def test_from_many_threads_it_goes_in_once(integration):
    before = _places()
    with ThreadPoolExecutor(8) as pool:
        changed = list(pool.map(lambda _: integration.install(), range(32)))
    assert changed.count(True) == 1
    integration.uninstall()
    assert all(getattr_static(owner, name) is found for owner, name, found in before)


def test_a_patch_on_top_is_not_lost(integration, kv, monkeypatch):
    integration.install()
    ours = kv._gen_lora_extra_hash_keys
    with monkeypatch.context() as patch:
        patch.setattr(kv, "_gen_lora_extra_hash_keys", lambda request: ours(request))
        with pytest.raises(RuntimeError, match="_gen_lora_extra_hash_keys was replaced again"):
            integration.uninstall()
    assert integration.uninstall()


def test_a_hook_that_finds_nothing_leaves_nothing(integration, monkeypatch):
    from vllm.v1.core.sched.scheduler import Scheduler

    before = _places()

    def broken():
        yield from integration.prompt_embeds.hooks()
        yield Scheduler, "no_such_method", lambda found: found

    monkeypatch.setattr(integration, "_hooks", broken)
    with pytest.raises(AttributeError, match="no_such_method"):
        integration.install()
    assert all(getattr_static(owner, name) is found for owner, name, found in before)


@pytest.mark.parametrize("version", ["0.30.0", "0.34.0", "1.0.0", "dev", "0.3.1"])
def test_other_versions_are_refused(integration, monkeypatch, version):
    monkeypatch.setattr("vllm.__version__", version)
    with pytest.raises(RuntimeError, match=rf"vLLM were checked with 0\.31 to 0\.33; {version} is installed"):
        integration.install()


def test_the_plugin_waits_for_its_switch(integration, monkeypatch):
    integration.plugin()
    assert not integration.uninstall()
    monkeypatch.setenv("GPUKEY_VLLM", "1")
    integration.plugin()
    integration.plugin()
    assert integration.uninstall()


def test_an_engine_core_that_would_run_without_the_hooks(integration, monkeypatch):
    """By default it is another process, which finds the plugin by its entry point."""
    with monkeypatch.context() as patch:
        patch.setenv("VLLM_PLUGINS", "another")
        with pytest.raises(RuntimeError, match="VLLM_PLUGINS leaves out 'gpukey'"):
            integration.install()
        patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        assert integration.install()
        integration.uninstall()
    monkeypatch.setattr(integration, "entry_points", lambda group: SimpleNamespace(names=set()))
    with pytest.raises(RuntimeError, match="pip install it"):
        integration.install()


def _config(connector=None, *, events=False, encoder=None, inner=(), embeds=True):
    extra = {"connectors": [{"kv_connector": name} for name in inner]} if inner else None
    transfer = SimpleNamespace(kv_connector=connector, kv_connector_extra_config=extra) if connector else None
    return SimpleNamespace(
        kv_transfer_config=transfer,
        kv_events_config=SimpleNamespace(enable_kv_cache_events=events),
        ec_transfer_config=encoder,
        model_config=SimpleNamespace(enable_prompt_embeds=embeds),
    )


EXPORTS = [
    ("kv_connector MooncakeStoreConnector", _config("MooncakeStoreConnector")),
    ("kv_connector NixlConnector", _config("MultiConnector", inner=["SimpleCPUOffloadConnector", "NixlConnector"])),
    ("kv_events_config", _config(events=True)),
    ("ec_transfer_config", _config(encoder=object())),
]


@pytest.mark.parametrize(("what", "config"), EXPORTS)
def test_keys_that_leave_the_process_need_a_configured_secret(hooks, monkeypatch, what, config):
    from vllm.v1.core.sched.scheduler import Scheduler

    hooks.export.check(config)
    monkeypatch.setattr("gpukey.secret._default", Secret.random())
    with pytest.raises(ValueError, match=f"{what} shares keys between processes.*GPUKEY_SECRET_FILE"):
        Scheduler(config)


def test_a_private_cache_needs_none(hooks, monkeypatch):
    monkeypatch.setattr("gpukey.secret._default", Secret.random())
    hooks.export.check(_config())
    hooks.export.check(_config("SimpleCPUOffloadConnector"))


def test_a_store_that_sees_tokens_alone_gets_no_embeddings(hooks):
    with pytest.raises(ValueError, match="LMCacheConnectorV1, which keys blocks by token ids alone"):
        hooks.export.check(_config("LMCacheConnectorV1"))
    hooks.export.check(_config("LMCacheConnectorV1", embeds=False))
