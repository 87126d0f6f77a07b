#include "block_keys.h"

#include <cstring>
#include <type_traits>
#include <vector>

#include "blake3.cuh"
#include "vectors.h"

namespace gpukey {
namespace {

using Cv = uint32_t[8];

// A chain has one input at a time, so the lanes are the columns of one state: row r of it is a vector of 4 words. Same
// `mix`, same order of message words; 8 % sooner than in scalars, whose 16 words do not fit into registers.
using Row = Vector<uint32_t, 16>::type;

template <int kRound, int... steps>
GK_INLINE Row take(const uint32_t (&m)[16]) {
  return Row{m[std::integral_constant<int, message_index(kRound, steps)>::value]...};
}

template <int kRound>
GK_INLINE void mix_columns(Row& a, Row& b, Row& c, Row& d, const uint32_t (&m)[16]) {
  mix(a, b, c, d, take<kRound, 0, 2, 4, 6>(m), take<kRound, 1, 3, 5, 7>(m), PlainAdd{});
  // Diagonals become columns by rotating rows; b, which is ready last, stays, and a, c, d move towards it.
  a = shuffle<3, 0, 1, 2>(a, a), c = shuffle<1, 2, 3, 0>(c, c), d = shuffle<2, 3, 0, 1>(d, d);
  mix(a, b, c, d, take<kRound, 14, 8, 10, 12>(m), take<kRound, 15, 9, 11, 13>(m), PlainAdd{});
  a = shuffle<1, 2, 3, 0>(a, a), c = shuffle<3, 0, 1, 2>(c, c), d = shuffle<2, 3, 0, 1>(d, d);
}

GK_INLINE void compress_one(Cv& cv, const uint32_t (&m)[16], uint32_t counter, uint32_t bytes, uint32_t flags) {
  Row a, b, c{0x6A09E667u, 0xBB67AE85u, 0x3C6EF372u, 0xA54FF53Au}, d{counter, 0, bytes, flags};
  std::memcpy(&a, cv, sizeof a);
  std::memcpy(&b, cv + 4, sizeof b);
  mix_columns<0>(a, b, c, d, m);
  mix_columns<1>(a, b, c, d, m);
  mix_columns<2>(a, b, c, d, m);
  mix_columns<3>(a, b, c, d, m);
  mix_columns<4>(a, b, c, d, m);
  mix_columns<5>(a, b, c, d, m);
  mix_columns<6>(a, b, c, d, m);
  a ^= c;
  b ^= d;
  std::memcpy(cv, &a, sizeof a);
  std::memcpy(cv + 4, &b, sizeof b);
}

void compress_block(Cv& cv, const uint8_t* data, int bytes, int64_t chunk, uint32_t flags) {
  uint32_t m[16] = {};
  std::memcpy(m, data, bytes);
  compress_one(cv, m, static_cast<uint32_t>(chunk), bytes, flags);
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
      compress_one(cv, children, 0, kBlockBytes, parent_flags(last && depth == 0));
    }
    std::memcpy(stack[depth++], cv, sizeof cv);
  }
  std::memcpy(out, cv, sizeof cv);
}

}  // namespace

void block_keys(const int64_t* token_ids, int64_t num_blocks, int64_t block_size, const uint8_t* parent,
                const uint8_t* block_key, uint8_t* keys) {
  if (num_blocks == 0) return;  // before a message of up to 32 GiB is made
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
