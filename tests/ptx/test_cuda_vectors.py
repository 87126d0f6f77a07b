"""The golden vectors (tests/vectors.json) through the compiled CUDA kernels."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import vectors
from ptx import Memory
from ptx.layout import Output, assert_bytes_equal


def test_rows(launcher):
    """Vectors of one width, key and digest size go together in one launch."""
    groups = defaultdict(list)
    for vector in vectors.load()["rows"]:
        row = vectors.data(vector["row"])
        groups[len(row), vector["row_key"], vector["digest_size"]].append((row, vector["fingerprint"]))
    assert len(groups) >= 50
    for (width, key, size), members in groups.items():
        memory = Memory()
        data = memory.map(np.frombuffer(b"".join(row for row, _ in members), np.uint8))
        key_at = memory.map(np.frombuffer(bytes.fromhex(key), np.uint8))
        out = Output(memory, len(members), size, size)
        launcher.rows(memory, data, len(members), width, width, key_at, out.address, size)
        out.check([bytes.fromhex(fingerprint) for _, fingerprint in members])


def test_spans(launcher):
    for vector in vectors.load()["spans"]:
        size, n, memory = vector["digest_size"], vector["num_rows"], Memory()
        rows = memory.map(np.frombuffer(vectors.data(vector["fingerprints"]) or b"\0", np.uint8))
        key = memory.map(np.frombuffer(bytes.fromhex(vector["span_key"]), np.uint8))
        bounds = memory.map(np.array([0, n], np.int32))
        out = Output(memory, 1, size, size)
        launcher.fold(memory, rows, n, bounds, 1, 4, key, out.address, size)
        out.check([bytes.fromhex(vector["span"])])


def test_keyed_hashes_of_blake3s_own_vectors(launcher):
    key_bytes = np.frombuffer(vectors.KEY, np.uint8)
    for vector in vectors.load()["blake3"]:
        length, memory = vector["length"], Memory()
        if length == 0:
            continue  # a row has at least one byte; the empty span of test_spans hashes nothing
        data = memory.map(np.frombuffer(vectors.pattern(length), np.uint8))
        out = Output(memory, 1, 32, 32)
        launcher.rows(memory, data, 1, length, length, memory.map(key_bytes), out.address, 32)
        assert_bytes_equal(out.row(0), bytes.fromhex(vector["keyed_hash"])[:32], f"{length} bytes")
