"""Triton kernels with the bits of csrc/: blake3 (the hash), fingerprint (the kernels), plan and launch (the host side)."""

if __name__ == "triton_kernels":
    raise ImportError(
        "these are gpukey's Triton kernels: import gpukey.triton_kernels. The name triton_kernels belongs to another "
        "project, which vLLM imports; take the root of the gpukey repository off sys.path to get that one"
    )
