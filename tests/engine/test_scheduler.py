"""Budgets, fairness, and fingerprints that nobody waits for."""

import schedules
import torch
from witness import Witness

from gpukey.engine import EngineConfig, Prompt, SamplingParams
from gpukey.engine.core import Engine


def engine(**options):
    return Engine(Witness(), EngineConfig(**{"block_size": 4, "num_blocks": 64, **options}), schedules.SECRET)


def test_prefill_and_decode_share_a_forward_within_the_budget():
    made = engine(max_num_batched_tokens=8)
    sizes = []
    forward = made.runner.forward
    made.runner.forward = lambda batch, adapter: (
        sizes.append(batch.query_start.diff().tolist()) or forward(batch, adapter)
    )
    made.submit(Prompt([1] * 6), SamplingParams(max_tokens=4))
    made.submit(Prompt([2] * 20), SamplingParams(max_tokens=2))
    while made.has_unfinished:
        made.step()
    assert sizes == [[6, 2], [1, 7], [1, 7], [1, 4], [1]]


def test_fair_turns_under_a_budget_of_one():
    """Requests that were admitted share the budget; none starves."""
    made = engine(max_num_batched_tokens=1)
    made.scheduler.config = EngineConfig(block_size=4, num_blocks=64, max_num_batched_tokens=64)
    live = [made.submit(Prompt([i, 1, 2]), SamplingParams(max_tokens=9)) for i in range(4)]
    made.step()
    made.scheduler.config = made.config
    for _ in range(16):
        made.step()
    assert [len(request.output_ids) for request in live] == [5] * 4


def test_first_come_first_served_when_blocks_are_short():
    """A small request behind a large one does not overtake it."""
    made = engine(num_blocks=8)
    first, large, small = (
        made.submit(Prompt([i] * n), SamplingParams(max_tokens=4)) for i, n in enumerate((20, 28, 2))
    )
    order = []
    while made.has_unfinished:
        order += [request for request in made.step() if request.finish_reason]
    assert order[0] is first
    assert large.stats.first_scheduled < small.stats.first_scheduled


def test_the_latest_arrival_is_preempted():
    made = engine(num_blocks=6)
    live = [made.submit(Prompt([i] * 7), SamplingParams(max_tokens=16)) for i in range(3)]
    while made.has_unfinished:
        made.step()
        made.check()
    assert live[0].stats.num_preemptions == 0
    assert made.stats.preemptions == sum(request.stats.num_preemptions for request in live) > 0


class Pending:
    """Fingerprints that come home when they are let."""

    def __init__(self, handle):
        self.handle, self.home = handle, False

    def ready(self):
        return self.home

    def result(self):
        assert self.home, "the engine waited"
        return self.handle.result()


def test_others_run_while_a_fingerprint_is_under_way():
    made, pending = engine(), []
    send_home = made.keying.send_home
    made.keying.send_home = lambda digests: pending.append(Pending(send_home(digests))) or pending[-1]
    late = made.submit(Prompt([1] * 8, [(0, torch.ones(8, 4, dtype=torch.float64))]), SamplingParams(max_tokens=3))
    text = made.submit(Prompt([1] * 8), SamplingParams(max_tokens=3))
    for _ in range(3):
        made.step()
    assert (text.finish_reason, late.num_computed) == ("length", 0)
    assert made.step() == []
    pending[0].home = True
    while made.has_unfinished:
        made.step()
    assert late.finish_reason == "length"


def test_one_launch_and_one_way_home_for_all_rows_of_a_step():
    """Rows to cast share a launch; rows of the model's dtype are fingerprinted by the copy that the snapshot needs."""
    made, homes = engine(max_num_seqs=64), []
    send_home = made.keying.send_home
    made.keying.send_home = lambda digests: homes.append(len(digests)) or send_home(digests)
    rows = [torch.full((5 + i, 4), float(i)) for i in range(40)]
    live = [made.submit(Prompt([1] * 90, [(i, tensor)]), SamplingParams(max_tokens=1)) for i, tensor in enumerate(rows)]
    other = made.submit(Prompt([1] * 8, [(3, torch.ones(4, 4).double())]), SamplingParams(max_tokens=1))
    made.step()
    assert (made.stats.fingerprint_launches, made.staging.num_passes, homes) == (1, 1, [sum(map(len, rows)) + 4])
    keys = {request.spans[0].fingerprints().tobytes() for request in [*live, other]}
    assert len(keys) == 41
    import gpukey

    for request, tensor in zip(live, rows, strict=True):
        want = gpukey.fingerprint_rows(tensor.double(), secret=schedules.SECRET).numpy()
        assert (request.spans[0].fingerprints() == want).all()
        assert (request.spans[0].rows == tensor).all()


def test_statistics():
    made = engine()
    for _ in range(2):
        made.submit(Prompt([1] * 9), SamplingParams(max_tokens=3))
        while made.has_unfinished:
            made.step()
    stats = made.stats
    assert (stats.prompt_tokens, stats.cached_tokens, stats.generated_tokens) == (18, 8, 6)
    assert stats.computed_tokens == 18 - 8 + 4
    assert stats.hit_rate == 8 / 18
    assert stats.mean_ttft > 0 < stats.tokens_per_second
