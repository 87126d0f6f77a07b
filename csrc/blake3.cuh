// BLAKE3 for words that stand for one input each: a uint32_t on a GPU lane, or a vector of uint32_t on a CPU, one row
// in each of its elements. Follows "BLAKE3: one function, fast everywhere" (O'Connor, Aumasson, Neves, Wilcox-O'Hearn,
// 2020), sections 2.1 to 2.3. No torch, no CUDA runtime, no system header under NVRTC. Little-endian words throughout.
#pragma once

#if defined(__CUDACC_RTC__)
typedef unsigned char uint8_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
#else
#include <cstdint>
#endif

#if defined(__CUDACC__)
#define GK_INLINE __host__ __device__ __forceinline__
#else
#define GK_INLINE inline __attribute__((always_inline))
#endif

namespace gpukey {

constexpr int kBlockBytes = 64;
constexpr int kChunkBytes = 1024;

// Flags of a compression.
constexpr uint32_t kChunkStart = 1, kChunkEnd = 2, kParent = 4, kRoot = 8, kKeyedHash = 16;

// How two words are added. A GPU adder may use another pipe (see MadAdd in fingerprint_kernels.cuh).
struct PlainAdd {
  template <class Word>
  GK_INLINE Word operator()(Word x, Word y) const {
    return x + y;
  }
};

// Every element of a word set to `x`.
template <class Word>
GK_INLINE Word splat(uint32_t x) {
  return Word{} + x;
}

template <int kBits, class Word>
GK_INLINE Word rotate_right(Word x) {
  return (x >> kBits) | (x << (32 - kBits));
}

// Index of the message word that step `i` of round `round` takes: the permutation applied `round` times.
GK_INLINE constexpr int message_index(int round, int i) {
  constexpr int kPermutation[16] = {2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8};
  for (int r = 0; r < round; r++) i = kPermutation[i];
  return i;
}

template <class Word, class Add>
GK_INLINE void mix(Word& a, Word& b, Word& c, Word& d, Word x, Word y, Add add) {
  a = add(add(a, b), x);
  d = rotate_right<16>(d ^ a);
  c = add(c, d);
  b = rotate_right<12>(b ^ c);
  a = add(add(a, b), y);
  d = rotate_right<8>(d ^ a);
  c = add(c, d);
  b = rotate_right<7>(b ^ c);
}

template <int kRound, class Word, class Add>
GK_INLINE void mix_round(Word (&v)[16], const Word (&m)[16], Add add) {
  constexpr int i0 = message_index(kRound, 0), i1 = message_index(kRound, 1), i2 = message_index(kRound, 2),
                i3 = message_index(kRound, 3), i4 = message_index(kRound, 4), i5 = message_index(kRound, 5),
                i6 = message_index(kRound, 6), i7 = message_index(kRound, 7), i8 = message_index(kRound, 8),
                i9 = message_index(kRound, 9), i10 = message_index(kRound, 10), i11 = message_index(kRound, 11),
                i12 = message_index(kRound, 12), i13 = message_index(kRound, 13), i14 = message_index(kRound, 14),
                i15 = message_index(kRound, 15);
  mix(v[0], v[4], v[8], v[12], m[i0], m[i1], add);
  mix(v[1], v[5], v[9], v[13], m[i2], m[i3], add);
  mix(v[2], v[6], v[10], v[14], m[i4], m[i5], add);
  mix(v[3], v[7], v[11], v[15], m[i6], m[i7], add);
  mix(v[0], v[5], v[10], v[15], m[i8], m[i9], add);
  mix(v[1], v[6], v[11], v[12], m[i10], m[i11], add);
  mix(v[2], v[7], v[8], v[13], m[i12], m[i13], add);
  mix(v[3], v[4], v[9], v[14], m[i14], m[i15], add);
}

// One compression: replaces the chaining value `cv` by the first 8 output words.
//   m        16 message words, zero-padded
//   counter  low word of the chunk counter; inputs here are shorter than 4 TiB, so the high word is 0
//   length   bytes of message in the block, 0..64
//   flags    a sum of the flags above
template <class Word, class Add = PlainAdd>
GK_INLINE void compress(Word (&cv)[8], const Word (&m)[16], Word counter, Word length, Word flags, Add add = Add{}) {
  Word v[16] = {cv[0],
                cv[1],
                cv[2],
                cv[3],
                cv[4],
                cv[5],
                cv[6],
                cv[7],
                splat<Word>(0x6A09E667u),
                splat<Word>(0xBB67AE85u),
                splat<Word>(0x3C6EF372u),
                splat<Word>(0xA54FF53Au),
                counter,
                splat<Word>(0),
                length,
                flags};
  mix_round<0>(v, m, add);
  mix_round<1>(v, m, add);
  mix_round<2>(v, m, add);
  mix_round<3>(v, m, add);
  mix_round<4>(v, m, add);
  mix_round<5>(v, m, add);
  mix_round<6>(v, m, add);
  cv[0] = v[0] ^ v[8];
  cv[1] = v[1] ^ v[9];
  cv[2] = v[2] ^ v[10];
  cv[3] = v[3] ^ v[11];
  cv[4] = v[4] ^ v[12];
  cv[5] = v[5] ^ v[13];
  cv[6] = v[6] ^ v[14];
  cv[7] = v[7] ^ v[15];
}

// --- the tree: chunks are leaves; neighbours pair level by level, an odd last one moves up as it is ---

// Chunks of an input of `bytes` bytes; the empty input has one, empty, chunk.
GK_INLINE int64_t num_chunks(int64_t bytes) {
  return bytes <= kChunkBytes ? 1 : (bytes + kChunkBytes - 1) / kChunkBytes;
}

// Blocks of a chunk of `bytes` <= 1024 bytes; an empty chunk has one, empty, block.
GK_INLINE int num_blocks(int bytes) { return bytes <= kBlockBytes ? 1 : (bytes + kBlockBytes - 1) / kBlockBytes; }

// Flags of block `block` of a chunk of `blocks` blocks; `root`: the chunk is the whole input. The hash is always keyed.
GK_INLINE uint32_t block_flags(int block, int blocks, bool root) {
  const uint32_t start = block == 0 ? kChunkStart : 0;
  const uint32_t end = block == blocks - 1 ? kChunkEnd | (root ? kRoot : 0) : 0;
  return kKeyedHash | start | end;
}

// Flags of a parent, whose input is the key, counter 0, length 64 and the CVs of its left and right child.
GK_INLINE uint32_t parent_flags(bool root) { return kKeyedHash | kParent | (root ? kRoot : 0); }

// A stack holds the CVs of complete subtrees, the largest first. Once leaf (or tile of 2^k leaves) number `index` is
// hashed, its CV merges with this many stack entries, the last pushed first; then it is pushed. After the last leaf all
// entries merge, and the last of these merges is the root. The stack holds popcount(index) entries before leaf `index`.
GK_INLINE int num_merges(uint64_t index, bool last) {
  int merges = 0;
  for (uint64_t rest = last ? index : index + 1; rest != 0 && (last || (rest & 1) == 0); rest >>= 1)
    merges += last ? static_cast<int>(rest & 1) : 1;
  return merges;
}

}  // namespace gpukey
