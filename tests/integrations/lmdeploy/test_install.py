"""install() and uninstall() for LMDeploy: once, from any thread, for versions that were read."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from inspect import getattr_static

import pytest

pytestmark = pytest.mark.engine


@pytest.fixture
def integration(engine):
    import gpukey.integrations.lmdeploy as integration

    yield integration
    integration.uninstall()


def _places():
    from lmdeploy.pytorch.messages import InputEmbeddings, SchedulerSequence

    places = [(InputEmbeddings, "__init__"), (SchedulerSequence, "_update_embeddings")]
    return [(owner, name, getattr_static(owner, name)) for owner, name in places]


def test_uninstall_leaves_everything_as_it_was(integration, caplog):
    before = _places()
    with caplog.at_level(logging.INFO, "gpukey"):
        assert integration.install()
        assert all(getattr_static(owner, name) is not found for owner, name, found in before)
        assert not integration.install()
        assert len(caplog.messages) == 1
        assert integration.uninstall()
    assert all(getattr_static(owner, name) is found for owner, name, found in before)
    assert not integration.uninstall()


def test_from_many_threads_it_goes_in_once(integration):
    before = _places()
    with ThreadPoolExecutor(8) as pool:
        changed = list(pool.map(lambda _: integration.install(), range(32)))
    assert changed.count(True) == 1
    integration.uninstall()
    assert all(getattr_static(owner, name) is found for owner, name, found in before)


@pytest.mark.parametrize("version", ["0.13.0", "0.19.0", "1.0.0", "dev"])
def test_other_versions_are_refused(integration, monkeypatch, version):
    monkeypatch.setattr("lmdeploy.version.__version__", version)
    with pytest.raises(RuntimeError, match=rf"LMDeploy were checked with 0\.14 to 0\.18; {version} is installed"):
        integration.install()
