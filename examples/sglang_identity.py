"""What the hooks change in SGLang. Needs SGLang 0.5.23 installed (its GPU is not needed for this); serving needs nothing but two variables:

GPUKEY_SECRET_FILE=/run/secrets/gpukey GPUKEY_SGLANG=1 python -m sglang.launch_server --model-path Qwen/Qwen2.5-VL-3B-Instruct
"""

from __future__ import annotations

import torch
from sglang.srt.managers.schedule_batch import Modality, MultimodalDataItem

import gpukey
from gpukey.integrations import sglang as hooks


def identity(grid: list[int]) -> int:
    """The pad value of one image: 16 equal rows, laid out in another grid."""
    item = MultimodalDataItem(
        modality=Modality.IMAGE,
        feature=torch.ones(16, 64),
        model_specific_data={"image_grid_thw": torch.tensor([grid])},
    )
    item.set_pad_value()
    return item.pad_value


def main() -> None:
    print("as released:   2x8 and 4x4 are", "one image" if identity([1, 2, 8]) == identity([1, 4, 4]) else "two")
    hooks.install()
    print("with gpukey:   2x8 and 4x4 are", "one image" if identity([1, 2, 8]) == identity([1, 4, 4]) else "two")
    # Per-token ids for a radix tree, where the engine refuses input_embeds as long as its radix cache is on.
    secret = gpukey.Secret.from_env()
    rows = gpukey.fingerprint_rows(torch.randn(4, 64), secret=secret)
    print("wide ids:     ", list(hooks.wide_ids([1] * 8, [gpukey.EmbeddingSpan(2, rows)], secret=secret)))


if __name__ == "__main__":
    main()
