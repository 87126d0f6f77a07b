"""What is shared and what is not: turns, recycled blocks, salts, items, weights. Rows of shared/cases.md by name."""

import pytest
import schedules
import torch
from witness import Witness

from gpukey.engine import LLM, EngineConfig, Prompt, SamplingParams
from gpukey.engine.core import Engine
from gpukey.keys import EmbeddingSpan, MultimodalItem, Root, block_keys

PARAMS = SamplingParams(max_tokens=6)


def test_second_identical_request_equals_the_first(llm, rows, ids):
    """TRT-LLM#14125: rows of cached positions are sliced off, wherever the hit ends in the span."""
    for start, count in ((0, 40), (3, 30), (17, 6), (39, 1)):
        prompt = Prompt(ids(40, seed=start), [(start, rows(count, seed=start))])
        first, second = (llm.generate(prompt, PARAMS)[0] for _ in range(2))
        assert (first.num_cached_tokens, second.num_cached_tokens) == (0, 36)
        assert first.token_ids == second.token_ids


def test_evict_and_refill_two_hundred_times(rows, ids, secret):
    """kvcached#362: in a pool that holds two requests, every output equals its cold run."""
    llm = LLM(dtype=torch.float64, secret=secret, block_size=4, num_blocks=15)
    prompts = [Prompt(ids(24, seed=i % 3), [(6, rows(9, seed=i))]) for i in range(7)]
    want = []
    for prompt in prompts:
        llm.evict_all()
        want.append(llm.generate(prompt, PARAMS)[0].token_ids)
    hits = 0
    for turn in range(200):
        which = (turn * 3) % 7 if turn % 5 else (turn - 1) * 3 % 7
        out = llm.generate(prompts[which], PARAMS)[0]
        assert out.token_ids == want[which], turn
        hits += out.num_cached_tokens > 0
        llm.engine.check()
    assert llm.stats.evictions > 200
    assert hits > 20


def test_two_identical_prompts_in_one_step(llm, ids):
    """nano-vllm#219: one block each is kept, none leaks, counts return to zero."""
    outs = llm.generate([ids(17)] * 3, PARAMS)
    cache = llm.engine.scheduler.cache
    assert outs[0].token_ids == outs[1].token_ids == outs[2].token_ids
    assert cache.num_free == cache.num_blocks
    assert cache.num_cached == (17 + 5) // 4
    llm.engine.check()


def test_decoded_blocks_serve_the_next_turn(llm, rows, ids):
    prompt, spans = ids(10), [(2, rows(5))]
    first = llm.generate(Prompt(prompt, spans), SamplingParams(max_tokens=12))[0]
    turn = Prompt([*prompt, *first.token_ids, *ids(3, seed=9)], spans)
    second = llm.generate(turn, PARAMS)[0]
    assert second.num_cached_tokens == (10 + 11) // 4 * 4
    llm.evict_all()
    assert llm.generate(turn, PARAMS)[0].token_ids == second.token_ids


def test_a_partial_block_is_never_hit(llm, ids):
    """vllm#49125: blocks of 4 and 6 tokens in common share one block."""
    llm.generate([ids(6)], SamplingParams(max_tokens=1))
    assert llm.generate([[*ids(6), 1, 2]], PARAMS)[0].num_cached_tokens == 4


def test_divergence_inside_a_block_shares_nothing_of_it(llm, ids):
    """Mooncake#4153."""
    llm.generate([ids(16)], PARAMS)
    other = [*ids(16)[:10], *[(token + 1) % 512 for token in ids(16)[10:]], 5]
    assert llm.generate([other], PARAMS)[0].num_cached_tokens == 8


def test_salts_and_their_types_do_not_meet(llm, ids):
    salts = [None, "", "x", b"x", "y"]
    for salt in salts:
        assert llm.generate(Prompt(ids(16), cache_salt=salt), PARAMS)[0].num_cached_tokens == 0
    for salt in salts:
        assert llm.generate(Prompt(ids(16), cache_salt=salt), PARAMS)[0].num_cached_tokens == 12


