"""The golden vectors, from every backend that works on this machine, through public calls and through the ops."""

import numpy as np
import pytest
import torch
import vectors

import gpukey
from gpukey import backends
from gpukey.envelope import pack, unpack

GOLDEN = vectors.load()
SECRET = gpukey.Secret(bytes.fromhex(GOLDEN["secret"]))
CASES = [(name, device) for device, names in backends.ORDER.items() for name in [None, *names]]


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0] or 'registered'}-{case[1]}")
def place(request):
    """(backend, device); a backend that does not work here is skipped with its reason."""
    name, device = request.param
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU")
    if name is not None and backends.missing(name) is not None:
        pytest.skip(f"backend {name!r}: {backends.missing(name)}")
    return request.param


def as_tensor(raw, device):
    return torch.frombuffer(bytearray(raw or b"\0"), dtype=torch.uint8)[: len(raw)].to(device)


def test_rows(place):
    """TRT-LLM#18156: one set of bytes, whoever computes them."""
    name, device = place
    for case in GOLDEN["rows"]:
        dtype, size = getattr(torch, case["dtype"]), case["digest_size"]
        rows = as_tensor(vectors.data(case["row"]), device).view(dtype).view(1, case["hidden"])
        digest = gpukey.fingerprint_rows(rows, secret=SECRET, digest_size=size, backend=name)
        assert bytes(digest[0].cpu()).hex() == case["fingerprint"], case
        key = SECRET.row_key(dtype, case["hidden"], digest_size=size, device=device)
        assert bytes(key.cpu()).hex() == case["row_key"]


def test_spans(place):
    name, device = place
    fold = torch.ops.gpukey.fold_spans if name is None else backends.load(name).fold_spans
    for case in GOLDEN["spans"]:
        size, dtype = case["digest_size"], getattr(torch, case["dtype"])
        prints = as_tensor(vectors.data(case["fingerprints"]), device).view(-1, size)
        bounds = torch.tensor([0, len(prints)], device=device)
        key = SECRET.span_key(dtype, case["hidden"], digest_size=size, device=device)
        assert bytes(fold(prints, bounds, key, size)[0].cpu()).hex() == case["span"], case


def test_envelopes():
    for case in GOLDEN["envelopes"]:
        rows = np.frombuffer(vectors.data(case["fingerprints"]), np.uint8).reshape(-1, case["digest_size"])
        blob = pack(rows, secret=SECRET, dtype=case["dtype"], hidden=case["hidden"])
        assert blob.hex() == case["envelope"]
        assert np.array_equal(unpack(blob, secret=SECRET).rows, rows)
