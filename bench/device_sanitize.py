"""A few launches of every CUDA backend for compute-sanitizer: small, odd and long rows, staging, folds with hostile
bounds. Compares with the blake3 package. `compute-sanitizer --tool memcheck python bench/device_sanitize.py`."""

from __future__ import annotations

import sys

import torch
from blake3 import blake3

from gpukey import backends

KEY = bytes(range(32))


def main() -> None:
    device = "cpu" if "--rehearse" in sys.argv else "cuda"
    key = torch.tensor(list(KEY), dtype=torch.uint8, device=device)
    names = [name for name in backends.ORDER[device] if backends.missing(name) is None]
    for name in names:
        backend = backends.load(name)
        for num_rows, width in ((3, 1), (33, 65), (40, 1792), (5, 2049), (2, 300_001)):
            memory = torch.randint(0, 256, (num_rows * (width + 3) + 1,), dtype=torch.uint8, device=device)
            rows = memory[1:].as_strided((num_rows, width), (width + 3, 1))
            wanted = [blake3(bytes(row.tolist()), key=KEY).digest(16) for row in rows.cpu()]
            staged = torch.empty(num_rows, width, dtype=torch.uint8, device=device)
            for digests in (backend.fingerprint_rows(rows, key, 16), backend.stage_rows(rows, staged, key, 16)):
                assert [bytes(row) for row in digests.tolist()] == wanted, (name, num_rows, width)
            assert torch.equal(staged, rows)
        prints = torch.randint(0, 256, (700, 16), dtype=torch.uint8, device=device)
        hostile = [0, 5, 3, 2**40, -7, 700] if device == "cuda" else [0, 5, 5, 300, 700]
        backend.fold_spans(prints, torch.tensor(hostile, device=device), key, 16)
    if device == "cuda":
        torch.cuda.synchronize()
    print("same bytes from", ", ".join(names) or "no backend")


if __name__ == "__main__":
    main()
