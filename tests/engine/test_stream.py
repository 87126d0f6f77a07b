"""Streams: what was streamed is what the request ends with, under preemption too (sglang#39645)."""

import asyncio
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import schedules
import torch
from witness import Witness

from gpukey import streams
from gpukey.engine import LLM, AsyncLLM, EngineConfig, Prompt, RequestFailed, SamplingParams
from gpukey.engine.core import Engine
from gpukey.engine.prompt import EmbedSpan

PARAMS = SamplingParams(max_tokens=9)


def test_stream(llm, ids):
    want = llm.generate([ids(11)], PARAMS)[0].token_ids
    parts = [(out.token_ids, out.finish_reason) for out in llm.stream(ids(11), PARAMS)]
    assert parts == [(want[: i + 1], "length" if i == 8 else None) for i in range(9)]


def test_a_stream_that_others_drove_to_its_end_still_tells(llm, ids):
    want = llm.generate([ids(11)], PARAMS)[0].token_ids
    stream = llm.stream(ids(11), PARAMS)
    assert next(stream).token_ids == want[:1]
    llm.generate([ids(7, 1)], SamplingParams(max_tokens=20))
    assert [(out.token_ids, out.finish_reason) for out in stream] == [(want, "length")]


def test_a_stream_that_failed_in_the_steps_of_others_raises(llm, ids, monkeypatch):
    stream = llm.stream(ids(11), PARAMS)
    next(stream)
    with monkeypatch.context() as patch:
        patch.setattr(llm.engine.runner, "forward", lambda *_: 1 / 0)
        llm.generate([ids(7, 1)], PARAMS, return_errors=True)
    with pytest.raises(RequestFailed, match="division"):
        next(stream)


def test_threads_take_turns(llm, ids):
    """Whoever steps, steps for all: no request gets the tokens of another, none is lost."""
    prompts = [ids(9, seed) for seed in range(4)]
    want = [out.token_ids for out in llm.generate(prompts, PARAMS)]
    llm.evict_all()
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(4) as pool:
            jobs = [pool.submit(llm.generate, [prompt], PARAMS) for prompt in prompts * 3]
            assert [job.result()[0].token_ids for job in jobs] == want * 3
    finally:
        sys.setswitchinterval(before)
    llm.engine.check()


def test_closing_a_stream_aborts(llm, ids):
    stream = llm.stream(ids(11), PARAMS)
    next(stream)
    assert llm.engine.has_unfinished
    stream.close()
    assert not llm.engine.has_unfinished
    assert llm.engine.scheduler.cache.num_free == 128


@pytest.mark.parametrize("seed", range(25))
def test_streamed_tokens_are_the_final_ones_under_preemption(seed):
    """After each step, each request's tokens are a beginning of its final ones."""
    config = EngineConfig(block_size=2, num_blocks=14, max_num_batched_tokens=schedules.BUDGETS[seed % 7])
    engine = Engine(Witness(), config, schedules.SECRET)
    params = SamplingParams(max_tokens=12, temperature=0.7, seed=seed)
    live = [engine.submit(Prompt([i + seed, 2, 3, 4]), params) for i in range(6)]
    streamed = [[] for _ in live]
    while engine.has_unfinished:
        for request in engine.step():
            i = live.index(request)
            assert request.output_ids[: len(streamed[i])] == streamed[i]
            assert len(request.output_ids) == len(streamed[i]) + 1
            streamed[i].append(request.output_ids[-1])
        if engine.stats.steps % 5 == 4 and engine.scheduler.running:
            engine.scheduler.preempt(engine.scheduler.running[seed % len(engine.scheduler.running)])
        engine.check()
    assert streamed == [request.output_ids for request in live]
    assert engine.stats.preemptions > 0


async def collect(front, prompt, params=PARAMS):
    return [out async for out in front.generate(prompt, params)]


