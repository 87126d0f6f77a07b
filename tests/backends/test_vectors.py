"""Every CPU backend and the compiled key chain reproduce the golden vectors of tests/vectors.json."""

from __future__ import annotations

import pytest
import torch
import vectors
from blake3 import blake3

from gpukey import backends, reference
from gpukey._chain import text_keys

GOLDEN = vectors.load()


def tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def hexes(digests: torch.Tensor) -> list[str]:
    return [bytes(row).hex() for row in digests.tolist()]


@pytest.fixture(params=["python", "cpu"])
def backend(request):
    return backends.named(request.param, "cpu")


def test_blake3(backend):
    for vector in GOLDEN["blake3"]:
        if vector["length"]:  # rows have at least a byte; the empty input is an empty span's
            digest = backend.fingerprint_rows(tensor(vectors.pattern(vector["length"]))[None], tensor(vectors.KEY), 32)
            assert hexes(digest) == [vector["keyed_hash"]]


def test_rows(backend):
    for vector in GOLDEN["rows"]:
        rows = tensor(vectors.data(vector["row"])).view(getattr(torch, vector["dtype"]))[None]
        assert rows.shape == (1, vector["hidden"])
        key, size = tensor(bytes.fromhex(vector["row_key"])), vector["digest_size"]
        assert hexes(backend.fingerprint_rows(rows, key, size)) == [vector["fingerprint"]]
        assert hexes(backend.stage_rows(rows, torch.empty_like(rows), key, size)) == [vector["fingerprint"]]


def test_spans(backend):
    for vector in GOLDEN["spans"]:
        rows = tensor(vectors.data(vector["fingerprints"])).view(-1, vector["digest_size"])
        bounds = torch.tensor([0, vector["num_rows"]])
        key = tensor(bytes.fromhex(vector["span_key"]))
        assert hexes(backend.fold_spans(rows, bounds, key, vector["digest_size"])) == [vector["span"]]


def test_blocks_of_text():
    master = bytes.fromhex(GOLDEN["secrets"][0]["master"])
    plain = [vector for vector in GOLDEN["blocks"] if not vector["overlays"]]
    assert plain
    for vector in plain:
        context = reference.CONTEXT + "block"
        key = blake3(master + bytes([vector["digest_size"]]), derive_key_context=context).digest()
        ids = vector["token_ids"]
        assert text_keys(ids, bytes.fromhex(vector["parent"]), key, len(ids)) == [bytes.fromhex(vector["key"])]
