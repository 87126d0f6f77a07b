"""The asynchronous handle and its pinned buffers, with a transport that has no device but keeps every rule of one."""

import copy
import gc
import pickle
import random
import threading
import weakref

import numpy as np
import pytest
import torch

from gpukey import handle as handles
from gpukey.handle import PinnedPool, send_home
from gpukey.streams import Retirement


class FakeEvent:
    def __init__(self):
        self.come = threading.Event()
        self.fails = False

    def query(self):
        if self.fails:
            raise RuntimeError("device lost")
        return self.come.is_set()

    def synchronize(self):
        assert self.come.wait(10), "waited for an event that nothing lets come"


class FakeDevice:
    """Copies land only when finish() lets them: until then a buffer holds noise, and being read or handed out is a
    fault."""

    def __init__(self):
        self.copies, self.buffers, self.captures = [], weakref.WeakSet(), False
        self.allocated = 0

    def allocate(self, num_bytes):
        buffer = torch.full((num_bytes,), 0xEE, dtype=torch.uint8)
        self.buffers.add(buffer)
        self.allocated += 1
        return buffer

    def copy(self, digests, pinned):
        busy = {other.data_ptr() for other, _, event in self.copies if not event.query()}
        assert pinned.data_ptr() not in busy, "a buffer was reused before its event"
        event = FakeEvent()
        self.copies.append((pinned, digests, event))
        return event

    def capturing(self):
        return self.captures

    def finish(self, index):
        pinned, digests, event = self.copies[index]
        pinned[: digests.numel()] = digests.flatten()
        event.come.set()


@pytest.fixture
def device():
    return FakeDevice()


@pytest.fixture
def pool(device):
    return PinnedPool(device)


def digests(count, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, (count, 16), dtype=np.uint8))


def test_ready_then_result(device, pool):
    rows = digests(5)
    handle = send_home(rows, pool, device)
    assert not handle.ready()
    device.finish(0)
    assert handle.ready()
    assert np.array_equal(handle.result(), rows.numpy())
    assert handle.result() is handle.result()
    assert handle.ready()


def test_result_waits_for_its_own_event_only(device, pool):
    first, second = digests(5, 1), digests(5, 2)
    a, b = send_home(first, pool, device), send_home(second, pool, device)
    device.finish(1)
    assert np.array_equal(b.result(), second.numpy())
    assert not a.ready()
    threading.Timer(0.05, device.finish, [0]).start()
    assert np.array_equal(a.result(), first.numpy())


def test_a_result_does_not_change_when_its_buffer_is_reused(device, pool):
    handle = send_home(digests(5, 1), pool, device)
    device.finish(0)
    result = handle.result()
    again = send_home(digests(5, 2), pool, device)
    device.finish(1)
    again.result()
    assert device.allocated == 1
    assert np.array_equal(result, digests(5, 1).numpy())


def test_a_dropped_handle_returns_its_buffer_after_the_event_only(device, pool):
    send_home(digests(5), pool, device)
    gc.collect()
    send_home(digests(5), pool, device)
    gc.collect()
    assert device.allocated == 2, "handed out while its copy was under way"
    device.finish(0)
    device.finish(1)
    send_home(digests(5), pool, device)
    assert device.allocated == 2
    assert len(device.buffers) == 2


def test_a_dropped_handle_in_a_cycle(device, pool):
    handle = send_home(digests(5), pool, device)
    cycle = [handle]
    cycle.append(cycle)
    del handle, cycle
    gc.collect()
    device.finish(0)
    send_home(digests(5), pool, device)
    assert device.allocated == 1


def test_a_buffer_returns_once(device, pool):
    handle = send_home(digests(5), pool, device)
    device.finish(0)
    handle.result()
    handle.result()
    del handle
    gc.collect()
    kept = [send_home(digests(5), pool, device), send_home(digests(5), pool, device)]
    assert device.allocated == 2
    assert kept[0]._pending.buffer.data_ptr() != kept[1]._pending.buffer.data_ptr()