def test_items_with_equal_placeholders(llm, ids):
    """LMCache#690: no hit in or after the item; their order counts too (dynamo PR#4577)."""

    def ask(*identifiers):
        items = [MultimodalItem(4 + 6 * i, 6, "image", identifier) for i, identifier in enumerate(identifiers)]
        return llm.generate(Prompt([*ids(4), *[9] * 12, *ids(4)], items=items), PARAMS)[0].num_cached_tokens

    a, b = b"p" * 16, b"q" * 16
    assert [ask(a, b), ask(a, b), ask(b, a), ask(b, b)] == [0, 16, 4, 8]


def test_layout_is_bound(llm, rows, ids):
    from gpukey.engine import EmbedSpan

    spans = [EmbedSpan(4, rows(8), layout=layout) for layout in (b"", b"2x4", b"4x2")]
    cached = [llm.generate(Prompt(ids(20), [span]), PARAMS)[0].num_cached_tokens for span in (*spans, *spans)]
    assert cached == [0, 4, 4, 16, 16, 16]


def test_the_engine_s_keys_are_gpukey_s(llm, rows, ids, secret):
    """vllm#42119, sglang#24568: one key builder; what the cache holds is block_keys of the same prompt, byte for byte."""
    request = llm.submit(Prompt(ids(18), [(5, rows(9))], cache_salt="s"), PARAMS)
    while request.finish_reason is None:
        llm.engine.step()
    import gpukey

    root = Root(**llm.engine.runner.identity, weights_version="0", kv_layout="gpukey-engine-1", cache_salt="s")
    span = EmbeddingSpan(5, gpukey.fingerprint_rows(rows(9), secret=secret).numpy())
    tokens = request.prompt_ids + request.output_ids
    keys = block_keys(tokens[:-1], block_size=4, root=root, secret=secret, embeds=[span])
    assert set(keys) == set(llm.engine.scheduler.cache._by_key)


class TestWeights:
    """lmdeploy#4917: nothing is hit after an update of the weights."""

    def test_no_hit_after_an_update(self, llm, ids, reference):
        before = llm.generate([ids(20)], PARAMS)[0]
        state = {name: 1.5 * weight for name, weight in reference.state_dict().items()}
        llm.update_weights(state)
        after = llm.generate([ids(20)], PARAMS)[0]
        assert after.num_cached_tokens == 0
        assert after.token_ids != before.token_ids
        assert llm.generate([ids(20)], PARAMS)[0].num_cached_tokens == 16
        with pytest.raises(ValueError, match="which the model has not"):
            llm.update_weights({"nonsense": torch.zeros(1)})
        assert llm.generate([ids(20)], PARAMS)[0].num_cached_tokens == 0

    def test_requests_under_way_are_computed_anew(self):
        """All KV of a request is of one version: with the witness, the next token is that of a fresh engine."""
        engine = Engine(Witness(), EngineConfig(block_size=4, num_blocks=64), schedules.SECRET)
        request = engine.submit(Prompt([3] * 9), SamplingParams(max_tokens=8))
        for _ in range(4):
            engine.step()
        engine.update_weights(lambda runner: setattr(runner, "epoch", 1))
        done = list(request.output_ids)
        fresh = Engine(Witness(), EngineConfig(block_size=4, num_blocks=64), schedules.SECRET)
        fresh.runner.epoch = 1
        rest = fresh.submit(Prompt([3] * 9 + done), SamplingParams(max_tokens=8 - len(done)))
        for running in (engine, fresh):
            while running.has_unfinished:
                running.step()
                running.check()
        assert request.output_ids == done + rest.output_ids

    def test_versions_are_named_once(self, llm):
        llm.update_weights(lambda runner: None, version="v2")
        with pytest.raises(ValueError, match="'v2', the present one"):
            llm.update_weights(lambda runner: None, version="v2")
        llm.update_weights(lambda runner: None)
        assert llm.engine.keying.weights_version == "v2+1"
