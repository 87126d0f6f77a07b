"""Key ids compared at start: every rank keys what it receives, and one with another secret would keep another radix tree."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from gpukey.integrations.agreement import require_same_secret_on_all_ranks
from gpukey.integrations.patches import Hook
from gpukey.secret import Secret


def hooks(secret: Secret) -> Iterator[Hook]:
    from sglang.srt.distributed import bootstrap, parallel_state

    def compared(found: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(found)
        def initialize_model_parallel(*args: Any, **kwargs: Any) -> Any:
            result = found(*args, **kwargs)
            # A rank that rejoins runs alone here: the others do not wait for it.
            if not kwargs.get("recovered_rank"):
                for group in (parallel_state.get_tp_group(), parallel_state.get_pp_group()):
                    require_same_secret_on_all_ranks(secret=secret, group=group.cpu_group)
            return result

        return initialize_model_parallel

    yield bootstrap, "initialize_model_parallel", compared
