"""Encode to prefill between two real processes: over a socket, torch.distributed and shared memory; and with a peer that lies, errs or dies."""

from __future__ import annotations

import importlib.util
import pathlib
import queue
import sys

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from gpukey.fingerprint import fingerprint_rows
from gpukey.integrations.agreement import require_same_secret_on_all_ranks
from gpukey.integrations.handoff import accept, seal
from gpukey.secret import Secret

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples/handoff_processes.py"
SECRET, OTHER = b"a secret for tests, long enough", b"another secret, long enough too"


def _example():
    """The example as a module that a spawned process finds again by its name."""
    name = "handoff_processes"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, EXAMPLE)
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def _cases(rows):
    """(what is wrong, envelope to send); the rows are the same in each."""
    honest = seal(rows, secret=Secret(SECRET))
    return [
        (None, honest),
        ("was packed under the secret with key id", seal(rows, secret=Secret(OTHER))),
        ("MAC of blob is wrong", honest[:-1]),
        ("MAC of blob is wrong", honest[:40] + bytes([honest[40] ^ 1]) + honest[41:]),
        ("MAC of blob is wrong", honest + b"\0"),
        ("an envelope has at least", b""),
        ("holds 63 fingerprints; embeds has 64 rows", seal(rows[:63], secret=Secret(SECRET))),
        ("fingerprints of float16 rows", seal(rows.view(torch.float16), secret=Secret(SECRET))),
        ("of rows of 448 elements", seal(rows.view(128, 448), secret=Secret(SECRET))),
        (None, honest),
    ]


def _worker(path, transport, channel, held):
    """The encode worker: every case, then it dies in the middle of a message."""
    torch.set_num_threads(1)
    sys.path.insert(0, str(pathlib.Path(path).parent))
    import handoff_processes as example

    rows = example.encode()
    if transport == "socket":
        from multiprocessing.connection import Client

        with Client(channel) as connection:
            for _, envelope in _cases(rows):
                example.send_socket(connection, rows, envelope)
            connection.send_bytes(seal(rows, secret=Secret(SECRET)))
    elif transport == "gloo":
        example.join_gloo(1, channel)
        for _, envelope in _cases(rows):
            if envelope:
                example.send_gloo(rows, envelope, 0)
        dist.send(torch.tensor([64, 1085]), 0)
    else:
        for _, envelope in _cases(rows):
            example.send_shared(channel, rows, envelope)
        channel.close()
        channel.join_thread()
        held.wait(60)


def _check(receive, rows, expected, skip_empty=False):
    for wrong, envelope in _cases(rows):
        if skip_empty and not envelope:
            continue
        received, blob = receive()
        assert torch.equal(received.view(torch.int16), rows.view(torch.int16))
        if wrong is None:
            span = accept(received, blob, start=7, secret=Secret(SECRET))
            assert span.fingerprints == expected
            assert (span.start, span.num_rows) == (7, 64)
        else:
            with pytest.raises(ValueError, match=wrong):
                accept(received, blob, start=7, secret=Secret(SECRET))


@pytest.mark.parametrize("transport", ["socket", "gloo", "shm"])
def test_two_processes(transport, tmp_path, monkeypatch):
    example = _example()
    rows = example.encode()
    expected = fingerprint_rows(rows, secret=Secret(SECRET)).numpy().tobytes()
    cases = _cases(rows)
    monkeypatch.setattr(sys.modules[__name__], "_cases", lambda _: cases)
    context = mp.get_context("spawn")
    held = context.Event()
    if transport == "socket":
        from multiprocessing.connection import Listener

        listener = Listener(("127.0.0.1", 0))
        channel = listener.address
    else:
        channel = str(tmp_path / "rendezvous") if transport == "gloo" else context.Queue()
    worker = context.Process(target=_worker, args=(str(EXAMPLE), transport, channel, held))
    worker.start()
    try:
        if transport == "socket":
            with listener.accept() as connection:
                _check(lambda: example.receive_socket(connection), rows, expected)
                with pytest.raises(EOFError):
                    example.receive_socket(connection)
        elif transport == "gloo":
            example.join_gloo(0, channel)
            try:
                _check(lambda: example.receive_gloo(1), rows, expected, skip_empty=True)
                with pytest.raises(RuntimeError):
                    example.receive_gloo(1)
            finally:
                dist.destroy_process_group()
        else:
            _check(lambda: example.receive_shared(channel), rows, expected)
            with pytest.raises(queue.Empty):
                example.receive_shared(channel, timeout=0.2)
    finally:
        held.set()
        worker.join(30)
        if worker.is_alive():
            worker.kill()
    assert worker.exitcode == 0


def test_prefill_never_hashes(secret, monkeypatch):
    rows = torch.randn(5, 16)
    blob = seal(rows, secret=secret)
    expected = fingerprint_rows(rows, secret=secret).numpy().tobytes()
    monkeypatch.setattr("gpukey.fingerprint._hash_rows", None)
    with pytest.raises(TypeError, match="not callable"):
        seal(rows, secret=secret)
    assert accept(rows, blob, start=0, secret=secret).fingerprints == expected


def test_without_a_configured_secret_nothing_is_sealed_or_accepted(monkeypatch):
    monkeypatch.delenv("GPUKEY_SECRET", raising=False)
    monkeypatch.delenv("GPUKEY_SECRET_FILE", raising=False)
    rows = torch.zeros(1, 4)
    for call in (lambda: seal(rows), lambda: accept(rows, b"", start=0)):
        with pytest.raises(ValueError, match="neither GPUKEY_SECRET nor GPUKEY_SECRET_FILE is set"):
            call()
    with pytest.raises(ValueError, match="random"):
        seal(rows, secret=Secret.random())


def _rank(rank, path, secrets, said):
    torch.set_num_threads(1)
    sys.path.insert(0, str(EXAMPLE.parent))
    import handoff_processes as example

    example.join_gloo(rank, path)
    for pair in secrets:
        secret = Secret.random() if pair[rank] is None else Secret(pair[rank])
        try:
            require_same_secret_on_all_ranks(secret=secret)
            said.put((rank, "agreed"))
        except ValueError as error:
            said.put((rank, str(error)))
    dist.barrier()
    dist.destroy_process_group()


def test_ranks_that_hash_compare_key_ids_at_start(tmp_path):
    """Every rank raises when one has another secret or a random one; none hangs."""
    context = mp.get_context("spawn")
    channel = context.Queue()
    secrets = [(SECRET, SECRET), (SECRET, OTHER), (SECRET, None)]
    ranks = [context.Process(target=_rank, args=(r, str(tmp_path / "ranks"), secrets, channel)) for r in range(2)]
    for process in ranks:
        process.start()
    said = [channel.get(timeout=60) for _ in range(6)]
    for process in ranks:
        process.join(30)
        assert process.exitcode == 0
    for rank in range(2):
        agreed, differs, drew = [text for who, text in said if who == rank]
        assert agreed == "agreed"
        assert "that peer has another secret" in differs
        assert "rank 1 drew a random secret" in drew