def test_sizes(device, pool):
    for count in (1, 256, 257, 1000):
        rows = digests(count)
        handle = send_home(rows, pool, device)
        device.finish(-1)
        assert np.array_equal(handle.result(), rows.numpy())
    assert sorted(buffer.numel() for buffer in device.buffers) == [4096, 8192, 16384]


def test_no_rows_need_no_copy(device, pool):
    handle = send_home(digests(0), pool, device)
    assert handle.ready()
    assert handle.result().shape == (0, 16)
    assert not device.copies


def test_many_steps_allocate_no_more_than_were_in_flight(device, pool):
    dice, flying = random.Random(1), []
    for step in range(400):
        rows = digests(dice.randrange(1, 300), step)
        flying.append((send_home(rows, pool, device), rows, step))
        if len(flying) > 4:
            handle, rows, copied = flying.pop(dice.randrange(len(flying)))
            device.finish(copied)
            if dice.random() < 0.5:
                assert np.array_equal(handle.result(), rows.numpy())
            del handle
    assert device.allocated <= 2 * 6


def test_capture_is_refused_everywhere(device, pool):
    handle = send_home(digests(5), pool, device)
    device.captures = True
    for call in (handle.ready, handle.result, lambda: send_home(digests(5), pool, device)):
        with pytest.raises(RuntimeError, match="capture"):
            call()
    assert len(device.copies) == 1
    device.captures = False
    device.finish(0)
    assert handle.result().shape == (5, 16)


def test_a_buffer_whose_event_fails_is_never_handed_out(device, pool):
    send_home(digests(5), pool, device)
    gc.collect()
    device.copies[0][2].fails = True
    with pytest.raises(RuntimeError, match="device lost"):
        device.copies[0][2].query()
    device.copies.clear()
    gc.collect()
    send_home(digests(5), pool, device)
    assert device.allocated == 2


def test_threads_share_a_handle(device, pool):
    rows = digests(50)
    handle = send_home(rows, pool, device)
    results = []
    threads = [threading.Thread(target=lambda: results.append(handle.result())) for _ in range(8)]
    for thread in threads:
        thread.start()
    device.finish(0)
    for thread in threads:
        thread.join(10)
    assert len(results) == 8
    assert all(result is results[0] for result in results)
    send_home(digests(5), pool, device)
    send_home(digests(5), pool, device)
    assert device.allocated == 2


def test_threads_share_a_pool():
    device = FakeDevice()
    pool, wrong = PinnedPool(device), []

    def work(seed):
        for step in range(50):
            rows = digests(20, seed * 1000 + step)
            pinned = pool.acquire(rows.numel())
            event = FakeEvent()
            pinned[: rows.numel()] = rows.flatten()
            if not torch.equal(pinned[: rows.numel()].view(rows.shape), rows):
                wrong.append((seed, step))
            event.come.set()
            pool.release(pinned, event)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not wrong
    assert device.allocated <= 6


def test_a_finalizer_may_run_inside_the_queue():
    """A collection can drop a handle while the same thread holds the queue's lock: put() must not wait for it."""
    queue = Retirement()
    late = FakeEvent()

    class Reentrant(FakeEvent):
        def query(self):
            queue.put("late", late)
            return True

    queue.put("first", Reentrant())
    assert queue.done() == ["first"]
    assert len(queue) == 1
    late.come.set()
    assert queue.done() == ["late"]


def test_on_a_cpu_it_computes_at_once_and_owns_its_bytes():
    rows = digests(3)
    handle = handles.send_home(rows)
    assert handle.ready()
    before = handle.result().copy()
    rows.zero_()
    assert np.array_equal(handle.result(), before)


def test_no_copy_reads_a_buffer_that_was_given_back():
    device = FakeDevice()
    handle = send_home(torch.zeros(2, 16, dtype=torch.uint8), PinnedPool(device), device)
    for copier in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="FingerprintHandle is not copied or pickled"):
            copier(handle)
