"""What goes wrong in one place stays there: forwards that raise, NaN rows, aborts, exhausted pools."""

import itertools
import math

import pytest
import schedules
import torch
from plants import keyed_before_computed, nan_published, padded_with_block_zero
from witness import Witness

from gpukey.engine import LLM, EngineConfig, Prompt, RequestFailed, SamplingParams
from gpukey.engine.core import Engine

PARAMS = SamplingParams(max_tokens=6)


def engine(**options):
    made = Engine(Witness(), EngineConfig(block_size=4, num_blocks=64, **options), schedules.SECRET)
    for name in schedules.ADAPTERS:
        made.load_lora(name, f"/{name}", version="1")
    return made


def drain(made):
    while made.has_unfinished:
        made.step()
        made.check()


def alone(prompt):
    fresh = engine()
    request = fresh.submit(prompt, PARAMS)
    drain(fresh)
    return request.output_ids


def test_a_forward_that_raises_in_the_middle_of_a_batch():
    """vllm PR#26813: its requests fail with the cause, no key stays behind, the pool is whole, the next ones run."""
    made, prompts = engine(), [Prompt(list(range(i, i + 13))) for i in range(4)]
    made.runner.fail_at = frozenset([0])
    failed = [made.submit(prompt, PARAMS) for prompt in prompts]
    drain(made)
    assert {request.finish_reason for request in failed} == {"error"}
    assert all("told to fail" in str(request.error) for request in failed)
    cache = made.scheduler.cache
    assert (cache.num_free, cache.num_cached, made.stats.requests_failed) == (64, 0, 4)
    again = [made.submit(prompt, PARAMS) for prompt in prompts]
    drain(made)
    assert [request.num_cached_tokens for request in again] == [0] * 4
    assert [request.output_ids for request in again] == [alone(prompt) for prompt in prompts]


def later_outputs_are_right_after_failures() -> bool:
    right = True
    for step in range(6):
        made, prompts = engine(max_num_batched_tokens=7), [Prompt(list(range(i, i + 13))) for i in range(3)]
        made.runner.fail_at = frozenset([step])
        for prompt in prompts:
            made.submit(prompt, PARAMS)
        while made.has_unfinished:
            made.step()
        again = [made.submit(prompt, PARAMS) for prompt in prompts]
        while made.has_unfinished:
            made.step()
        right &= [request.output_ids for request in again] == [alone(prompt) for prompt in prompts]
    return right


def test_wherever_a_forward_raises_later_outputs_are_right():
    assert later_outputs_are_right_after_failures()


def test_keys_published_before_the_forward_are_caught():
    with keyed_before_computed():
        assert not later_outputs_are_right_after_failures()


def test_only_the_failing_forward_s_requests_fail():
    """Two adapters are two forwards of one step."""
    made = engine()
    made.runner.fail_at = frozenset([0])
    bad = made.submit(Prompt([1] * 9, lora_name="x"), PARAMS)
    good = made.submit(Prompt([1] * 9, lora_name="y"), PARAMS)
    drain(made)
    assert (bad.finish_reason, good.finish_reason) == ("error", "length")


def test_generate_raises_with_the_cause():
    llm = LLM(Witness(), block_size=4, num_blocks=64, secret=schedules.SECRET)
    llm.engine.runner.fail_at = frozenset([0])
    with pytest.raises(RequestFailed, match="told to fail") as failure:
        llm.generate([[1, 2, 3]], PARAMS)
    assert isinstance(failure.value.__cause__, RuntimeError)
    llm.engine.runner.fail_at = frozenset([1])
    out = llm.generate([[1, 2, 3]], PARAMS, return_errors=True)[0]
    assert (out.finish_reason, str(out.error)) == ("error", "the witness was told to fail")
    assert llm.generate([[1, 2, 3]], PARAMS)[0].token_ids == alone(Prompt([1, 2, 3]))


