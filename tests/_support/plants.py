"""Bugs to plant in the engine: each must make the schedules fail."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch

from gpukey.cache import PrefixCache
from gpukey.engine import attention, batch, core
from gpukey.engine.keying import Keying
from gpukey.engine.kv import KVPool


@contextmanager
def stale_block() -> Iterator[None]:
    """A recycled block can still be found under its old key (kvcached#362)."""
    evict, leave_idle = PrefixCache._evict, PrefixCache._leave_idle

    def forgetful(cache: Any) -> int:
        keys = {block_id: cache._blocks[block_id].key for block_id in cache._idle}
        block_id = evict(cache)
        cache._by_key[keys[block_id]] = block_id
        return block_id

    def lenient(cache: Any, block_id: int, block: Any) -> None:
        if block_id in cache._idle:
            leave_idle(cache, block_id, block)
        else:
            cache._free.remove(block_id)

    with patch.object(PrefixCache, "_evict", forgetful), patch.object(PrefixCache, "_leave_idle", lenient):
        yield


@contextmanager
def shifted_slot() -> Iterator[None]:
    """The last token of a batch is written one slot too early."""
    build = core.build_batch

    def shifted(*args: Any) -> Any:
        made = build(*args)
        made.slots[-1] = (made.slots[-1] - 1).clamp(min=0)
        return made

    with patch.object(core, "build_batch", shifted):
        yield


@contextmanager
def rows_not_keyed() -> Iterator[None]:
    """Keys of token ids alone (lmdeploy#4933)."""
    with patch.object(Keying, "keys_rows", False):
        yield


@contextmanager
def rows_not_sliced() -> Iterator[None]:
    """A chunk that begins inside a span gets the span's first rows (TRT-LLM#14125)."""
    right = batch.rows_between

    def unsliced(request: Any, start: int, stop: int) -> list[tuple[int, torch.Tensor]]:
        spans = {position: span.rows for span in request.spans for position in range(span.start, span.stop)}
        return [(first, spans[first][: len(run)]) for first, run in right(request, start, stop)]

    with patch.object(batch, "rows_between", unsliced):
        yield


@contextmanager
def salt_is_lora() -> Iterator[None]:
    """Salt and adapter name in one untyped field (vllm#44701)."""
    right = Keying.root

    def confused(keying: Any, request: Any, adapter: dict[str, Any]) -> Any:
        salt = request.cache_salt
        request.cache_salt = salt or adapter.get("lora_name")
        try:
            return right(keying, request, {})
        finally:
            request.cache_salt = salt

    with patch.object(Keying, "root", confused):
        yield


@contextmanager
def keyed_before_computed() -> Iterator[None]:
    """Blocks are published when they are planned, so that a failed forward leaves keys behind (vllm PR#26813)."""
    run = core.Engine._run

    def early(engine: Any, scheduled: Any, adapter: Any) -> Any:
        done = [request.num_computed for request, _ in scheduled]
        engine.scheduler.commit(scheduled, engine.runner.finite)
        for (request, _), computed in zip(scheduled, done, strict=True):
            request.num_computed = computed
        return run(engine, scheduled, adapter)

    with patch.object(core.Engine, "_run", early):
        yield


@contextmanager
def padded_with_block_zero() -> Iterator[None]:
    """Behind its end a sequence reads block 0, whoever owns that."""

    def slots_of(tables: torch.Tensor, lens: torch.Tensor, longest: int, block_size: int) -> torch.Tensor:
        position = torch.arange(longest).expand(len(tables), longest)
        return tables.gather(1, position // block_size) * block_size + position % block_size

    with patch.object(attention, "slots_of", slots_of):
        yield


@contextmanager
def nan_published() -> Iterator[None]:
    """Blocks are published whatever they hold."""
    with patch.object(KVPool, "finite", lambda pool, block_ids: [True] * len(block_ids)):
        yield


WRONG_OUTPUT = [stale_block, shifted_slot, rows_not_keyed, rows_not_sliced, salt_is_lora]
