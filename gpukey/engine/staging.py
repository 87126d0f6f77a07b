"""The engine's own copy of the callers' rows, and their fingerprints: the model and the keys read the same bytes.

Rows submitted between two steps form a wave. They lie side by side in one buffer, so that one launch fingerprints them
all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch

from gpukey.engine.prompt import EmbedSpan
from gpukey.engine.request import StagedSpan

MIN_ROWS = 256


class Handle(Protocol):
    """What `gpukey.fingerprint_rows_async` gives: digests on their way home."""

    def ready(self) -> bool: ...

    def result(self) -> np.ndarray: ...


class Wave:
    """Fingerprints of all rows submitted between two steps; not ready before they are launched."""

    def __init__(self) -> None:
        self.handle: Handle | None = None

    def ready(self) -> bool:
        return self.handle is not None and self.handle.ready()

    def result(self) -> np.ndarray:
        if self.handle is None:
            raise RuntimeError("fingerprints were asked for before their launch")
        return self.handle.result()


class Staging:
    """`submit` copies and casts now; `launch` fingerprints whatever came since the last launch, all at once."""

    def __init__(
        self,
        hidden: int,
        dtype: torch.dtype,
        device: torch.device,
        fingerprint: Callable[[torch.Tensor], Handle] | None,
    ) -> None:
        self.hidden, self.dtype, self.device = hidden, dtype, device
        self.fingerprint = fingerprint
        self.num_launches = 0
        self.buffer = torch.empty(0, hidden, dtype=dtype, device=device)
        self.used = 0
        self.first = 0
        self.wave = Wave()
        self.pending: list[StagedSpan] = []

    def submit(self, span: EmbedSpan) -> StagedSpan:
        """Snapshot of the caller's rows as they are now, cast to the model's dtype."""
        count = span.rows.shape[0]
        self._reserve(count)
        rows = self.buffer[self.used : self.used + count]
        rows.copy_(span.rows)
        staged = StagedSpan(span.start, rows, span.layout)
        if self.fingerprint is not None:
            staged.wave, staged.wave_offset = self.wave, self.used - self.first
            self.pending.append(staged)
        self.used += count
        return staged

    def launch(self) -> None:
        """One fingerprint launch for the rows of all pending spans; returns at once."""
        if self.fingerprint is None or not self.pending:
            return
        self.wave.handle = self.fingerprint(self.buffer[self.first : self.used])
        self.num_launches += 1
        self.first = self.used
        self.wave = Wave()
        self.pending.clear()

    def _reserve(self, count: int) -> None:
        """Room for `count` more rows behind the current wave; requests keep a full buffer alive."""
        if self.used + count <= len(self.buffer):
            return
        wave_rows = self.buffer[self.first : self.used]
        size = max(MIN_ROWS, 2 * (len(wave_rows) + count))
        self.buffer = torch.empty(size, self.hidden, dtype=self.dtype, device=self.device)
        self.buffer[: len(wave_rows)] = wave_rows
        for span in self.pending:
            span.rows = self.buffer[span.wave_offset : span.wave_offset + span.rows.shape[0]]
        self.first, self.used = 0, len(wave_rows)
