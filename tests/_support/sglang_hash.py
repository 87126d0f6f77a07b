"""Prints the two partial sums of SGLang's own Triton kernel for words on standard input. Needs TRITON_INTERPRET=1; argument: the kernel's file."""

import importlib.util
import sys

import numpy as np
import torch

spec = importlib.util.spec_from_file_location("gpu_tensor_hash", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
words = torch.from_numpy(np.frombuffer(sys.stdin.buffer.read(), np.uint32).copy())
partials = torch.zeros(1, dtype=torch.uint64)
seed = 0x243F6A88
module.hash_tiles32_kernel_blocked[(1,)](
    words,
    partials,
    words.numel(),
    seed1=seed,
    seed2=((seed * 0x9E3779B1) ^ 0xDEADBEEF) & 0xFFFFFFFF,
    FM_C1=module.FMIX32_C1,
    FM_C2=module.FMIX32_C2,
    POS_A=module.POS_C1,
    POS_B=module.POS_C2,
    TILE=8192,
    BLOCK=256,
    USE_CG=False,
)
print(partials.view(torch.int64).item() & (1 << 64) - 1)
