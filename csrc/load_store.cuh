// Blocks of a row between global memory and 16 registers, at any alignment. No byte outside the row is touched.
#pragma once

#include "blake3.cuh"
#include "device.h"

namespace gpukey {

// 64 bytes at a multiple of 16.
__device__ __forceinline__ void load_aligned(uint32_t (&m)[16], const uint8_t* p) {
  const uint4* q = reinterpret_cast<const uint4*>(p);
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const uint4 x = q[i];
    m[4 * i] = x.x;
    m[4 * i + 1] = x.y;
    m[4 * i + 2] = x.z;
    m[4 * i + 3] = x.w;
  }
}

__device__ __forceinline__ void store_aligned(uint8_t* p, const uint32_t (&m)[16]) {
  uint4* q = reinterpret_cast<uint4*>(p);
#pragma unroll
  for (int i = 0; i < 4; i++) q[i] = make_uint4(m[4 * i], m[4 * i + 1], m[4 * i + 2], m[4 * i + 3]);
}

// Bytes [0, count) of p, count <= 4, as a little-endian word.
__device__ __forceinline__ uint32_t load_bytes(const uint8_t* p, int count) {
  uint32_t word = 0;
#pragma unroll
  for (int i = 0; i < 4; i++)
    if (i < count) word |= static_cast<uint32_t>(p[i]) << (8 * i);
  return word;
}

// The first 64 bytes at p, of which `after` are in the row (the rest reads as 0); `before` bytes of the row lie before
// p. kWordAligned: p is a multiple of 4. Else: aligned words that lie in the row, shifted into place, and single bytes
// where a word would cross an end of the row.
template <bool kWordAligned>
__device__ __forceinline__ void load_any(uint32_t (&m)[16], const uint8_t* p, int before, int after) {
  const int shift = kWordAligned ? 0 : static_cast<int>(reinterpret_cast<uint64_t>(p) & 3);
  const uint32_t* q = reinterpret_cast<const uint32_t*>(p - shift);
  const bool cut_left = before < shift;
  const int end = after + shift;  // of the row, from q
  uint32_t w[17];
  w[16] = 0;
#pragma unroll
  for (int i = 0; i < (kWordAligned ? 16 : 17); i++) w[i] = (i > 0 || !cut_left) && 4 * i + 4 <= end ? q[i] : 0;
  if (cut_left) w[0] = load_bytes(p, after < 4 - shift ? after : 4 - shift) << (8 * shift);
  const int last = end >> 2, rest = end & 3;
  if (last <= 16 && rest != 0 && !(last == 0 && cut_left)) {
    const uint32_t word = load_bytes(reinterpret_cast<const uint8_t*>(q) + 4 * last, rest);
#pragma unroll
    for (int i = 0; i < 17; i++) w[i] = i == last ? word : w[i];
  }
#pragma unroll
  for (int i = 0; i < 16; i++) m[i] = kWordAligned ? w[i] : __funnelshift_r(w[i], w[i + 1], 8 * shift);
}

// The first `count` <= 64 bytes of m to p.
__device__ __forceinline__ void store_any(uint8_t* p, const uint32_t (&m)[16], int count) {
  const bool words = (reinterpret_cast<uint64_t>(p) & 3) == 0;
#pragma unroll
  for (int i = 0; i < 16; i++) {
    if (words && 4 * i + 4 <= count) {
      reinterpret_cast<uint32_t*>(p)[i] = m[i];
    } else {
#pragma unroll
      for (int j = 0; j < 4; j++)
        if (4 * i + j < count) p[4 * i + j] = static_cast<uint8_t>(m[i] >> (8 * j));
    }
  }
}

// 32 bytes at any address.
__device__ __forceinline__ uint32_t load_key_word(const uint8_t* key, int i) { return load_bytes(key + 4 * i, 4); }

__device__ __forceinline__ void store_digest(uint8_t* p, const uint32_t (&cv)[8], int size) {
  if ((reinterpret_cast<uint64_t>(p) & 15) == 0) {
    reinterpret_cast<uint4*>(p)[0] = make_uint4(cv[0], cv[1], cv[2], cv[3]);
    if (size == 32) reinterpret_cast<uint4*>(p)[1] = make_uint4(cv[4], cv[5], cv[6], cv[7]);
  } else {
#pragma unroll
    for (int i = 0; i < 32; i++)
      if (i < size) p[i] = static_cast<uint8_t>(cv[i / 4] >> (8 * (i % 4)));
  }
}

}  // namespace gpukey
