#include "block_keys.h"

#include <cstring>
#include <vector>

#include "blake3.cuh"

namespace gpukey {
namespace {

using Cv = uint32_t[8];

void compress_block(Cv& cv, const uint8_t* data, int bytes, int64_t chunk, uint32_t flags) {
  uint32_t m[16] = {};
  std::memcpy(m, data, bytes);
  compress<uint32_t>(cv, m, static_cast<uint32_t>(chunk), bytes, flags);
}

void hash_chunk(const Cv& key, const uint8_t* data, int bytes, int64_t chunk, bool root, Cv& cv) {
  std::memcpy(cv, key, sizeof cv);
  const int blocks = num_blocks(bytes);
  for (int block = 0; block < blocks; block++) {
    const int offset = block * kBlockBytes, left = bytes - offset;
    compress_block(cv, data + offset, left < kBlockBytes ? left : kBlockBytes, chunk, block_flags(block, blocks, root));
  }
}

void hash_message(const Cv& key, const uint8_t* data, int64_t bytes, uint8_t* out) {
  Cv stack[64], cv;
  int depth = 0;
  const int64_t chunks = num_chunks(bytes);
  for (int64_t chunk = 0; chunk < chunks; chunk++) {
    const bool last = chunk == chunks - 1;
    const int64_t offset = chunk * kChunkBytes;
    hash_chunk(key, data + offset, static_cast<int>(last ? bytes - offset : kChunkBytes), chunk, chunks == 1, cv);
    for (int merges = num_merges(chunk, last); merges > 0; merges--) {
      uint32_t children[16];
      std::memcpy(children, stack[--depth], sizeof cv);
      std::memcpy(children + 8, cv, sizeof cv);
      std::memcpy(cv, key, sizeof cv);
      compress<uint32_t>(cv, children, 0, kBlockBytes, parent_flags(last && depth == 0));
    }
    std::memcpy(stack[depth++], cv, sizeof cv);
  }
  std::memcpy(out, cv, sizeof cv);
}

}  // namespace

void block_keys(const int64_t* token_ids, int64_t num_blocks, int64_t block_size, const uint8_t* parent,
                const uint8_t* block_key, uint8_t* keys) {
  const size_t id_bytes = 8 * static_cast<size_t>(block_size), head = kKeyBytes + 4;
  std::vector<uint8_t> message(head + id_bytes);
  const uint32_t count = static_cast<uint32_t>(block_size);
  std::memcpy(message.data() + kKeyBytes, &count, sizeof count);
  Cv key;
  std::memcpy(key, block_key, sizeof key);
  for (int64_t block = 0; block < num_blocks; block++) {
    std::memcpy(message.data(), parent, kKeyBytes);
    std::memcpy(message.data() + head, token_ids + block * block_size, id_bytes);
    hash_message(key, message.data(), static_cast<int64_t>(message.size()), keys);
    parent = keys;
    keys += kKeyBytes;
  }
}

}  // namespace gpukey
