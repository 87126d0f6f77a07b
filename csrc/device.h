// The one header of a kernel file that differs by compiler: CUDA under nvcc and NVRTC, the SIMT shim of tests/simt
// under g++.
#pragma once

#if defined(__CUDACC_RTC__)
// NVRTC has the vector types and the intrinsics built in.
#elif defined(__CUDACC__)
#include <cuda_runtime.h>
#else
#include "simt.h"
#endif

#if defined(__CUDACC__)
// T name[N] in shared memory.
#define SMEM_STATIC(T, name, N) __shared__ T name[N]
#define DEV_LAUNCH(kernel, grid, block, stream, ...) kernel<<<(grid), (block), 0, (stream)>>>(__VA_ARGS__)
#endif
