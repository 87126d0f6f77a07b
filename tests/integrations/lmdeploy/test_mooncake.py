"""The Mooncake store connector saves text requests by token ids alone: no such request may hold another one's embeddings."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.engine

IDS = list(range(100, 179))
EMBEDS = [(20, torch.ones(24, 8))]


@pytest.fixture
def producer(engine):
    """The driver over a scheduler with a Mooncake store connector that saves; the store itself is not reached."""
    from lmdeploy.version import __version__

    if tuple(map(int, __version__.split(".")[:2])) < (0, 17):
        pytest.skip("LMDeploy before 0.17 has no Mooncake store connector")
    from lmdeploy.messages import KVTransferConfig
    from lmdeploy.pytorch.kv_connector.base import KVConnectorRole
    from lmdeploy.pytorch.kv_connector.mooncake.store.connector import MooncakeStoreConnector

    from gpukey.audit.drivers.lmdeploy import scheduler

    engine.scheduler = scheduler(
        16,
        lambda cache: MooncakeStoreConnector(KVConnectorRole.SCHEDULER, cache),
        kv_transfer_config=KVTransferConfig(kv_connector="MooncakeStoreConnector", kv_role="kv_producer"),
    )
    return engine


def _published(engine, embeds):
    """(block ids that the connector would publish, all block ids) of one request."""
    sequence = engine.admit(IDS, embeds)
    table = [int(block) for block in engine.scheduler.block_manager.get_block_table(sequence)]
    metadata = engine.scheduler.build_connector_meta([sequence], connector_token_lens=(len(IDS),))
    saves = metadata.save_requests if metadata else ()
    return [block for save in saves for block in save.block_ids], table


def test_without_the_hooks_embeddings_are_published_as_text(producer):
    saved, owned = _published(producer, EMBEDS)
    assert saved == []
    poisoned, _ = _published(producer, None)
    assert poisoned == owned[:4], "the blocks of the request with embeddings, under a text request's keys"


def test_with_the_hooks_text_is_published_from_its_own_blocks(producer, hooks):
    saved, owned = _published(producer, EMBEDS)
    assert saved == []
    published, _ = _published(producer, None)
    assert len(published) == 4
    assert published[0] == owned[0], "the block before the span holds text alone"
    assert not set(published[1:]) & set(owned)
