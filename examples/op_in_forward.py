"""The op in a model's forward, compiled whole: each layer's output comes with the fingerprints of its rows. Runs
anywhere:

    python examples/op_in_forward.py [DEVICE]

The key is a buffer of the module, so that a compiled model and a captured graph read it where it lies. Another number
of rows compiles nothing new after the second one.
"""

from __future__ import annotations

import sys

import torch

import gpukey
import gpukey.ops  # registers torch.ops.gpukey

HIDDEN = 256


class Projector(torch.nn.Module):
    """Image features [num_rows, 128] to embedding rows [num_rows, HIDDEN] and their fingerprints, uint8 [num_rows,
    16]."""

    def __init__(self, secret: gpukey.Secret, device: str) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(128, HIDDEN, device=device, dtype=torch.bfloat16)
        self.register_buffer("key", secret.row_key(torch.bfloat16, HIDDEN, device=device), persistent=False)

    def forward(self, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows = self.linear(features)
        return rows, torch.ops.gpukey.fingerprint_rows(rows, self.key, 16)


def main(device: str = "cpu") -> None:
    torch.manual_seed(0)
    secret = gpukey.Secret.random()
    model = Projector(secret, device).eval()
    compiled = torch.compile(model, fullgraph=True)
    with torch.inference_mode():
        for num_rows in (16, 64, 100):
            features = torch.randn(num_rows, 128, device=device, dtype=torch.bfloat16)
            rows, fingerprints = compiled(features)
            # What is fingerprinted is what the next layer reads, bit for bit.
            assert torch.equal(fingerprints, gpukey.fingerprint_rows(rows, secret=secret))
            print(f"{num_rows} rows, the first is {bytes(fingerprints[0].cpu().numpy()).hex()}")


if __name__ == "__main__":
    main(*sys.argv[1:])
