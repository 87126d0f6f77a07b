"""Order between CUDA streams: waiting for a producer, borrowing its memory, and keeping things until the device is done
with them."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import torch

After: TypeAlias = "torch.cuda.Event | torch.cuda.Stream"
T = TypeVar("T")


class Event(Protocol):
    """The part of torch.cuda.Event that is used."""

    def query(self) -> bool:
        """Whether the device has come to it."""

    def synchronize(self) -> None:
        """Waits for it, without the GIL."""


class Retirement(Generic[T]):
    """Things that may be used again, or dropped, once their event has come. `put` may be called from a finalizer at any
    point of any thread."""

    def __init__(self) -> None:
        # A finalizer may run inside `done` on the same thread: it must find a queue that needs no lock.
        self._arriving: deque[tuple[T, Event]] = deque()
        self._waiting: list[tuple[T, Event]] = []
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._arriving) + len(self._waiting)

    def put(self, thing: T, event: Event) -> None:
        """Keeps `thing` until `event`."""
        self._arriving.append((thing, event))

    def done(self) -> list[T]:
        """The things whose event has come; they are kept no longer. One whose event fails is dropped: its memory may
        still be written."""
        finished = []
        with self._lock:
            candidates, self._waiting = self._waiting, []
            while self._arriving:
                candidates.append(self._arriving.popleft())
            for thing, event in candidates:
                try:
                    over = event.query()
                except RuntimeError:
                    continue
                if over:
                    finished.append(thing)
                else:
                    self._waiting.append((thing, event))
        return finished


def capturing() -> bool:
    """Whether the current stream of the current device is capturing a graph. Starts no CUDA."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()  # type: ignore[no-untyped-call]


def produced(tensor: torch.Tensor) -> torch.cuda.Event:
    """What another thread gives to `wait_for` before it reads the tensor: all that is enqueued on the current stream of
    its device."""
    event: torch.cuda.Event = torch.cuda.current_stream(tensor.device).record_event()
    return event


def wait_for(after: After, rows: torch.Tensor) -> None:
    """The current stream of the rows' device waits for `after` (the host does not), and borrows the rows from the
    stream that made them."""
    if not rows.is_cuda:
        raise ValueError(f"after is given and rows is on {rows.device}; only work on a device can be waited for")
    stream = torch.cuda.current_stream(rows.device)
    if isinstance(after, torch.Event):
        stream.wait_event(after)
    elif isinstance(after, torch.Stream):
        stream.wait_stream(after)
    else:
        raise TypeError(f"after is a {type(after).__name__}; a torch.cuda.Event or torch.cuda.Stream is needed")
    borrow(rows)


def borrow(tensor: torch.Tensor) -> None:
    """Its memory, allocated on another stream, is not given to others before the current stream is done with it."""
    if tensor.is_cuda:
        tensor.record_stream(torch.cuda.current_stream(tensor.device))


_foreign: Retirement[Any] = Retirement()


def keep_until_done(owner: Any, device: torch.device) -> None:
    """Holds an array of another library until the work just enqueued has read it: torch's allocator cannot, as the
    memory is not its own."""
    _foreign.done()
    with torch.cuda.device(device):
        if not capturing():
            _foreign.put(owner, torch.cuda.current_stream().record_event())