def test_abort_at_every_step():
    for step in range(12):
        made = engine(max_num_batched_tokens=5)
        keep, drop = (made.submit(Prompt([7] * 11), PARAMS) for _ in range(2))
        for _ in range(step):
            made.step()
        made.abort(drop.request_id)
        drain(made)
        assert made.scheduler.cache.num_free == 64
        assert keep.output_ids == alone(Prompt([7] * 11))


@pytest.fixture
def others_are_right(rows, ids, secret):
    """(poison, budget) -> whether requests beside and after one with such a row get their own tokens."""
    return lambda poison, budget: run_beside(poison, budget, rows, ids, secret)


def run_beside(poison, budget, rows, ids, secret) -> bool:
    llm = LLM(dtype=torch.float64, secret=secret, block_size=4, num_blocks=64, max_num_batched_tokens=budget)
    prompt, clean = ids(24), rows(4)
    want = llm.generate([prompt, prompt[:19], Prompt(prompt, [(18, clean)])], PARAMS)
    llm.evict_all()
    dirty = clean.clone()
    dirty[1] = poison
    hostile = Prompt(prompt, [(18, dirty)])
    llm.generate(hostile, PARAMS)
    got = llm.generate([hostile, prompt, prompt[:19], hostile, Prompt(prompt, [(18, clean)]), hostile], PARAMS)
    llm.engine.check()
    return [got[i].token_ids for i in (1, 2, 4)] == [out.token_ids for out in want]


@pytest.mark.parametrize("budget", [3, 64])
@pytest.mark.parametrize("poison", [math.nan, math.inf, 1e300])
def test_nan_rows_poison_nobody_else(poison, budget, others_are_right):
    """0 * NaN is NaN: neither a padded batch nor a shared prefix may carry one request's NaN to another's tokens."""
    assert others_are_right(poison, budget)


@pytest.mark.parametrize("plant", [padded_with_block_zero, nan_published], ids=lambda plant: plant.__name__)
def test_poison_is_caught(plant, others_are_right):
    with plant():
        assert not (others_are_right(math.nan, 64) and others_are_right(math.nan, 3))


def test_what_is_not_finite_is_not_cached_and_says_why(llm, rows, ids):
    dirty = rows(4) * math.nan
    outs = [llm.generate(Prompt(ids(24), [(8, dirty)]), PARAMS)[0] for _ in range(2)]
    assert outs[1].num_cached_tokens <= 8
    assert "NaN" in outs[1].uncached_reason


def test_what_cannot_be_keyed_is_not_cached_and_says_why(llm, rows, ids):
    """imp PR#1180: never a key of the text alone."""

    class Lost:
        def ready(self):
            return True

        def result(self):
            raise RuntimeError("the fingerprints were lost")

    want = llm.generate(Prompt(ids(24), [(8, rows(4))]), PARAMS)[0].token_ids
    llm.evict_all()
    send_home, llm.engine.keying.send_home = llm.engine.keying.send_home, lambda digests: Lost()
    outs = [llm.generate(Prompt(ids(24), [(8, rows(4))]), PARAMS)[0] for _ in range(2)]
    assert [(out.token_ids, out.num_cached_tokens) for out in outs] == [(want, 0)] * 2
    assert outs[0].uncached_reason == "it could not be keyed: the fingerprints were lost"
    assert llm.engine.scheduler.cache.num_cached == 0
    llm.engine.keying.send_home = send_home
    assert llm.generate(Prompt(ids(24), [(8, rows(4))]), PARAMS)[0].uncached_reason is None


def test_prefix_caching_off_says_so(ids, secret):
    llm = LLM(dtype=torch.float64, secret=secret, prefix_caching=False, num_blocks=16)
    outs = [llm.generate([ids(40)], PARAMS)[0] for _ in range(2)]
    assert outs[0].token_ids == outs[1].token_ids
    assert outs[1].num_cached_tokens == 0
    assert "prefix_caching=False" in outs[1].uncached_reason


