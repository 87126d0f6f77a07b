"""No request ever sees another one's KV: in any schedule, each gets the tokens that it gets alone on a fresh engine.

A failure names its seed; `GPUKEY_SCHEDULE=<seed>` runs that one alone.
"""

import os
from functools import cache

import pytest
import schedules
from plants import WRONG_OUTPUT
from tiny_lora import write_lora
from witness import Witness

from gpukey.engine import EngineConfig
from gpukey.engine.core import Engine
from gpukey.engine.lora import Adapters
from gpukey.engine.model import TransformersRunner
from gpukey.engine.tiny import tiny_model

NUM_WITNESS, NUM_TINY, PART = 2000, 150, 250
ONE = os.environ.get("GPUKEY_SCHEDULE")


def seeds(first: int, count: int) -> list[int]:
    chosen = range(first, first + count)
    return list(chosen) if ONE is None else [seed for seed in chosen if seed == int(ONE)]


def witness_engine(config: EngineConfig) -> Engine:
    engine = Engine(Witness(), config, schedules.SECRET)
    for name in schedules.ADAPTERS:
        engine.load_lora(name, f"/{name}", version="1")
    return engine


@pytest.fixture(scope="module")
def tiny_engine(tmp_path_factory):
    """config -> engine, all over one float64 Qwen2 with two adapters."""
    import torch

    model = tiny_model(dtype=torch.float64, vocab_size=50, hidden_size=16, intermediate_size=32, num_attention_heads=2)
    runner = TransformersRunner(model)
    adapters = Adapters(runner)
    for i, name in enumerate(schedules.ADAPTERS):
        adapters.load(name, write_lora(tmp_path_factory.mktemp(name), model.config, seed=i), version="1")

    def make(config: EngineConfig) -> Engine:
        engine = Engine(runner, config, schedules.SECRET)
        engine.adapters = adapters
        return engine

    return make


@cache
def schedule(seed: int) -> schedules.Schedule:
    return schedules.make(seed, vocab_size=50)


@pytest.mark.parametrize("first", range(0, NUM_WITNESS, PART))
def test_witness_outputs_equal_those_alone(first):
    wrong = [line for seed in seeds(first, PART) for line in schedules.differences(schedule(seed), witness_engine)]
    assert not wrong, wrong


@pytest.mark.parametrize("first", range(0, NUM_TINY, 50))
def test_tiny_qwen2_outputs_equal_those_alone(first, tiny_engine):
    wrong = [line for seed in seeds(first, 50) for line in schedules.differences(schedule(seed), tiny_engine)]
    assert not wrong, wrong


def test_the_schedules_do_what_they_are_for():
    """Preemptions, evictions, aborts, hits, duplicates in one step: a suite without them would prove nothing."""
    engines = [witness_engine(schedule(seed).config) for seed in range(40)]
    for seed, engine in enumerate(engines):
        schedules.run(schedule(seed), engine)
    for name in ("preemptions", "evictions", "requests_aborted", "cached_tokens", "fingerprint_launches"):
        assert sum(getattr(engine.stats, name) for engine in engines) >= 10, name
    assert sum(engine.scheduler.cache.stats.duplicates for engine in engines) > 0
    assert sum(schedule(seed).slow_fingerprints for seed in range(40)) >= 5
    assert {schedule(seed).config.max_num_batched_tokens for seed in range(40)} == set(schedules.BUDGETS)


def caught(plant, make_engine, count: int) -> bool:
    with plant():
        for seed in range(count):
            try:
                if schedules.differences(schedule(seed), make_engine, check=False):
                    return True
            except (AssertionError, KeyError, ValueError, IndexError):
                continue
    return False


@pytest.mark.parametrize("plant", WRONG_OUTPUT, ids=lambda plant: plant.__name__)
def test_the_witness_catches(plant):
    assert caught(plant, witness_engine, 60)


@pytest.mark.parametrize("plant", WRONG_OUTPUT, ids=lambda plant: plant.__name__)
def test_tiny_qwen2_catches(plant, tiny_engine):
    assert caught(plant, tiny_engine, 60)
