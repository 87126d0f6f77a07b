"""Which tokens run in the next forward, and who holds which block.

Fair order: running requests take turns (least recently scheduled first), waiting ones are admitted as they arrived.
When blocks run out, the latest arrival gives all of its own back and is computed again later, so the earliest always
proceeds.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable

from gpukey.cache import PrefixCache
from gpukey.engine.batch import Scheduled
from gpukey.engine.config import EngineConfig
from gpukey.engine.request import Request, Status


class Scheduler:
    """`schedule` plans a step, `commit` records that its KV is computed; `prepare(request)` gives it its keys at
    admission.
    """

    def __init__(self, config: EngineConfig, prepare: Callable[[Request], None]) -> None:
        self.config = config
        self.prepare = prepare
        self.cache = PrefixCache(config.num_blocks, config.block_size)
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.step = 0
        self.num_preemptions = 0

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold the KV of `num_tokens` tokens."""
        return -(-num_tokens // self.config.block_size)

    def add(self, request: Request) -> None:
        """Queue a request by its arrival."""
        request.status = Status.WAITING
        bisect.insort(self.waiting, request, key=lambda other: other.arrival)

    def schedule(self) -> list[Scheduled]:
        """(request, number of its tokens to run), at most max_num_batched_tokens in all; empty when nothing can run
        now.
        """
        self.step += 1
        preemptions = self.num_preemptions
        plan: dict[Request, int] = {}
        for request in sorted(self.running, key=lambda r: (r.last_step, r.arrival)):
            left = self.config.max_num_batched_tokens - sum(plan.values())
            if left and request.status is Status.RUNNING:
                if request.num_computed == request.num_tokens:
                    request.num_computed -= 1  # interrupted before its token was recorded: its logits are needed again
                count = min(left, request.num_tokens - request.num_computed)
                if self._grow(request, count, plan):
                    plan[request] = count
        if self.num_preemptions == preemptions:
            self._admit(plan)
        for request in plan:
            request.last_step = self.step
        return list(plan.items())

    def commit(self, scheduled: list[Scheduled], finite: Callable[[list[int]], list[bool]]) -> None:
        """The planned tokens have their KV: publish the blocks that became full.

        A NaN may leak from a masked later position into a block whose key does not say so (0 * NaN): what is not
        finite stays its request's own, and so does what comes after it.
        """
        size, full = self.config.block_size, []
        for request, count in scheduled:
            request.extend_chain()
            if request.chain is not None:
                before, after = request.num_computed, request.num_computed + count
                full += [(request, i) for i in range(before // size, after // size)]
        # May raise, so nothing is recorded before it.
        checked = finite([request.block_ids[i] for request, i in full]) if full else []
        for request, count in scheduled:
            request.num_computed += count
        for (request, i), good in zip(full, checked, strict=True):
            if not good:
                request.uncached_reason = "its KV holds NaN or infinity"
                request.chain = None
            elif request.chain is not None:
                parent = request.block_ids[i - 1] if i else None
                request.block_ids[i] = self.cache.insert(request.chain.keys[i], request.block_ids[i], parent)

    def finish(self, request: Request) -> None:
        """Take it out of the queues and give its blocks back; published ones can still be hit."""
        queue = self.running if request.status is Status.RUNNING else self.waiting
        queue.remove(request)
        self._release(request)
        request.status = Status.FINISHED

    def preempt(self, request: Request) -> None:
        """Give all its blocks back; it is computed again from its tokens, or from what is still cached of them."""
        self.running.remove(request)
        self._release(request)
        request.stats.num_preemptions += 1
        self.num_preemptions += 1
        self.add(request)

    def _release(self, request: Request) -> None:
        self.cache.free(request.block_ids)
        request.block_ids = []
        request.num_computed = 0

    def _grow(self, request: Request, count: int, plan: dict[Request, int]) -> bool:
        """Blocks for its next `count` tokens, at the cost of later arrivals; False when there is no later one to take
        from.
        """
        missing = self.blocks_for(request.num_computed + count) - len(request.block_ids)
        while missing > self.cache.num_free:
            victim = max(self.running, key=lambda r: r.arrival)
            if victim is request:
                return False
            self.preempt(victim)
            plan.pop(victim, None)
        request.block_ids += self.cache.allocate(max(missing, 0))
        return True

    def _admit(self, plan: dict[Request, int]) -> None:
        """Start waiting requests in order of arrival. One whose fingerprints are on their way is passed over, not
        waited for.
        """
        for request in list(self.waiting):
            left = self.config.max_num_batched_tokens - sum(plan.values())
            if left == 0 or len(self.running) >= self.config.max_num_seqs:
                return
            if not request.ready():
                continue
            if not self._start(request):
                return
            plan[request] = min(left, request.num_tokens - request.num_computed)

    def _start(self, request: Request) -> bool:
        """Hold blocks for all of its tokens, cached ones first; False when they do not fit now."""
        self.prepare(request)
        request.extend_chain()
        hit = self.cache.match(request.chain.keys if request.chain else [], request.num_tokens)
        missing = self.blocks_for(request.num_tokens) - len(hit.block_ids)
        # A spare block for each running request, or the newcomer would be preempted by their next tokens.
        if missing + len(self.running) > self.cache.num_free and (self.running or missing > self.cache.num_free):
            self.cache.free(hit.block_ids)
            return False
        request.block_ids = [*hit.block_ids, *self.cache.allocate(missing)]
        request.num_computed = hit.num_cached_tokens
        if request.num_cached_tokens is None:
            request.num_cached_tokens = hit.num_cached_tokens
        self.waiting.remove(request)
        self.running.append(request)
        request.status = Status.RUNNING
        return True
