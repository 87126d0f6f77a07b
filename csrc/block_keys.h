// Keys of full text blocks: "block key" of docs/spec.md without overlays. No torch, no Python.
#pragma once

#include <cstdint>

namespace gpukey {

constexpr int kKeyBytes = 32;
constexpr int64_t kMaxBlockSize = (int64_t{1} << 32) - 1;

// keys: [num_blocks, 32] bytes, each chained to the one before, the first to `parent` (32 bytes).
// token_ids: num_blocks * block_size ids, each >= 0. block_key: 32 bytes, B3D("block", ...). 0 < block_size <=
// kMaxBlockSize.
void block_keys(const int64_t* token_ids, int64_t num_blocks, int64_t block_size, const uint8_t* parent,
                const uint8_t* block_key, uint8_t* keys);

}  // namespace gpukey
