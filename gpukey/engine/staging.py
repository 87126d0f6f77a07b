"""The engine's own copy of the callers' rows, and their fingerprints: the model and the keys read the same bytes.

Rows submitted between two steps form a wave, whose fingerprints come home in one transfer. Rows that are already of the
model's dtype and device are copied and fingerprinted in one pass; the others are cast side by side into one buffer, so
that one launch fingerprints them all.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch

from gpukey.engine.prompt import EmbedSpan
from gpukey.engine.request import StagedSpan

MIN_ROWS = 256


class Handle(Protocol):
    """Digests on their way home, as `gpukey.fingerprint_rows_async` gives them."""

    def ready(self) -> bool: ...

    def result(self) -> np.ndarray: ...


class Fingerprints(Protocol):
    """What staging needs of the keys."""

    def fingerprint(self, rows: torch.Tensor) -> torch.Tensor:
        """uint8 [num_rows, digest_size] on the rows' device."""

    def stage(self, rows: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Copy rows to `out` and fingerprint what was written, in one pass."""

    def send_home(self, digests: torch.Tensor) -> Handle:
        """Start the way home; returns at once."""


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
    """`submit` snapshots now; `launch` sees to the fingerprints of whatever came since the last launch, all at once."""

    def __init__(
        self, hidden: int, dtype: torch.dtype, device: torch.device, fingerprints: Fingerprints | None
    ) -> None:
        self.hidden, self.dtype, self.device = hidden, dtype, device
        self.fingerprints = fingerprints
        self.num_launches = 0
        self.num_passes = 0
        self._buffer = torch.empty(0, hidden, dtype=dtype, device=device)
        self._first = self._used = 0
        self._new_wave()

    def submit(self, span: EmbedSpan) -> StagedSpan:
        """Snapshot of the caller's rows as they are now, in the model's dtype."""
        staged = StagedSpan(span.start, span.rows, span.layout)
        if self.fingerprints is None:
            staged.rows = torch.empty(span.rows.shape, dtype=self.dtype, device=self.device).copy_(span.rows)
            return staged
        staged.wave = self._wave
        if span.rows.dtype == self.dtype and span.rows.device == self.device:
            staged.rows = torch.empty(span.rows.shape, dtype=self.dtype, device=self.device)
            self._digests.append(self.fingerprints.stage(span.rows, staged.rows))
            self._one_pass.append(staged)
            self.num_passes += 1
        else:
            staged.rows = self._room(span.rows.shape[0]).copy_(span.rows)
            # Not before the copy has worked: places in the buffer are places among the wave's fingerprints.
            self._used += span.rows.shape[0]
            self._cast.append(staged)
        return staged

    def launch(self) -> None:
        """At most one fingerprint launch, and one transfer home, for all spans since the last call; waits for nothing."""
        if self.fingerprints is None or not (self._one_pass or self._cast):
            return
        if self._cast:
            self._digests.append(self.fingerprints.fingerprint(self._buffer[self._first : self._used]))
            self.num_launches += 1
        offset = 0
        for span in self._one_pass + self._cast:
            span.wave_offset = offset
            offset += span.rows.shape[0]
        digests = self._digests[0] if len(self._digests) == 1 else torch.cat(self._digests)
        self._wave.handle = self.fingerprints.send_home(digests)
        self._first = self._used
        self._new_wave()

    def _new_wave(self) -> None:
        self._wave = Wave()
        self._one_pass: list[StagedSpan] = []
        self._cast: list[StagedSpan] = []
        self._digests: list[torch.Tensor] = []

    def _room(self, count: int) -> torch.Tensor:
        """Room for `count` rows behind the wave's others; when the buffer is full the wave moves to a larger one."""
        if self._used + count > len(self._buffer):
            wave = self._buffer[self._first : self._used]
            self._buffer = torch.empty(
                max(MIN_ROWS, 2 * (len(wave) + count)), self.hidden, dtype=self.dtype, device=self.device
            )
            self._buffer[: len(wave)] = wave
            self._first, self._used = 0, 0
            for span in self._cast:
                size = span.rows.shape[0]
                span.rows = self._buffer[self._used : self._used + size]
                self._used += size
        return self._buffer[self._used : self._used + count]
