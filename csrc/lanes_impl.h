// The body of lanes.h for one instruction set. The including file has set the target; everything is inlined into its
// one exported function, so that no copy compiled for a newer CPU can be linked into code that runs on an older one.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#include "blake3.cuh"
#include "lanes.h"
#include "vectors.h"

namespace gpukey {
namespace cpu {
namespace {

template <int kLanes>
using Lanes = typename Vector<uint32_t, 4 * kLanes>::type;

// Element `i` of an interleaving of a and b, counted in a ‖ b, where a 16-byte group has `group` elements. Within
// groups: a and b by turns, from their lower or upper halves (punpckldq, punpcklqdq). Of groups: the even or odd ones
// of a, then those of b (vshufi32x4).
constexpr int within_groups(int elements, int group, bool upper, int i) {
  return i - i % group + upper * group / 2 + i % group / 2 + i % 2 * elements;
}
constexpr int of_groups(int elements, int group, bool upper, int i) {
  const int half = elements / group / 2, index = i / group;
  return (2 * (index % half) + upper) * group + i % group + index / half * elements;
}

template <bool kGroups, bool kUpper, class Word, int... i>
GK_INLINE Word interleave(Word a, Word b, std::integer_sequence<int, i...>) {
  constexpr int kElements = sizeof...(i), kGroup = 16 * kElements / sizeof(Word);
  return shuffle<(kGroups ? of_groups(kElements, kGroup, kUpper, i) : within_groups(kElements, kGroup, kUpper, i))...>(
      a, b);
}

// a, b = lower, upper interleaving, as elements of type Element.
template <class Element, bool kGroups, class Word>
GK_INLINE void interleave(Word& a, Word& b) {
  using As = typename Vector<Element, sizeof(Word)>::type;
  const std::make_integer_sequence<int, sizeof(Word) / sizeof(Element)> all;
  const As x = (As)a, y = (As)b;
  a = (Word)interleave<kGroups, false>(x, y, all);
  b = (Word)interleave<kGroups, true>(x, y, all);
}

// Transposes `rows`, a square; column c is then in rows[column(c)].
template <int kLanes>
GK_INLINE void transpose(Lanes<kLanes> (&rows)[kLanes]) {
#pragma GCC unroll 8
  for (int i = 0; i < kLanes / 2; i++) interleave<uint32_t, false>(rows[2 * i], rows[2 * i + 1]);
#pragma GCC unroll 8
  for (int i = 0; i < kLanes / 2; i++) {
    const int row = i + (i & ~1);
    interleave<uint64_t, false>(rows[row], rows[row + 2]);
  }
  if constexpr (kLanes >= 8)
#pragma GCC unroll 8
    for (int i = 0; i < kLanes / 2; i++) {
      const int row = i + (i & ~3);
      interleave<uint32_t, true>(rows[row], rows[row + 4]);
    }
  if constexpr (kLanes >= 16)
#pragma GCC unroll 8
    for (int i = 0; i < kLanes / 2; i++) interleave<uint32_t, true>(rows[i], rows[i + 8]);
}

constexpr int column(int c) { return (c & ~3) | (c & 1) << 1 | (c & 2) >> 1; }

// Message words of one full block at `offset` of every input.
template <int kLanes>
GK_INLINE void load_block(const uint8_t* const (&inputs)[kLanes], int offset, Lanes<kLanes> (&m)[16]) {
#pragma GCC unroll 4
  for (int word = 0; word < 16; word += kLanes) {
    Lanes<kLanes> rows[kLanes];
#pragma GCC unroll 16
    for (int lane = 0; lane < kLanes; lane++) memcpy(&rows[lane], inputs[lane] + offset + 4 * word, sizeof rows[lane]);
    transpose<kLanes>(rows);
#pragma GCC unroll 16
    for (int c = 0; c < kLanes; c++) m[word + c] = rows[column(c)];
  }
}

// The same of a last block of `bytes` < 64 bytes; nothing behind the inputs is read.
template <int kLanes>
GK_INLINE void load_last_block(const uint8_t* const (&inputs)[kLanes], int offset, int bytes, Lanes<kLanes> (&m)[16]) {
  uint8_t padded[kLanes][kBlockBytes] = {};
  const uint8_t* blocks[kLanes];
  for (int lane = 0; lane < kLanes; lane++) {
    if (bytes > 0) memcpy(padded[lane], inputs[lane] + offset, bytes);
    blocks[lane] = padded[lane];
  }
  load_block<kLanes>(blocks, 0, m);
}

// CVs of `count` lanes, 32 bytes each.
template <int kLanes>
GK_INLINE void store_cvs(const Lanes<kLanes> (&cv)[8], int count, uint8_t* const* cvs) {
  constexpr int kWords = kLanes < 8 ? kLanes : 8;
#pragma GCC unroll 2
  for (int word = 0; word < 8; word += kWords) {
    Lanes<kLanes> rows[kLanes] = {};
#pragma GCC unroll 8
    for (int i = 0; i < kWords; i++) rows[i] = cv[word + i];
    transpose<kLanes>(rows);
#pragma GCC unroll 16
    for (int lane = 0; lane < kLanes; lane++)
      if (lane < count) memcpy(cvs[lane] + 4 * word, &rows[column(lane)], 4 * kWords);
  }
}

template <int kLanes>
GK_INLINE void hash_lanes(const Batch& batch, int first, int length, Node node, bool root, const uint32_t* key) {
  using Word = Lanes<kLanes>;
  const int count = batch.count - first < kLanes ? batch.count - first : kLanes;
  const uint8_t* inputs[kLanes];
  Word counter, cv[8], m[16];
#pragma GCC unroll 16
  for (int lane = 0; lane < kLanes; lane++) {
    const int i = first + (lane < count ? lane : 0);
    inputs[lane] = batch.inputs[i];
    counter[lane] = batch.counters[i];
  }
#pragma GCC unroll 8
  for (int i = 0; i < 8; i++) cv[i] = splat<Word>(key[i]);
  const int blocks = num_blocks(length);
  for (int block = 0; block < blocks; block++) {
    const int offset = block * kBlockBytes, left = length - offset;
    const int bytes = left < kBlockBytes ? left : kBlockBytes;
    // 16 streams are too many for the hardware's prefetchers; without this a large buffer takes 1.6 times as long.
    if (batch.ahead != 0)
      for (int lane = 0; lane < kLanes; lane++) __builtin_prefetch(inputs[lane] + offset + batch.ahead, 0, 2);
    if (bytes == kBlockBytes)
      load_block<kLanes>(inputs, offset, m);
    else
      load_last_block<kLanes>(inputs, offset, bytes, m);
    const uint32_t flags = node == Node::kParent ? parent_flags(root) : block_flags(block, blocks, root);
    compress(cv, m, counter, splat<Word>(bytes), splat<Word>(flags));
  }
  store_cvs<kLanes>(cv, count, batch.cvs + first);
}

// To the right within each word.
template <int kBytes, int... i>
GK_INLINE Lanes<8> rotate_bytes(Lanes<8> x, std::integer_sequence<int, i...>) {
  using Bytes = Vector<uint8_t, 32>::type;
  return (Lanes<8>)shuffle<((i & ~3) | ((i + kBytes) & 3))...>((Bytes)x, (Bytes)x);
}

}  // namespace
}  // namespace cpu

#if defined(GPUKEY_BYTE_SHUFFLES)
// One byte shuffle of AVX2 in place of two shifts and an or. (Compilers do not define __AVX2__ for a target pragma.)
template <>
GK_INLINE cpu::Lanes<8> rotate_right<16>(cpu::Lanes<8> x) {
  return cpu::rotate_bytes<2>(x, std::make_integer_sequence<int, 32>());
}
template <>
GK_INLINE cpu::Lanes<8> rotate_right<8>(cpu::Lanes<8> x) {
  return cpu::rotate_bytes<1>(x, std::make_integer_sequence<int, 32>());
}
#endif

}  // namespace gpukey