class Fails:
    """`function`, whose calls of these numbers raise instead."""

    def __init__(self, function, calls, error):
        self.function, self.calls, self.error, self.count = function, calls, error, 0

    def __call__(self, *args):
        self.count += 1
        if self.count in self.calls:
            raise self.error
        return self.function(*args)


def test_a_check_of_the_kv_that_raises_is_a_failed_forward():
    made, prompts = engine(), [Prompt(list(range(i, i + 12))) for i in range(3)]
    made.runner.finite = Fails(made.runner.finite, {1}, RuntimeError("told to fail"))
    failed = [made.submit(prompt, PARAMS) for prompt in prompts]
    drain(made)
    assert all("told to fail" in str(request.error) for request in failed)
    again = [made.submit(prompt, PARAMS) for prompt in prompts]
    drain(made)
    assert [(r.num_cached_tokens, r.output_ids) for r in again] == [(0, alone(prompt)) for prompt in prompts]


@pytest.mark.parametrize("call", range(1, 10))
def test_a_token_that_cannot_be_recorded_fails_its_own_request(monkeypatch, call):
    """Text that a tokenizer cannot make, say: the others of the forward have their tokens and go on."""
    made, prompts = engine(), [Prompt(list(range(i, i + 12))) for i in range(3)]
    made._reason_to_stop = Fails(made._reason_to_stop, {call}, RuntimeError("told to fail"))
    requests = [made.submit(prompt, PARAMS) for prompt in prompts]
    drain(made)
    assert sorted(request.finish_reason for request in requests) == ["error", "length", "length"]
    for request, prompt in zip(requests, prompts, strict=True):
        assert request.output_ids == alone(prompt)[: len(request.output_ids)]


@pytest.mark.parametrize(
    ("place", "call"),
    [("finite", 1), ("finite", 2), *itertools.product(["_append", "_reason_to_stop", "extend_chain"], [1, 2, 5, 6])],
)
def test_an_interrupted_step_runs_again(monkeypatch, place, call):
    """Ctrl-C anywhere in a step, which other callers then drive on: no token of another request, no key of other tokens."""
    made, prompts = engine(), [Prompt(list(range(i, i + 11))) for i in range(3)]
    requests = [made.submit(prompt, PARAMS) for prompt in prompts]
    owner = made.runner if place == "finite" else requests[1] if place == "extend_chain" else made
    setattr(owner, place, Fails(getattr(owner, place), {call}, KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        drain(made)
    made.check()
    drain(made)
    for request, prompt in zip(requests, prompts, strict=True):
        assert request.output_ids == alone(prompt)[: len(request.output_ids)]
    again = [Prompt(prompt.token_ids + request.output_ids) for prompt, request in zip(prompts, requests, strict=True)]
    for prompt in again:
        request = made.submit(prompt, PARAMS)
        drain(made)
        assert request.output_ids == alone(prompt)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_rows_that_cannot_be_copied_leave_no_hole(secret, dtype):
    """The next rows' fingerprints were those of the hole: two contents under one key."""
    made = LLM(dtype=torch.float64, secret=secret, block_size=4, num_blocks=64).engine
    packed = torch.ones(8, 64, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    with pytest.raises(NotImplementedError):
        made.submit(Prompt([0] * 8, embeds=[(0, packed)]), PARAMS)
    requests = [made.submit(Prompt([0] * 8, embeds=[(0, torch.full((8, 64), i, dtype=dtype))]), PARAMS) for i in (1, 2)]
    made.step()
    for request in requests:
        span = request.spans[0]
        want = made.keying.fingerprint(span.rows)
        assert span.fingerprints().tobytes() == want.numpy().tobytes()


def test_rows_whose_storage_was_freed(llm):
    for dtype in (torch.float64, torch.float32):
        rows = torch.ones(9, 64, dtype=dtype)[1:]
        rows.untyped_storage().resize_(0)
        with pytest.raises(ValueError, match=r"embeds\[0\]\.rows .*freed"):
            llm.submit(Prompt([0] * 8, embeds=[(0, rows)]), PARAMS)
