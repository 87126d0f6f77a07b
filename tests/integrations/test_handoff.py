"""Encode to prefill between two real processes: over a socket, torch.distributed and shared memory; and with a peer that lies, errs or dies."""

from __future__ import annotations

import importlib.util
import os
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


def _serve(commands):
    """The other process: an encode worker, and rank 1. Serves one transport after another until it hears None."""
    torch.set_num_threads(1)
    example = _example()
    while (command := commands.recv()) is not None:
        name, arguments = command
        globals()[name](example, *arguments)


def _send_over_socket(example, address):
    """Every case, an announcement without its rows, and death in the middle of a request."""
    from multiprocessing.connection import Client

    rows = example.encode()
    with Client(address) as connection:
        for _, envelope in _cases(rows):
            example.send_socket(connection, rows, envelope)
        for count, data in ((2, b"\0" * 1792), (1 << 40, b""), (0, b"")):
            connection.send_bytes(b"")
            connection.send_bytes(count.to_bytes(8, "little"))
            if count <= example.MAX_ROWS:
                connection.send_bytes(data)
        connection.send_bytes(seal(rows, secret=Secret(SECRET)))


def _send_over_gloo(example, path):
    rows = example.encode()
    example.join_gloo(1, path)
    for _, envelope in _cases(rows):
        example.send_gloo(rows, envelope, 0)
    for sizes in ([-1, 0], [1 << 40, 0], [0, -1], [0, 1 << 40]):
        dist.send(torch.tensor(sizes), 0)
    dist.send(torch.tensor([64, 1085]), 0)
    dist.destroy_process_group()


def _send_over_shared_memory(example, queue_, read):
    rows = example.encode()
    for _, envelope in _cases(rows):
        example.send_shared(queue_, rows, envelope)
    read.wait(60)
    example.send_shared(queue_, rows, b"")
    queue_.close()
    queue_.join_thread()
    os._exit(0)


def _announce(example, path, secrets, said):
    """Rank 1 of the comparison at start, one secret after another; what it hears goes back."""
    example.join_gloo(1, path)
    said.send([_outcome(secret) for secret in secrets])
    dist.destroy_process_group()


def _outcome(secret):
    try:
        require_same_secret_on_all_ranks(secret=Secret.random() if secret is None else Secret(secret))
    except ValueError as error:
        return str(error)
    return "agreed"


@pytest.fixture(scope="module")
def other_process():
    """order(name, *arguments): the other process calls that function of this file. It is started again when it has died."""
    context = mp.get_context("spawn")
    running = []

    def order(name, *arguments):
        if not running or not running[-1][0].is_alive():
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(there,))
            process.start()
            running.append((process, here))
        process, commands = running[-1]
        commands.send((name, arguments))
        return process

    yield order
    for process, commands in running:
        if process.is_alive():
            commands.send(None)
            process.join(30)
            process.kill()


def _check(receive, rows):
    """Every case as it arrives: rows whole, the honest accepted, the others refused."""
    expected = fingerprint_rows(rows, secret=Secret(SECRET)).numpy().tobytes()
    for wrong, _ in _cases(rows):
        received, blob = receive()
        assert torch.equal(received.view(torch.int16), rows.view(torch.int16))
        if wrong is None:
            span = accept(received, blob, start=7, secret=Secret(SECRET))
            assert span.fingerprints == expected
            assert (span.start, span.num_rows) == (7, 64)
        else:
            with pytest.raises(ValueError, match=wrong):
                accept(received, blob, start=7, secret=Secret(SECRET))


def test_over_a_socket(other_process):
    from multiprocessing.connection import Listener

    example = _example()
    with Listener(("127.0.0.1", 0)) as listener:
        other_process("_send_over_socket", listener.address)
        with listener.accept() as connection:
            _check(lambda: example.receive_socket(connection), example.encode())
            with pytest.raises(ValueError, match="the peer sent 1792 bytes of rows; 2 rows are 3584 bytes"):
                example.receive_socket(connection)
            with pytest.raises(ValueError, match="the peer announced 1099511627776 rows; 0 to 65536 are possible"):
                example.receive_socket(connection)
            assert example.receive_socket(connection)[0].shape == (0, 896)
            with pytest.raises(EOFError):
                example.receive_socket(connection)


