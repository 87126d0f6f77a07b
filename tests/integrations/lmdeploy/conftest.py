"""LMDeploy's own scheduler, block manager and prefix trie, in LMDeploy's environment (.ci/engines/lmdeploy.sh)."""

from __future__ import annotations

import warnings

import pytest

BLOCK = 16


@pytest.fixture
def engine():
    """The audit's driver: admit(ids, embeds), end(sequence), run(ids, embeds)."""
    warnings.simplefilter("ignore")
    from gpukey.audit.drivers.lmdeploy import LmdeployDriver
    from gpukey.audit.protocol import Options

    return LmdeployDriver(Options(engine="lmdeploy", block_size=BLOCK))


@pytest.fixture
def hooks(engine, monkeypatch, secret):
    """gpukey's hooks, in for one test, with a configured secret."""
    import gpukey.integrations.lmdeploy as integration

    monkeypatch.setattr("gpukey.secret._default", secret)
    assert integration.install()
    yield integration
    integration.uninstall()
