"""No hidden synchronisation and no hidden race: producers on other streams, handles, buffers, keys."""

import gc
import threading

import numpy as np
import pytest
import torch
from gpu_cases import LONG, SECRET, assert_same, expected, make_rows

import gpukey
from gpukey import handle as handles

pytestmark = pytest.mark.gpu


@pytest.fixture
def no_sync():
    # Kernels are loaded and pinned memory is there: both would wait for the device, once in a process.
    for rows in (make_rows("bfloat16", 500, 896), make_rows("bfloat16", 896, 500)):
        for size in (16, 32):
            gpukey.fingerprint_rows(rows, secret=SECRET, digest_size=size)
        gpukey.fingerprint_spans(rows, torch.tensor([0, len(rows)], device="cuda"), secret=SECRET)
        [gpukey.fingerprint_rows_async(rows, secret=SECRET) for _ in range(4)]
    torch.cuda._sleep(1)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


def test_no_call_synchronises(no_sync):
    """Not even a call with a new secret, whose key is made and sent."""
    secret = gpukey.Secret.random()
    rows = torch.empty(500, 896, dtype=torch.bfloat16, device="cuda").fill_(1)
    cu_seqlens = torch.arange(2, device="cuda") * 500
    for _ in range(3):
        torch.cuda._sleep(LONG)
        behind = torch.cuda.current_stream().record_event()
        gpukey.fingerprint_rows(rows, secret=secret)
        gpukey.fingerprint_rows(rows.t(), secret=secret, digest_size=32)
        gpukey.fingerprint_spans(rows, cu_seqlens, secret=secret)
        handle = gpukey.fingerprint_rows_async(rows, secret=secret)
        assert not handle.ready()
        assert not behind.query(), "a call waited for the device"
    assert handle.result().shape == (500, 16)


@pytest.mark.parametrize("kind", ["event", "stream"])
def test_a_producer_on_another_stream(kind):
    """sglang PR#33949, vllm#45704: what the producer wrote is fingerprinted, not what was there before."""
    producer, want = torch.cuda.Stream(), make_rows("bfloat16", 300, 896, seed=7)
    torch.cuda.synchronize()
    for _ in range(5):
        with torch.cuda.stream(producer):
            rows = torch.zeros(300, 896, dtype=torch.bfloat16, device="cuda")
            torch.cuda._sleep(LONG)
            rows.copy_(want)
            event = producer.record_event()
        after = event if kind == "event" else producer
        handle = gpukey.fingerprint_rows_async(rows, secret=SECRET, after=after)
        columns = gpukey.fingerprint_rows(rows.t(), secret=SECRET, after=after)
        # Its memory may go to the producer's next allocation only when the fingerprint has read it.
        del rows
        with torch.cuda.stream(producer):
            torch.zeros(300, 896, dtype=torch.bfloat16, device="cuda").fill_(3)
        assert_same(torch.from_numpy(handle.result()), expected(want))
        assert_same(columns, expected(want.t()))


def test_keys_are_there_on_every_stream():
    for _ in range(20):
        secret, rows = gpukey.Secret.random(), make_rows("float32", 4, 16)
        torch.cuda.synchronize()
        first, second = torch.cuda.Stream(), torch.cuda.Stream()
        with torch.cuda.stream(first):
            torch.cuda._sleep(LONG // 20)
            a = gpukey.fingerprint_rows(rows, secret=secret)
        with torch.cuda.stream(second):
            b = gpukey.fingerprint_rows(rows, secret=secret)
        torch.cuda.synchronize()
        want = gpukey.fingerprint_rows(rows.cpu(), secret=secret)
        assert_same(a, want)
        assert_same(b, want)


def test_a_secret_may_die_before_the_kernel_ran():
    rows = make_rows("float32", 4, 16)
    secret = gpukey.Secret(b"a secret for tests, long enough")
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(LONG)
        digests = gpukey.fingerprint_rows(rows, secret=secret)
    del secret
    gc.collect()
    keep = [torch.zeros(32, dtype=torch.uint8, device="cuda") for _ in range(64)]
    torch.cuda.synchronize()
    assert_same(digests, expected(rows))
    assert len(keep) == 64


def test_dropped_handles_and_reused_buffers():
    contents = [make_rows("bfloat16", 50, 64, seed=seed) for seed in range(40)]
    wanted = [expected(rows).numpy() for rows in contents]
    torch.cuda.synchronize()
    for _ in range(3):
        torch.cuda._sleep(LONG // 4)
        kept = []
        for number, rows in enumerate(contents):
            handle = gpukey.fingerprint_rows_async(rows, secret=SECRET)
            if number % 3:
                kept.append((handle, wanted[number]))
            del handle
        gc.collect()
        assert all(np.array_equal(handle.result(), want) for handle, want in kept)
    torch.cuda.synchronize()
    del kept
    gc.collect()
    handles._pool._retired.done()
    assert len(handles._pool._retired) == 0, "a buffer never returned"


def test_result_waits_for_its_own_copy_only():
    rows = make_rows("bfloat16", 50, 64)
    handle = gpukey.fingerprint_rows_async(rows, secret=SECRET)
    torch.cuda._sleep(5 * LONG)
    behind = torch.cuda.current_stream().record_event()
    assert np.array_equal(handle.result(), expected(rows).numpy())
    assert not behind.query(), "result() waited for work that came after it"


def test_result_waits_without_the_gil():
    torch.cuda._sleep(10 * LONG)
    handle, ticks, done = (
        gpukey.fingerprint_rows_async(make_rows("float32", 4, 16), secret=SECRET),
        [],
        threading.Event(),
    )

    def tick():
        while not done.wait(0.005):
            ticks.append(1)

    thread = threading.Thread(target=tick)
    thread.start()
    handle.result()
    done.set()
    thread.join()
    assert len(ticks) > 10


def test_borrowed_arrays_of_other_libraries_live_until_they_are_read():
    cupy = pytest.importorskip("cupy", reason="needs the cupy extra")
    torch.cuda._sleep(LONG)
    array = cupy.arange(4000, dtype=cupy.float32).reshape(4, 1000)
    want = expected(torch.arange(4000, dtype=torch.float32).view(4, 1000))
    digests = gpukey.fingerprint_rows(array, secret=SECRET)
    del array
    for _ in range(10):
        cupy.zeros((4, 1000), dtype=cupy.float32)
    assert_same(digests, want)
    again = cupy.arange(4000, dtype=cupy.float32).reshape(4, 1000)

    class OnlyInterface:
        __cuda_array_interface__ = again.__cuda_array_interface__

    assert_same(gpukey.fingerprint_rows(OnlyInterface(), secret=SECRET), want)
