"""LMDeploy's PyTorch engine without a model: its scheduler, block manager and prefix trie run for real, without a GPU."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from gpukey.audit.protocol import Embeds, Options
from gpukey.integrations import lmdeploy as hooks

NUM_BLOCKS_OF_TOKENS = 8192


class LmdeployDriver:
    """One request at a time, admitted for prefill and ended: what the trie reuses is known before a model would run."""

    note = "driven at the level of its scheduler and prefix trie: reuse is real, no outputs are computed"
    vocab_size, hidden, dtype, scale = 32000, 64, torch.bfloat16, 1.0

    def __init__(self, options: Options) -> None:
        from lmdeploy.version import __version__

        if options.plugin:
            hooks.install()
        self.block_size = options.block_size
        self.name = f"LMDeploy {__version__}, PyTorch engine, {'with' if options.plugin else 'without'} gpukey's hooks"
        self._numbers = itertools.count(1)
        self.evict()

    def run(self, token_ids: list[int], embeds: Embeds | None) -> tuple[None, int]:
        sequence = self.admit(token_ids, embeds)
        reused = int(sequence.num_history_ids)
        self.end(sequence)
        return None, reused

    def admit(self, token_ids: list[int], embeds: Embeds | None) -> Any:
        """The sequence, matched against the trie and given its blocks, as before a prefill."""
        from lmdeploy.pytorch.messages import InputEmbeddings, SamplingParam

        spans = [InputEmbeddings(rows, start, start + len(rows)) for start, rows in embeds or ()]
        session = self.scheduler.add_session(next(self._numbers))
        sequence = session.add_sequence(np.array(token_ids), SamplingParam(), input_embeddings=spans or None)
        if self.scheduler.schedule(is_prefill=True).running != [sequence]:
            raise RuntimeError("the scheduler did not admit the request")
        return sequence

    def end(self, sequence: Any) -> None:
        self.scheduler.end_session(sequence.session_id)

    def evict(self) -> None:
        self.scheduler = scheduler(self.block_size)

    def lora_against_salt(self, token_ids: list[int]) -> None:
        return None

    def close(self) -> None:
        hooks.uninstall()


def scheduler(block_size: int, connector: Callable[[Any], Any] | None = None, **config: Any) -> Any:
    """LMDeploy's Scheduler with prefix caching on; `connector` makes its KV connector from the CacheConfig, where it takes one (0.17)."""
    from lmdeploy.pytorch.config import CacheConfig, SchedulerConfig
    from lmdeploy.pytorch.messages import SequenceMeta
    from lmdeploy.pytorch.paging import Scheduler
    from lmdeploy.pytorch.strategies.ar.sampling import ARSamplingStrategy
    from lmdeploy.pytorch.strategies.ar.sequence import ARSequenceStrategy

    meta = SequenceMeta(block_size, strategy=ARSequenceStrategy())
    meta.sampling_strategy = ARSamplingStrategy(pad_token_id=0)
    cache = CacheConfig(
        max_batches=8,
        block_size=block_size,
        num_cpu_blocks=0,
        num_gpu_blocks=-(-NUM_BLOCKS_OF_TOKENS // block_size),
        device_type="cpu",
        **{"enable_prefix_caching": True, **config},
    )
    more = {} if connector is None else {"kv_connector": connector(cache)}
    return Scheduler(SchedulerConfig(max_batches=8, max_session_len=NUM_BLOCKS_OF_TOKENS), cache, seq_meta=meta, **more)


def create(options: Options) -> LmdeployDriver:
    """The driver; ImportError where LMDeploy is not installed, RuntimeError for a version that the hooks refuse."""
    return LmdeployDriver(options)
