"""What else the hooks change in SGLang: adapters apart from extra_key, key ids compared when ranks start; and how they go in and out."""

from __future__ import annotations

import pathlib
import types
from array import array

import pytest

pytestmark = pytest.mark.engine


def _namespace(types_, extra_key, lora_id):
    from sglang.srt.sampling.sampling_params import SamplingParams

    request = types_.Req("r", None, array("q", [1, 2]), SamplingParams(), extra_key=extra_key, lora_id=lora_id)
    return request.extra_key


def test_adapter_ids_alias_extra_keys_without_the_hooks_and_not_with_them(sglang_types, request):
    """vllm#44701's kind of fault in SGLang: (extra_key or "") + lora_id."""
    adapter = "0123456789abcdef" * 2
    pairs = [
        (None, None),
        ("", None),
        ("a", None),
        (adapter, None),
        (None, adapter),
        ("a", adapter),
        ("a" + adapter, None),
        ("lora 1:a" + adapter, None),
        ("ab", adapter),
        ("a", "b" + adapter),
    ]
    blind = [_namespace(sglang_types, *pair) for pair in pairs]
    assert blind[3] == blind[4]
    assert blind[5] == blind[6]

    request.getfixturevalue("installed")
    typed = [_namespace(sglang_types, *pair) for pair in pairs]
    # No extra_key, an empty one and none beside an adapter: only (None, None) stays None, the engine's own default namespace.
    assert typed[0] is None
    assert len(set(typed)) == len(pairs)
    # The engine's KV events look for the adapter's id in the last 32 characters.
    assert all(key.endswith(lora) for key, (_, lora) in zip(typed, pairs, strict=True) if lora)


@pytest.fixture
def start_rank(sglang_types, monkeypatch, secret_bytes):
    """start_rank(**options) -> (what the engine's own function was given, groups compared, the secret) when a rank starts."""
    from sglang.srt.distributed import bootstrap, parallel_state

    from gpukey.integrations import sglang as integration
    from gpukey.integrations.sglang import ranks

    started, compared = [], []
    monkeypatch.setattr(bootstrap, "initialize_model_parallel", lambda **options: started.append(options))
    for name in ("tp", "pp"):
        monkeypatch.setattr(
            parallel_state, f"get_{name}_group", lambda name=name: types.SimpleNamespace(cpu_group=name)
        )
    monkeypatch.setattr(
        ranks, "require_same_secret_on_all_ranks", lambda *, secret, group: compared.append((group, secret.key_id))
    )
    monkeypatch.setenv("GPUKEY_SECRET", secret_bytes.decode())
    integration.install()
    yield lambda **options: (bootstrap.initialize_model_parallel(**options), started, compared)
    integration.uninstall()


def test_ranks_compare_key_ids_when_they_start(start_rank, secret):
    """vllm PR#51875: ranks under two secrets would keep two radix trees. A rank that rejoins starts alone and must not wait for the others."""
    _, started, compared = start_rank(rank_offset=1)
    assert started == [{"rank_offset": 1}]
    assert compared == [("tp", secret.key_id), ("pp", secret.key_id)]
    start_rank(recovered_rank=True)
    assert len(compared) == 2


def test_the_example_says_what_changes(sglang_types, monkeypatch, secret_bytes, capsys):
    import runpy

    from gpukey.integrations import sglang as integration

    monkeypatch.setenv("GPUKEY_SECRET", secret_bytes.decode())
    example = runpy.run_path(str(pathlib.Path(__file__).parents[3] / "examples/sglang_identity.py"))
    try:
        example["main"]()
    finally:
        integration.uninstall()
    before, after, wide = capsys.readouterr().out.splitlines()
    assert before.endswith("2x8 and 4x4 are one image")
    assert after.endswith("2x8 and 4x4 are two")
    assert wide.count(", 1") >= 3


def test_install_is_idempotent_and_undone(sglang_types, monkeypatch, secret_bytes):
    from gpukey.integrations import sglang as integration

    monkeypatch.delenv("GPUKEY_SECRET", raising=False)
    monkeypatch.delenv("GPUKEY_SECRET_FILE", raising=False)
    with pytest.raises(ValueError, match="neither GPUKEY_SECRET nor GPUKEY_SECRET_FILE is set"):
        integration.install()
    before = sglang_types.MultimodalDataItem.set_pad_value, sglang_types.Req.__init__
    monkeypatch.setenv("GPUKEY_SECRET", secret_bytes.decode())
    assert integration.install() is True
    assert integration.install() is False
    assert integration.uninstall() is True
    assert integration.uninstall() is False
    assert (sglang_types.MultimodalDataItem.set_pad_value, sglang_types.Req.__init__) == before


def test_plugin_that_cannot_install_stops_the_server(sglang_types, monkeypatch):
    """SGLang logs the exception of a plugin and serves on; a server that asked for these keys must not."""
    from gpukey.integrations import sglang as integration

    monkeypatch.delenv("GPUKEY_SECRET", raising=False)
    monkeypatch.delenv("GPUKEY_SECRET_FILE", raising=False)
    monkeypatch.delenv("GPUKEY_SGLANG", raising=False)
    assert integration.plugin() is None
    assert not integration._patches.installed
    monkeypatch.setenv("GPUKEY_SGLANG", "1")
    with pytest.raises(SystemExit, match="gpukey could not install"):
        integration.plugin()


def test_unchecked_versions_are_refused(sglang_types, monkeypatch):
    import sglang

    from gpukey.integrations import sglang as integration

    monkeypatch.setattr(sglang, "__version__", "0.6.0")
    with pytest.raises(RuntimeError, match=r"checked with 0\.5\.23; 0\.6\.0 is installed"):
        integration.install()