def test_async_front(ids, rows, secret):
    """Many readers at once; one leaves early, which aborts its request."""
    options = {"dtype": torch.float64, "secret": secret, "block_size": 4, "num_blocks": 24}
    prompts = [Prompt(ids(8 + i), [(2, rows(3, seed=i))]) for i in range(8)]
    want = [out.token_ids for out in LLM(**options).generate(prompts, PARAMS)]

    async def main(front):
        async def leave():
            async for _ in front.generate(ids(9), SamplingParams(max_tokens=60)):
                break

        *outs, _ = await asyncio.gather(*(collect(front, prompt) for prompt in prompts), leave())
        stats = await front.stats()
        while stats.requests_aborted + stats.requests_finished < 9:
            stats = await front.stats()
        with pytest.raises(ValueError, match="token_ids is empty"):
            await collect(front, [])
        return outs

    with AsyncLLM(**options) as front:
        outs = asyncio.run(main(front))
    assert [[len(part.token_ids) for part in out] for out in outs] == [list(range(1, 10))] * 8
    assert [out[-1].token_ids for out in outs] == want


class Distant(torch.Tensor):
    """Rows that say they are on a GPU."""

    is_cuda = True


def test_rows_of_a_gpu_are_read_after_the_readers_stream(ids, rows, secret, monkeypatch):
    """The reader's thread enqueued what makes them, on a stream that the engine's thread does not have."""
    log = []
    monkeypatch.setattr(streams, "produced", lambda rows: (log.append(threading.current_thread()), "event")[1])
    monkeypatch.setattr(streams, "wait_for", lambda *what: log.append((threading.current_thread().name, *what)))
    first, second = rows(3).as_subclass(Distant), rows(2, seed=1).as_subclass(Distant)
    spans = [(2, rows(3)), (6, rows(2, seed=1))]
    cold = LLM(dtype=torch.float64, secret=secret, block_size=4, num_blocks=24)
    want = cold.generate([Prompt(ids(8), spans)], PARAMS)[0].token_ids

    async def main(front):
        once = (span for span in ((2, first), EmbedSpan(6, second)))
        assert (await collect(front, Prompt(ids(8), once)))[-1].token_ids == want

    with AsyncLLM(dtype=torch.float64, secret=secret, block_size=4, num_blocks=24) as front:
        asyncio.run(main(front))
    here = threading.current_thread()
    assert log[:2] == [here, here]
    assert [(who, event) for who, event, _ in log[2:]] == [("gpukey-engine", "event")] * 2
    assert [entry[2] is tensor for entry, tensor in zip(log[2:], (first, second), strict=True)] == [True, True]


def test_an_engine_that_cannot_go_on_tells_its_readers(monkeypatch):
    async def main(front):
        with pytest.raises(RequestFailed, match="thread ended: OSError"):
            await collect(front, [1, 2, 3])

    def broken():
        raise OSError("no device")

    with AsyncLLM(Witness(), block_size=4, num_blocks=16, secret=schedules.SECRET) as front:
        monkeypatch.setattr(front._llm.engine, "step", broken)
        asyncio.run(main(front))
    assert not front._llm.engine.has_unfinished


async def rest(stream):
    return [out async for out in stream]


def test_close_ends_what_is_under_way():
    async def main(front):
        stream = front.generate([1, 2, 3], SamplingParams(max_tokens=50))
        await anext(stream)
        front.close()
        with pytest.raises(RequestFailed, match="closed"):
            await rest(stream)

    asyncio.run(main(AsyncLLM(Witness(), block_size=4, num_blocks=16, secret=schedules.SECRET)))


def test_async_errors_reach_their_reader():
    witness = Witness()
    witness.fail_at = frozenset([0])

    async def main(front):
        with pytest.raises(RequestFailed, match="told to fail"):
            await collect(front, [1, 2, 3])
        return await collect(front, [1, 2, 3])

    with AsyncLLM(witness, block_size=4, num_blocks=16, secret=schedules.SECRET) as front:
        assert len(asyncio.run(main(front))) == 9
    with pytest.raises(RuntimeError, match="closed"):
        front.call(lambda llm: None)
