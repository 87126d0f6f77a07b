"""What does a fingerprint cost on a CPU? Rows of one image and of a long prompt, and the host's time for a single row.

Beside the public call stand SHA-256 over the tensor's bytes (what engines do for a whole item) and the bound: the
blake3 package on one buffer of the same size. Medians; figures stand in `gb_per_s`.
"""

import hashlib

import pytest
import torch
from blake3 import blake3

import gpukey
from gpukey import backends

SECRET = gpukey.Secret(b"a secret for benchmarks")
SHAPES = {"576 rows of 896": (576, 896), "4096 rows of 4096": (4096, 4096)}


@pytest.fixture(autouse=True)
def one_core():
    """As the peers, and as an engine's thread beside its model."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def rows_of(shape):
    return torch.randint(-(2**15), 2**15, shape, dtype=torch.int16).view(torch.bfloat16)


def our(backend):
    return lambda rows: gpukey.fingerprint_rows(rows, secret=SECRET, backend=backend)


def one_buffer(rows):
    return blake3(rows.view(torch.uint8).numpy().reshape(-1), key=bytes(32)).digest()


def sha256(rows):
    return hashlib.sha256(rows.view(torch.uint8).numpy().reshape(-1)).digest()


CALLS = {
    "fingerprint_rows": our(None),
    "fingerprint_rows, Python backend": our("python"),
    "SHA-256 of all bytes (peer)": sha256,
    "BLAKE3 of one buffer (bound)": one_buffer,
}


@pytest.mark.benchmark(group="rows")
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("shape", SHAPES)
def test_rows(benchmark, capsys, shape, name):
    rows = rows_of(SHAPES[shape])
    benchmark.pedantic(CALLS[name], (rows,), rounds=15, warmup_rounds=2)
    rate = rows.numel() * 2 / benchmark.stats.stats.median / 1e9
    benchmark.extra_info["gb_per_s"] = rate
    with capsys.disabled():
        print(f"\n{shape}: {name}: {rate:.2f} GB/s")


@pytest.mark.benchmark(group="one row of 896, host time")
@pytest.mark.parametrize("backend", [None, *(name for name in ("cpu", "python") if backends.missing(name) is None)])
def test_one_row(benchmark, capsys, backend):
    row = rows_of((1, 896))
    benchmark.pedantic(our(backend), (row,), rounds=200, iterations=50, warmup_rounds=5)
    with capsys.disabled():
        print(f"\none row, {backend or 'the registered op'}: {benchmark.stats.stats.median * 1e6:.1f} µs")
