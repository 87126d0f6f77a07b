"""lmdeploy#4933: the prefix trie does not see input embeddings, and does with the hooks. 79 tokens, blocks of 16, rows at [20, 44)."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch

from gpukey import reference

pytestmark = pytest.mark.engine

IDS = list(range(100, 179))
START, END = 20, 44


@pytest.fixture
def rows():
    return torch.randn(END - START, 24, generator=torch.Generator().manual_seed(3)).bfloat16()


def _bit(rows):
    other = rows.clone()
    other.view(torch.int16)[11, 5] ^= 1
    return other


OTHERS = {
    "-E": lambda e: [(START, -e)],
    "one bit": lambda e: [(START, _bit(e))],
    "float16": lambda e: [(START, e.view(torch.float16))],
    "wider": lambda e: [(START, torch.cat([e, e], 1))],
    "cut in two": lambda e: [(START, e[:10]), (START + 10, e[10:])],
    "one row later": lambda e: [(START + 1, e)],
    "no rows": lambda e: None,
}


@pytest.mark.parametrize("other", OTHERS)
def test_without_the_hooks_another_content_is_reused(engine, rows, other):
    assert engine.run(IDS, [(START, rows)])[1] == 0
    assert engine.run(IDS, OTHERS[other](rows))[1] == 64


@pytest.mark.parametrize("other", OTHERS)
def test_with_the_hooks_only_what_precedes_the_span(engine, hooks, rows, other):
    assert engine.run(IDS, [(START, rows)])[1] == 0
    assert engine.run(IDS, OTHERS[other](rows))[1] == 16
    assert engine.run(IDS, [(START, rows.clone())])[1] == 64


def test_two_spans_and_numpy(engine, hooks):
    one, two = np.random.default_rng(1).standard_normal((2, 8, 24), dtype=np.float32)
    spans = [(4, torch.from_numpy(one)), (50, torch.from_numpy(two))]
    assert engine.run(IDS, spans)[1] == 0
    assert engine.run(IDS, [(4, one.copy()), (50, two.copy())])[1] == 64
    assert engine.run(IDS, [(4, one), (50, one)])[1] == 48
    assert engine.run(IDS, [(4, two), (50, one)])[1] == 0


def test_the_identity_is_the_span_fingerprint(engine, hooks, rows, secret_bytes):
    raw = [bytes(row.view(torch.uint8).tolist()) for row in rows]
    prints = [reference.row_fingerprint(secret_bytes, row, "bfloat16", 24) for row in raw]
    assert hooks.fingerprint(rows) == reference.span_fingerprint(secret_bytes, prints, "bfloat16", 24).hex()


def test_a_second_turn_keys_the_positions_that_the_engine_uses(engine, hooks, rows):
    """LMDeploy puts the rows of a second turn one position early, where the last sampled token stands."""
    from lmdeploy.pytorch.messages import InputEmbeddings, UpdateTokenMode

    sequence = engine.admit(IDS[:20], None)
    sequence.state.activate()
    sequence.update_token_ids(np.array([7]), mode=UpdateTokenMode.PREFILL)
    sequence.state.stop()
    sequence.update_token_ids(
        np.array(IDS[20:60]), embeddings=[InputEmbeddings(rows[:8], 0, 8)], mode=UpdateTokenMode.INPUTS
    )
    (used,) = sequence.input_embeddings
    recorded = getattr(sequence.prefix_cache, "multimodal_spans", None) or sequence.prefix_cache.metas
    assert [(span.start, span.end) for span in recorded] == [(used.start, used.end)] == [(20, 28)]
    assert recorded[0].content_hash == hooks.fingerprint(rows[:8])


def test_what_the_caller_writes_later_changes_nothing(engine, hooks, rows):
    from lmdeploy.pytorch.messages import InputEmbeddings

    mine = rows.clone()
    span = InputEmbeddings(mine, START, END)
    mine.zero_()
    assert torch.equal(span.embeddings, rows)
    assert span._gpukey[1] == hooks.fingerprint(rows)


@pytest.mark.parametrize("travel", [copy.copy, copy.deepcopy, lambda span: pickle.loads(pickle.dumps(span))])
def test_a_digest_travels_with_its_rows(engine, hooks, rows, travel):
    """To an engine in another process."""
    from lmdeploy.pytorch.messages import InputEmbeddings

    span = travel(InputEmbeddings(rows, START, END))
    assert hooks._identity(span) == hooks.fingerprint(rows)


def test_exchanged_rows_are_not_reused(engine, hooks, rows, caplog):
    from lmdeploy.pytorch.messages import InputEmbeddings

    span = InputEmbeddings(rows, START, END)
    span.embeddings = -rows
    one, two = hooks._identity(span), hooks._identity(span)
    assert len({one, two, hooks.fingerprint(rows), hooks.fingerprint(-rows)}) == 4
    assert "exchanged after submit" in caplog.text


@pytest.mark.parametrize("shape", [(23, 24), (25, 24), (24,), (24, 2, 12)])
def test_rows_must_fill_the_span(engine, hooks, shape):
    """sglang PR#36595: an error at submit, before anything runs."""
    from lmdeploy.pytorch.messages import InputEmbeddings

    with pytest.raises(ValueError, match=r"24 rows are needed for the span \[20, 44\)"):
        InputEmbeddings(torch.zeros(shape), START, END)


def test_the_digest_is_made_at_submit(engine, hooks, rows, monkeypatch):
    from lmdeploy.pytorch.messages import InputEmbeddings, SamplingParam

    span = InputEmbeddings(rows, START, END)

    def forbidden(*_):
        raise AssertionError("hashed on the engine loop")

    monkeypatch.setattr(hooks, "fingerprint", forbidden)
    session = engine.scheduler.add_session(1000)
    session.add_sequence(np.array(IDS), SamplingParam(), input_embeddings=[span])
    session.add_sequence(np.array(IDS), SamplingParam())


def test_without_prefix_caching_nothing_is_recorded(hooks, rows):
    from lmdeploy.pytorch.messages import InputEmbeddings, SamplingParam

    from gpukey.audit.drivers.lmdeploy import scheduler

    session = scheduler(16, enable_prefix_caching=False).add_session(1)
    sequence = session.add_sequence(
        np.array(IDS), SamplingParam(), input_embeddings=[InputEmbeddings(rows, START, END)]
    )
    assert not vars(sequence.prefix_cache).get("multimodal_spans", vars(sequence.prefix_cache).get("metas"))
