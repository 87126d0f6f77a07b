// lanes.h for AVX-512: 16 inputs at a time, 8 where no more are left (half the work on CPUs with 256-bit units).
#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512vl"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512vl")
#endif

#define GPUKEY_BYTE_SHUFFLES
#include "lanes_impl.h"

void gpukey::cpu::hash_batch_avx512(const Batch& batch, int length, Node node, bool root, const uint32_t* key) {
  if (batch.count > 8)
    hash_lanes<16>(batch, 0, length, node, root, key);
  else
    hash_lanes<8>(batch, 0, length, node, root, key);
}

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
