"""The Triton backend on a GPU: graphs, streams and compiled code. (Its bytes are compared with all other backends' elsewhere.)"""

from __future__ import annotations

import pytest
import torch
from blake3 import blake3
from triton_rows import backend

pytestmark = pytest.mark.gpu

KEY = bytes(range(32))


def key() -> torch.Tensor:
    return torch.tensor(list(KEY), dtype=torch.uint8, device="cuda")


def expected(rows: torch.Tensor, size: int) -> list[bytes]:
    return [blake3(row.numpy().tobytes(), key=KEY).digest(size) for row in rows.cpu().contiguous().view(torch.uint8)]


def digests(out: torch.Tensor) -> list[bytes]:
    return [row.numpy().tobytes() for row in out.cpu()]


@pytest.mark.parametrize("hidden", [1, 7, 896, 1000, 4096, 8192, 40_001])
@pytest.mark.parametrize("num_rows", [1, 33, 600])
def test_rows(num_rows, hidden):
    rows = torch.randn(num_rows, hidden, device="cuda", dtype=torch.bfloat16)
    assert digests(backend().fingerprint_rows(rows, key(), 32)) == expected(rows, 32)
    staged = torch.empty((num_rows, hidden + 8), device="cuda", dtype=torch.bfloat16)[:, :hidden]
    assert digests(backend().stage_rows(rows, staged, key(), 16)) == expected(rows, 16)
    assert torch.equal(staged.view(torch.int16), rows.view(torch.int16))


def test_many_rows_take_a_lane_each():
    rows = torch.randn(40_000, 896, device="cuda", dtype=torch.bfloat16)
    assert digests(backend().fingerprint_rows(rows, key(), 16)) == expected(rows, 16)


def test_folds():
    rows = torch.randint(0, 256, (3000, 16), device="cuda", dtype=torch.uint8)
    bounds = torch.tensor([0, 0, 5, 2900, 2800, 3001, 2**40], device="cuda")
    spans = [(0, 0), (0, 5), (5, 2900), (2900, 2900), (2800, 3000), (3000, 3000)]
    host = rows.cpu().numpy()
    want = [blake3(host[a:b].tobytes(), key=KEY).digest(16) for a, b in spans]
    assert digests(backend().fold_spans(rows, bounds, key(), 16)) == want


def test_a_graph_hashes_what_stands_in_its_buffers():
    rows, out = torch.randn(64, 896, device="cuda"), torch.empty((64, 16), dtype=torch.uint8, device="cuda")
    on, secret = backend(), key()
    on.fingerprint_rows(rows, secret, 16, out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        on.fingerprint_rows(rows, secret, 16, out)
    for _ in range(3):
        rows.copy_(torch.randn(64, 896))
        graph.replay()
        assert digests(out) == expected(rows, 16)


def test_no_sync():
    rows, on, secret = torch.randn(64, 40_000, device="cuda"), backend(), key()
    on.fingerprint_rows(rows, secret, 16)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        out = on.fingerprint_rows(rows, secret, 16)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert digests(out) == expected(rows, 16)