def test_over_torch_distributed(other_process, tmp_path):
    example = _example()
    other_process("_send_over_gloo", str(tmp_path / "rendezvous"))
    example.join_gloo(0, str(tmp_path / "rendezvous"))
    try:
        _check(lambda: example.receive_gloo(1), example.encode())
        for wrong in ("-1 rows", "1099511627776 rows", "-1 bytes of envelope", "1099511627776 bytes of envelope"):
            with pytest.raises(ValueError, match=f"the peer announced {wrong}; 0 to"):
                example.receive_gloo(1)
        with pytest.raises(RuntimeError):
            example.receive_gloo(1)
    finally:
        dist.destroy_process_group()


def test_over_shared_memory(other_process):
    """A peer that dies before its memory was opened is an error, and so is one that sends nothing."""
    example = _example()
    context = mp.get_context("spawn")
    queue_, read = context.Queue(), context.Event()
    process = context.Process(target=_once, args=("_send_over_shared_memory", queue_, read))
    process.start()
    _check(lambda: example.receive_shared(queue_), example.encode())
    read.set()
    process.join(60)
    with pytest.raises(OSError):
        example.receive_shared(queue_)
    with pytest.raises(queue.Empty):
        example.receive_shared(queue_, timeout=0.1)


def _once(name, *arguments):
    """Queues and events are handed to a process when it starts, and only then."""
    torch.set_num_threads(1)
    globals()[name](_example(), *arguments)


def test_ranks_that_hash_compare_key_ids_at_start(other_process, tmp_path):
    """Every rank raises when one has another secret or a random one; none hangs."""
    example = _example()
    here, there = mp.get_context("spawn").Pipe()
    other_process("_announce", str(tmp_path / "ranks"), [SECRET, OTHER, None], there)
    example.join_gloo(0, str(tmp_path / "ranks"))
    try:
        mine = [_outcome(SECRET) for _ in range(3)]
    finally:
        dist.destroy_process_group()
    for agreed, differs, drew in (mine, here.recv()):
        assert agreed == "agreed"
        assert "that peer has another secret" in differs
        assert "rank 1 drew a random secret" in drew


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


def test_arguments_of_prefill_are_checked_before_the_envelope(secret):
    rows = torch.zeros(2, 4)
    blob = seal(rows, secret=secret)
    for embeds in (rows[0], rows[None], 3, [[0.0]]):
        with pytest.raises(ValueError, match=r"embeds is a .* of shape .*\[num_rows, hidden\] is needed"):
            accept(embeds, blob, start=0, secret=secret)
    with pytest.raises(TypeError, match="blob is a str"):
        accept(rows, "gpukey1", start=0, secret=secret)
    with pytest.raises(ValueError, match="start is -1"):
        accept(rows, blob, start=-1, secret=secret)
    assert accept(rows.to("meta"), blob, start=0, secret=secret).num_rows == 2
    wide = accept(rows, seal(rows, secret=secret, digest_size=32), start=0, secret=secret)
    assert wide.digest_size == 32
    with pytest.raises(TypeError, match="rows is a meta tensor"):
        seal(rows.to("meta"), secret=secret)


def test_no_message_holds_the_secret(secret, secret_bytes):
    rows = torch.zeros(2, 4)
    for call in (
        lambda: accept(rows, seal(rows, secret=Secret(OTHER)), start=0, secret=secret),
        lambda: accept(rows, seal(rows, secret=secret)[:-1], start=0, secret=secret),
    ):
        with pytest.raises(ValueError) as caught:
            call()
        assert secret_bytes.decode() not in str(caught.value)
        assert OTHER.decode() not in str(caught.value)
