// lanes.h for AVX2: 8 inputs at a time.
#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2"))), apply_to = function)
#else
#pragma GCC target("avx2")
#endif

#define GPUKEY_BYTE_SHUFFLES
#include "lanes_impl.h"

void gpukey::cpu::hash_batch_avx2(const Batch& batch, int length, Node node, bool root, const uint32_t* key) {
  for (int first = 0; first < batch.count; first += 8) hash_lanes<8>(batch, first, length, node, root, key);
}

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
