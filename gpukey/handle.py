"""Fingerprints on their way home: pinned buffers from a pool, a side stream a device, and the handle that waits for its
own copy."""

from __future__ import annotations

import threading
import weakref
from typing import NoReturn, Protocol

import numpy as np
import numpy.typing as npt
import torch

from gpukey import streams
from gpukey.streams import Event, Retirement

SMALLEST = 4096
Digests = npt.NDArray[np.uint8]


class Transport(Protocol):
    """What moves bytes from a device; the tests give one without a device."""

    def allocate(self, num_bytes: int) -> torch.Tensor:
        """Pinned uint8 [num_bytes]."""

    def copy(self, digests: torch.Tensor, pinned: torch.Tensor) -> Event:
        """Starts copying contiguous `digests` to the beginning of `pinned`; the event comes when it is there."""

    def capturing(self) -> bool:
        """Whether this thread is capturing a graph, when nothing may be waited for."""


class PinnedPool:
    """Pinned buffers by size, powers of two of at least 4 KiB. One returns after its event only, also when its handle
    is dropped before."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._free: dict[int, list[torch.Tensor]] = {}
        self._lock = threading.Lock()
        self._retired: Retirement[torch.Tensor] = Retirement()

    def acquire(self, num_bytes: int) -> torch.Tensor:
        """A buffer of at least `num_bytes` that no copy writes and no handle reads."""
        size = max(SMALLEST, 1 << (num_bytes - 1).bit_length())
        returned = self._retired.done()
        with self._lock:
            for buffer in returned:
                self._free.setdefault(buffer.numel(), []).append(buffer)
            if self._free.get(size):
                return self._free[size].pop()
        return self._transport.allocate(size)

    def release(self, buffer: torch.Tensor, event: Event) -> None:
        """Gives it back once `event` has come. Safe in a finalizer."""
        self._retired.put(buffer, event)


class FingerprintHandle:
    """Fingerprints that come home: `ready()` asks, `result()` waits and gives numpy uint8 [num_rows, digest_size].

    Made by `fingerprint_rows_async`. Neither call waits for work that was enqueued after the copy. Both are RuntimeError
    during graph capture.
    """

    def __init__(self, result: Digests | None, pending: _Pending | None = None) -> None:
        self._result = result
        self._pending = pending
        self._lock = threading.Lock()
        if pending is not None:
            # Dropped or collected by result(): the buffer goes back through the same door, once.
            self._release = weakref.finalize(self, pending.pool.release, pending.buffer, pending.event)
            self._release.atexit = False

    def ready(self) -> bool:
        """Whether result() would return at once."""
        with self._lock:
            return self._pending is None or self._checked(self._pending).event.query()

    def result(self) -> Digests:
        """uint8 [num_rows, digest_size]; the same array each time."""
        pending = self._pending
        if pending is not None:
            # Outside the lock and without the GIL, so that other threads go on.
            self._checked(pending).event.synchronize()
        with self._lock:
            if self._pending is not None:
                self._result = self._pending.read()
                self._pending = None
                self._release()
        assert self._result is not None
        return self._result

    def __reduce__(self) -> NoReturn:
        # A copy would read a pinned buffer that this one has given back.
        raise TypeError("a FingerprintHandle is not copied or pickled; result() is an array that can be")

    @staticmethod
    def _checked(pending: _Pending) -> _Pending:
        if pending.transport.capturing():
            raise RuntimeError(
                "a fingerprint handle cannot be waited for during graph capture; ask for it before or after"
            )
        return pending


class _Pending:
    """A copy under way."""

    __slots__ = ("buffer", "event", "pool", "shape", "transport")

    def __init__(self, digests: torch.Tensor, pool: PinnedPool, transport: Transport) -> None:
        self.pool, self.transport, self.shape = pool, transport, tuple(digests.shape)
        self.buffer = pool.acquire(digests.numel())
        self.event = transport.copy(digests, self.buffer)

    def read(self) -> Digests:
        count, width = self.shape
        return np.array(self.buffer[: count * width].numpy().reshape(count, width))


class CudaTransport:
    """Copies on one side stream a device, after the work enqueued on the current stream so far."""

    def __init__(self) -> None:
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._lock = threading.Lock()

    def allocate(self, num_bytes: int) -> torch.Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8, device="cpu", pin_memory=True)

    def copy(self, digests: torch.Tensor, pinned: torch.Tensor) -> Event:
        with self._lock:
            if digests.device not in self._streams:
                self._streams[digests.device] = torch.cuda.Stream(digests.device)  # type: ignore[no-untyped-call]
            home = self._streams[digests.device]
        home.wait_stream(torch.cuda.current_stream(digests.device))
        with torch.cuda.stream(home):
            pinned[: digests.numel()].view(digests.shape).copy_(digests, non_blocking=True)
            event: Event = home.record_event()
        digests.record_stream(home)
        return event

    def capturing(self) -> bool:
        return streams.capturing()


_transport = CudaTransport()
_pool = PinnedPool(_transport)


def refuse_capture(transport: Transport = _transport) -> None:
    """RuntimeError while this thread captures a graph."""
    if transport.capturing():
        raise RuntimeError(
            "fingerprints cannot be sent home during graph capture; "
            "capture fingerprint_rows, and send its result home after a replay"
        )


def send_home(
    digests: torch.Tensor, pool: PinnedPool | None = None, transport: Transport = _transport
) -> FingerprintHandle:
    """A handle on contiguous uint8 [num_rows, digest_size]: at once for a CPU tensor without a pool, else copied on a
    side stream."""
    refuse_capture(transport)
    if digests.shape[0] == 0 or (pool is None and digests.device.type == "cpu"):
        return FingerprintHandle(np.array(digests.cpu().numpy()))
    return FingerprintHandle(None, _Pending(digests, pool or _pool, transport))
