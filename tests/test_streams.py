"""Waiting, borrowing and keys on streams, with stand-ins for torch.cuda that write down what they are asked."""

import contextlib
import gc
import weakref

import pytest
import torch

from gpukey import device_keys, handle, streams
from gpukey.secret import Secret


class FakeCuda:
    """torch.cuda with numbered streams; `log` has every call that orders or borrows."""

    def __init__(self, patch):
        self.log, self.count, self.now, self.capture = [], 0, None, False
        outer = self

        class Event(torch.Event):
            def __new__(cls, stream):
                return super().__new__(cls, "cpu")

            def __init__(self, stream):
                self.stream, self.over = stream, False

            def query(self):
                return self.over

        class Stream(torch.Stream):
            def __new__(cls, device=None):
                return super().__new__(cls, device="cpu")

            def __init__(self, device=None):
                outer.count += 1
                self.cuda_stream = outer.count

            def wait_event(self, event):
                outer.log.append(("wait", self.cuda_stream, event.stream.cuda_stream))

            def wait_stream(self, other):
                outer.log.append(("wait", self.cuda_stream, other.cuda_stream))

            def record_event(self):
                outer.log.append(("record", self.cuda_stream))
                return Event(self)

        self.Stream = Stream
        self.now = Stream()
        patch.setattr(torch.cuda, "Stream", Stream)
        patch.setattr(torch.cuda, "current_stream", lambda device=None: self.now)
        patch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: self.now.cuda_stream, raising=False)
        patch.setattr(torch.cuda, "stream", self.on)
        patch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
        patch.setattr(torch.cuda, "is_initialized", lambda: True)
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: self.capture)

    @contextlib.contextmanager
    def on(self, stream):
        before, self.now = self.now, stream
        yield
        self.now = before


class FakeRows:
    """As much of a CUDA tensor as is asked for."""

    is_cuda, device = True, torch.device("cuda", 0)

    def __init__(self, cuda):
        self.cuda = cuda

    def to(self, device, non_blocking):
        assert non_blocking
        self.cuda.log.append(("copy", self.cuda.now.cuda_stream))
        return self

    def record_stream(self, stream):
        self.cuda.log.append(("borrow", stream.cuda_stream))


@pytest.fixture
def cuda(monkeypatch):
    return FakeCuda(monkeypatch)


def test_after_an_event_or_a_stream(cuda):
    producer = cuda.Stream()
    event = producer.record_event()
    cuda.log.clear()
    for after in (event, producer):
        streams.wait_for(after, FakeRows(cuda))
        assert cuda.log == [("wait", 1, 2), ("borrow", 1)]
        cuda.log.clear()
    with pytest.raises(TypeError, match=r"after is a int; a torch.cuda.Event or torch.cuda.Stream"):
        streams.wait_for(3, FakeRows(cuda))


def test_what_a_thread_produced_is_waited_for_on_the_stream_of_another(cuda):
    with cuda.on(cuda.Stream()):
        event = streams.produced(FakeRows(cuda))
    streams.wait_for(event, FakeRows(cuda))
    assert cuda.log == [("record", 2), ("wait", 1, 2), ("borrow", 1)]


def test_a_key_is_copied_once_and_every_stream_waits_once(cuda):
    key = device_keys.DeviceKey(FakeRows(cuda), torch.device("cuda", 0))
    copies = 2
    assert cuda.log == [("copy", copies), ("record", copies)]
    cuda.log.clear()
    for _ in range(3):
        key.on_current_stream()
    assert cuda.log == [("wait", 1, copies), ("borrow", 1)]
    cuda.log.clear()
    with cuda.on(cuda.Stream()):
        key.on_current_stream()
        key.on_current_stream()
    assert cuda.log == [("wait", 3, copies), ("borrow", 3)]


def test_a_capture_uses_a_key_that_is_there_and_makes_none(cuda):
    key = device_keys.DeviceKey(FakeRows(cuda), torch.device("cuda", 0))
    cuda.log.clear()
    cuda.capture = True
    key.on_current_stream()
    assert cuda.log == [("borrow", 1)], "a capture cannot wait for an event from outside"
    with pytest.raises(RuntimeError, match="before the capture"):
        device_keys.DeviceKey(FakeRows(cuda), torch.device("cuda", 0))
    cuda.capture = False
    cuda.log.clear()
    key.on_current_stream()
    assert ("wait", 1, 2) in cuda.log, "the capture must not count as a wait"


def test_a_secret_makes_one_device_key(cuda, monkeypatch):
    made = []

    class Counted(device_keys.DeviceKey):
        def __init__(self, host, device):
            made.append(bytes(host.numpy()))
            super().__init__(FakeRows(cuda), device)

    monkeypatch.setattr(device_keys, "DeviceKey", Counted)
    secret = Secret(b"a secret for tests, long enough")
    place = torch.device("cuda", 0)
    for _ in range(3):
        device_keys.device_key(secret, "row", torch.bfloat16, 8, 16, place)
    assert made == [secret.host_key("row", "bfloat16", 8, 16)]
    device_keys.device_key(secret, "span", torch.bfloat16, 8, 16, place)
    device_keys.device_key(secret, "row", torch.bfloat16, 8, 16, torch.device("cuda", 1))
    assert len(made) == 3


def test_a_key_that_another_thread_made_first_is_taken():
    secret = Secret(b"a secret for tests, long enough")
    place = torch.device("cpu")
    made = device_keys.device_key(secret, "row", torch.bfloat16, 8, 16, place)

    class Late(dict):
        """The first look finds nothing yet."""

        def get(self, slot):
            found, self.found = getattr(self, "found", None), super().get(slot)
            return found

    secret._device_keys = Late(secret._device_keys)
    assert device_keys.device_key(secret, "row", torch.bfloat16, 8, 16, place) is made


def test_arrays_of_others_are_held_until_their_event(cuda, monkeypatch):
    queue = streams.Retirement()
    monkeypatch.setattr(streams, "_foreign", queue)

    class Array:
        pass

    dropped = []
    array = Array()

    weakref.finalize(array, dropped.append, True)
    streams.keep_until_done(array, torch.device("cuda", 0))
    del array
    gc.collect()
    assert not dropped
    queue._arriving[0][1].over = True
    queue.done()
    gc.collect()
    assert dropped
    cuda.capture = True
    streams.keep_until_done(Array(), torch.device("cuda", 0))
    assert len(queue) == 0


def test_digests_go_home_on_a_side_stream(cuda):
    class Digests(FakeRows):
        shape = (2, 16)

        def numel(self):
            return 32

    class Pinned:
        def __getitem__(self, part):
            return self

        def view(self, shape):
            return self

        def copy_(self, digests, non_blocking):
            assert non_blocking
            cuda.log.append(("home", cuda.now.cuda_stream))

    transport = handle.CudaTransport()
    for _ in range(2):
        cuda.log.clear()
        event = transport.copy(Digests(cuda), Pinned())
        assert cuda.log == [("wait", 2, 1), ("home", 2), ("record", 2), ("borrow", 2)]
        assert event.stream.cuda_stream == 2
    assert cuda.count == 2, "one side stream a device"
