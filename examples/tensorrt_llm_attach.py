"""Attached embeddings in TensorRT-LLM with block reuse on. NOT runnable without that engine and a GPU, and not run by us.

    GPUKEY_SECRET_FILE=/run/secrets/gpukey python examples/tensorrt_llm_attach.py MODEL EMBEDDING.pt

`install()` must run before LLM(...), in the process of the input processor and in that of the executor.
"""

from __future__ import annotations

import sys

import torch
from tensorrt_llm import LLM, SamplingParams
from tensorrt_llm.llmapi import KvCacheConfig

from gpukey.integrations import tensorrt_llm as hooks


def main(model: str, path: str) -> None:
    hooks.install()
    llm = LLM(model, kv_cache_config=KvCacheConfig(enable_block_reuse=True))
    embedding = torch.load(path)
    for rows in (embedding, -embedding, embedding):
        prompt = {
            "prompt": "<|vision_start|><|image_pad|><|vision_end|>What is it?",
            "multi_modal_embeddings": {"image": [rows]},
        }
        print(llm.generate([prompt], SamplingParams(max_tokens=16, temperature=0))[0].outputs[0].text)


if __name__ == "__main__":
    main(*sys.argv[1:])
