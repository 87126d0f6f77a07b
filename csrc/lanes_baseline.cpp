// lanes.h for what every CPU has (SSE2, NEON, or plain integers): 4 inputs at a time.
#include "lanes_impl.h"

void gpukey::cpu::hash_batch_baseline(const Batch& batch, int length, Node node, bool root, const uint32_t* key) {
  for (int first = 0; first < batch.count; first += 4) hash_lanes<4>(batch, first, length, node, root, key);
}
