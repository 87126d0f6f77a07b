"""A model is served only if the paged forward gives what its own attention gives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from gpukey.engine.batch import Scheduled, build_batch
from gpukey.engine.request import Request
from gpukey.engine.sampling_params import SamplingParams
from gpukey.engine.support import UnsupportedModel

if TYPE_CHECKING:
    from gpukey.engine.model import TransformersRunner

LENGTHS = (6, 3)
BLOCK = 2


def tolerance(dtype: torch.dtype) -> float:
    """Relative to the largest logit: rounding in another order, not another function."""
    return 16 * float(torch.finfo(dtype).eps) + 1e-5


@torch.inference_mode()
def check_forward(runner: TransformersRunner, own_attention: str) -> None:
    """UnsupportedModel unless two sequences in one batch, the first in two chunks, have the logits of the model's own
    attention. The runner needs a pool of at least 5 blocks of 2.
    """
    generator = torch.Generator().manual_seed(0)
    sequences = [torch.randint(0, runner.vocab_size, (n,), generator=generator).tolist() for n in LENGTHS]
    runner.model.set_attn_implementation(own_attention)
    try:
        ids = [torch.tensor([sequence], device=runner.device) for sequence in sequences]
        want = torch.stack([runner.model(input_ids=i, use_cache=False).logits[0, -1] for i in ids])
    finally:
        runner.use_paged_attention()
    requests = [Request(str(i), i, ids, [], SamplingParams(), 0) for i, ids in enumerate(sequences)]
    requests[0].block_ids, requests[1].block_ids = [3, 0, 4], [2, 1]

    def forward(scheduled: list[Scheduled]) -> torch.Tensor:
        return runner.compute(build_batch(scheduled, BLOCK, runner.device))

    forward([(requests[0], 4)])
    requests[0].num_computed = 4
    got = forward([(requests[0], 2), (requests[1], 3)])
    worst = float((got - want).abs().max() / want.abs().max())
    if not worst <= tolerance(runner.dtype):
        raise UnsupportedModel(
            f"{type(runner.model).__name__} is not served: over paged attention its logits differ by {worst:.2g} of the largest "
            f"from those of its own ({own_attention})"
        )
