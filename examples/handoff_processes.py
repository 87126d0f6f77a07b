"""An encode worker and a prefill worker in two processes: rows and their envelope over a socket, torch.distributed or shared memory.

    GPUKEY_SECRET=$(gpukey keygen) python examples/handoff_processes.py [socket|gloo|shm]

Prefill checks the envelope and builds block keys from it; it never hashes a row. Runs on a CPU; on a GPU only the encoder's device changes.
"""

from __future__ import annotations

import os
import sys
import tempfile
from multiprocessing.connection import Client, Listener
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.multiprocessing.reductions import reduce_tensor

import gpukey
from gpukey.integrations.handoff import accept, seal

TRANSPORTS = ("socket", "gloo", "shm")
HIDDEN, DTYPE = 896, torch.bfloat16
MAX_ROWS = 1 << 16
MAX_ENVELOPE = 128 + 32 * MAX_ROWS
"""What a request may hold. A peer that announces more is refused before memory is made for it."""


def encode() -> torch.Tensor:
    """What an image encoder would return: [num_rows, hidden]."""
    return torch.randn(64, HIDDEN, generator=torch.Generator().manual_seed(1)).bfloat16()


def send_socket(connection: Any, rows: torch.Tensor, envelope: bytes) -> None:
    """Three framed messages: the envelope, the number of rows, their bytes. No pickle, so a peer can send nothing but bytes."""
    connection.send_bytes(envelope)
    connection.send_bytes(rows.shape[0].to_bytes(8, "little"))
    connection.send_bytes(rows.contiguous().view(-1).view(torch.uint8).numpy())


def receive_socket(connection: Any) -> tuple[torch.Tensor, bytes]:
    """EOFError or OSError when the peer is gone, also in the middle of a request; ValueError or OSError when it sends another size."""
    envelope = connection.recv_bytes(MAX_ENVELOPE)
    count = checked("rows", int.from_bytes(connection.recv_bytes(8), "little"), MAX_ROWS)
    rows = torch.empty(count, HIDDEN, dtype=DTYPE)
    data = connection.recv_bytes(rows.nbytes)
    if len(data) != rows.nbytes:
        raise ValueError(f"the peer sent {len(data)} bytes of rows; {count} rows are {rows.nbytes} bytes")
    rows.view(torch.uint8).numpy().reshape(-1)[:] = memoryview(data)
    return rows, envelope


def checked(name: str, size: int, most: int) -> int:
    """A size that came from a peer; ValueError unless it is 0 to `most`."""
    if not 0 <= size <= most:
        raise ValueError(f"the peer announced {size} {name}; 0 to {most} are possible")
    return size


def send_gloo(rows: torch.Tensor, envelope: bytes, peer: int) -> None:
    """Sizes first, then rows as they lie in memory, then the envelope."""
    dist.send(torch.tensor([rows.shape[0], len(envelope)]), peer)
    dist.send(rows.contiguous(), peer)
    dist.send(torch.tensor(list(envelope), dtype=torch.uint8), peer)


def receive_gloo(peer: int) -> tuple[torch.Tensor, bytes]:
    """RuntimeError when the peer is gone; ValueError when it announces more than a request may hold."""
    sizes = torch.zeros(2, dtype=torch.int64)
    dist.recv(sizes, peer)
    rows = torch.empty(checked("rows", int(sizes[0]), MAX_ROWS), HIDDEN, dtype=DTYPE)
    envelope = torch.empty(checked("bytes of envelope", int(sizes[1]), MAX_ENVELOPE), dtype=torch.uint8)
    dist.recv(rows, peer)
    dist.recv(envelope, peer)
    return rows, envelope.numpy().tobytes()


def send_shared(queue: Any, rows: torch.Tensor, envelope: bytes) -> None:
    """Only a handle to shared memory travels; both processes see one copy of the rows."""
    queue.put((*reduce_tensor(rows.contiguous().share_memory_()), envelope))


def receive_shared(queue: Any, timeout: float = 60) -> tuple[torch.Tensor, bytes]:
    """queue.Empty when nothing came in time, OSError when the peer died before its memory was opened. The queue pickles: only between trusted
    processes."""
    rebuild, arguments, envelope = queue.get(timeout=timeout)
    return rebuild(*arguments), envelope


def join_gloo(rank: int, path: str) -> None:
    """Two ranks meet over a file; no port is opened but gloo's own on the loopback interface."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)


def encoder(transport: str, channel: Any) -> None:
    rows = encode()
    envelope = seal(rows)
    if transport == "socket":
        with Client(channel) as connection:
            send_socket(connection, rows, envelope)
    elif transport == "gloo":
        join_gloo(1, channel)
        send_gloo(rows, envelope, 0)
        dist.destroy_process_group()
    else:
        send_shared(channel[0], rows, envelope)
        channel[1].wait()  # shared memory lives until the reader has it


def main(transport: str = "socket") -> None:
    if transport not in TRANSPORTS:
        raise ValueError(f"transport is {transport!r}; one of {', '.join(TRANSPORTS)} is needed")
    # Before a worker starts: one that ends for want of a secret never connects, and we would wait for it.
    secret = gpukey.Secret.from_env()
    context = mp.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        done = context.Event()
        listener = Listener(("127.0.0.1", 0))
        queue = context.Queue()
        channel = {"socket": listener.address, "gloo": f"{folder}/rendezvous", "shm": (queue, done)}[transport]
        worker = context.Process(target=encoder, args=(transport, channel))
        worker.start()
        if transport == "socket":
            with listener.accept() as connection:
                rows, envelope = receive_socket(connection)
        elif transport == "gloo":
            join_gloo(0, f"{folder}/rendezvous")
            rows, envelope = receive_gloo(1)
            dist.destroy_process_group()
        else:
            rows, envelope = receive_shared(queue)
        span = accept(rows, envelope, start=16)
        done.set()
        worker.join()
    root = gpukey.Root(model="demo", dtype="bfloat16")
    keys = gpukey.block_keys([0] * 96, block_size=16, root=root, secret=secret, embeds=[span])
    print(
        f"{transport}: {span.num_rows} rows, {len(envelope)} bytes of envelope, {len(keys)} block keys, last {keys[-1].hex()[:16]}"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
