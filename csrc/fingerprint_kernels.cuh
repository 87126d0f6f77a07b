// The kernels. A lane hashes a chunk of 1 KiB; a block then folds its chunks' CVs in shared memory, level by level,
// with the parents packed into its first warps, so that no warp runs with few lanes until the top of the tree. A row
// longer than the block is hashed tile by tile, each tile a complete subtree, over a stack of CVs. No atomics, no
// workspace.
//
// nvcc, NVRTC and the SIMT shim compile this file as it is.
#pragma once

#include "blake3.cuh"
#include "device.h"
#include "load_store.cuh"

namespace gpukey {

constexpr int kThreads = 256;    // the most a block may have
constexpr int kStackDepth = 32;  // a row of 4 TiB has 2^32 chunks, over tiles of at least 32
constexpr int kSlots = kThreads + kStackDepth;

// x + y on the FMA pipe. LOP3, SHF, PRMT and IADD3 share one pipe, which bounds the hash; with a factor that the
// compiler does not know, the add becomes an IMAD on another one.
struct MadAdd {
  uint32_t one;
  __device__ __forceinline__ uint32_t operator()(uint32_t x, uint32_t y) const { return x * one + y; }
};

// Shared memory of a block.
struct Shared {
  uint32_t (&key)[8];
  uint32_t (&cvs)[8 * kSlots];  // word i of slot s at [i * kSlots + s]: lanes of a warp hit different banks

  __device__ __forceinline__ void load(uint32_t* cv, int slot) const {
#pragma unroll
    for (int i = 0; i < 8; i++) cv[i] = cvs[i * kSlots + slot];
  }
  __device__ __forceinline__ void store(const uint32_t (&cv)[8], int slot) const {
#pragma unroll
    for (int i = 0; i < 8; i++) cvs[i * kSlots + slot] = cv[i];
  }
  __device__ __forceinline__ void load_key(uint32_t (&cv)[8]) const {
#pragma unroll
    for (int i = 0; i < 8; i++) cv[i] = key[i];
  }
};

// Inputs of one length: input i is `bytes` bytes at data + i * stride, and is copied to staged + i * staged_stride.
struct Inputs {
  const uint8_t* data;
  int64_t stride;
  int64_t bytes;
  uint8_t* staged;
  int64_t staged_stride;
};

template <bool kAligned>
__device__ __forceinline__ void load_block(uint32_t (&m)[16], const uint8_t* p, int before, int after) {
  if (kAligned && after >= kBlockBytes)
    load_aligned(m, p);
  else
    load_any<kAligned>(m, p, before, after);
}

// CV of chunk `chunk` of the row at `row`.
template <bool kAligned, bool kStage>
__device__ __forceinline__ void hash_chunk(uint32_t (&cv)[8], const uint8_t* row, uint8_t* staged, int64_t bytes,
                                           int64_t chunk, bool root, MadAdd add) {
  const int64_t offset = chunk * kChunkBytes;
  const uint8_t* p = row + offset;
  // 68: a misaligned block reads up to 67 bytes, and from 64 up the block is full.
  const int left = static_cast<int>(bytes - offset < kChunkBytes + 4 ? bytes - offset : kChunkBytes + 4);
  const int blocks = num_blocks(left < kChunkBytes ? left : kChunkBytes);
  uint32_t next[16];
  load_block<kAligned>(next, p, chunk == 0 ? 0 : 4, left);
#pragma unroll 1
  for (int block = 0; block < blocks; block++) {
    const int after = left - block * kBlockBytes;
    const int length = after < kBlockBytes ? after : kBlockBytes;
    uint32_t m[16];
#pragma unroll
    for (int i = 0; i < 16; i++) m[i] = next[i];
    if (block + 1 < blocks) load_block<kAligned>(next, p + (block + 1) * kBlockBytes, 4, after - kBlockBytes);
    if (kStage) {
      uint8_t* to = staged + offset + block * kBlockBytes;
      if (kAligned && length == kBlockBytes)
        store_aligned(to, m);
      else
        store_any(to, m, length);
    }
    compress(cv, m, static_cast<uint32_t>(chunk), static_cast<uint32_t>(length), block_flags(block, blocks, root), add);
  }
}

// Digests of `rows` inputs, by all threads of the block. rows == 1, or rows * chunks of an input <= threads; a block
// whose row has more chunks than threads has a power of two of them.
template <bool kAligned, bool kStage>
__device__ __forceinline__ void hash_inputs(const Inputs& in, int rows, const Shared& shared, uint8_t* digests,
                                            int digest_size, MadAdd add) {
  const int item = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  const int index = item / rows, row = item - index * rows;  // of a chunk, then of a parent: neighbours share a warp
  const int64_t chunks = num_chunks(in.bytes);
  const int64_t tiles = chunks <= threads ? 1 : (chunks + threads - 1) / threads;
  uint8_t* digest = digests + static_cast<int64_t>(row) * digest_size;
  int depth = 0;
  for (int64_t tile = 0; tile < tiles; tile++) {
    const bool last = tile == tiles - 1;
    const int64_t first = tile * threads;
    int nodes = static_cast<int>(last ? chunks - first : threads);
    uint32_t cv[8];
    if (item < nodes * rows) {
      shared.load_key(cv);
      hash_chunk<kAligned, kStage>(cv, in.data + row * in.stride, in.staged + row * in.staged_stride, in.bytes,
                                   first + index, chunks == 1, add);
      if (chunks == 1)
        store_digest(digest, cv, digest_size);
      else
        shared.store(cv, item);
    }
    int merges = num_merges(static_cast<uint64_t>(tile), last);
    // A node of a level stands in the slot of its leftmost chunk: an odd last one moves up where it is.
    for (int step = rows; nodes > 1 || merges > 0; step *= 2) {
      __syncthreads();
      const bool level = nodes > 1;  // else the tile's CV, in slot 0, merges with the top of the stack
      const int pairs = level ? nodes / 2 : 1;
      const int left = level ? 2 * index * step + row : kThreads + depth - 1;
      const int right = level ? left + step : 0;
      nodes -= level ? pairs : 0;
      depth -= level ? 0 : 1;
      merges -= level ? 0 : 1;
      if (item < pairs * rows) {
        const bool root = last && nodes == 1 && merges == 0;
        uint32_t m[16];
        shared.load(m, left);
        shared.load(m + 8, right);
        shared.load_key(cv);
        compress(cv, m, 0u, static_cast<uint32_t>(kBlockBytes), parent_flags(root), add);
        if (root)
          store_digest(digest, cv, digest_size);
        else
          shared.store(cv, level ? left : 0);
      }
    }
    if (!last && item == 0) shared.store(cv, kThreads + depth);
    depth++;
    __syncthreads();
  }
}

__device__ __forceinline__ void load_key(const Shared& shared, const uint8_t* key) {
  if (threadIdx.x < 8) shared.key[threadIdx.x] = load_key_word(key, static_cast<int>(threadIdx.x));
  __syncthreads();
}

#define GK_SHARED(name)                          \
  SMEM_STATIC(uint32_t, name##_key, 8);          \
  SMEM_STATIC(uint32_t, name##_cvs, 8 * kSlots); \
  const Shared name { name##_key, name##_cvs }

template <bool kAligned, bool kStage>
__device__ __forceinline__ void hash_rows(const Inputs& in, int64_t num_rows, int rows_per_block, const uint8_t* key,
                                          uint8_t* digests, int digest_size, MadAdd add) {
  GK_SHARED(shared);
  load_key(shared, key);
  const int64_t step = static_cast<int64_t>(gridDim.x) * rows_per_block;
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * rows_per_block; first < num_rows; first += step) {
    const int64_t rows = num_rows - first < rows_per_block ? num_rows - first : rows_per_block;
    const Inputs block{in.data + first * in.stride, in.stride, in.bytes, in.staged + first * in.staged_stride,
                       in.staged_stride};
    hash_inputs<kAligned, kStage>(block, static_cast<int>(rows), shared, digests + first * digest_size, digest_size,
                                  add);
  }
}

__device__ __forceinline__ int64_t load_bound(const void* bounds, int bytes_each, int64_t i, int64_t num_rows) {
  const int64_t x = bytes_each == 8 ? static_cast<const int64_t*>(bounds)[i] : static_cast<const int32_t*>(bounds)[i];
  return x < 0 ? 0 : x > num_rows ? num_rows : x;
}

template <bool kAligned>
__device__ __forceinline__ void hash_spans(const uint8_t* rows, int64_t num_rows, const void* bounds, int bytes_each,
                                           int64_t num_spans, const uint8_t* key, uint8_t* digests, int digest_size,
                                           MadAdd add) {
  GK_SHARED(shared);
  load_key(shared, key);
  for (int64_t span = blockIdx.x; span < num_spans; span += gridDim.x) {
    const int64_t begin = load_bound(bounds, bytes_each, span, num_rows);
    const int64_t end = load_bound(bounds, bytes_each, span + 1, num_rows);
    const Inputs input{rows + begin * digest_size, 0, end > begin ? (end - begin) * digest_size : 0, nullptr, 0};
    hash_inputs<kAligned, false>(input, 1, shared, digests + span * digest_size, digest_size, add);
  }
}

// --- entry points; `one` is 1, and the compiler must not know. Suffix _aligned: all rows start at multiples of 16. ---

// `blocks`: how many full ones a multiprocessor holds; four would spill in the folds and at odd alignments.
#define GK_KERNEL(blocks) extern "C" __global__ void __launch_bounds__(gpukey::kThreads, blocks)

#define GK_ROWS_KERNEL(suffix, aligned)                                                                               \
  GK_KERNEL((aligned) ? 4 : 3)                                                                                        \
  gpukey_rows_##suffix(const uint8_t* __restrict__ rows, int64_t num_rows, int64_t width, int64_t stride,             \
                       const uint8_t* __restrict__ key, uint8_t* __restrict__ digests, int digest_size,               \
                       int rows_per_block, uint32_t one) {                                                            \
    hash_rows<aligned, false>({rows, stride, width, nullptr, 0}, num_rows, rows_per_block, key, digests, digest_size, \
                              {one});                                                                                 \
  }

#define GK_STAGE_KERNEL(suffix, aligned)                                                                           \
  GK_KERNEL((aligned) ? 4 : 3)                                                                                     \
  gpukey_stage_##suffix(const uint8_t* rows, int64_t num_rows, int64_t width, int64_t stride, uint8_t* staged,     \
                        int64_t staged_stride, const uint8_t* __restrict__ key, uint8_t* __restrict__ digests,     \
                        int digest_size, int rows_per_block, uint32_t one) {                                       \
    hash_rows<aligned, true>({rows, stride, width, staged, staged_stride}, num_rows, rows_per_block, key, digests, \
                             digest_size, {one});                                                                  \
  }

#define GK_FOLD_KERNEL(suffix, aligned)                                                                     \
  GK_KERNEL(3)                                                                                              \
  gpukey_fold_##suffix(const uint8_t* __restrict__ rows, int64_t num_rows, const void* __restrict__ bounds, \
                       int bytes_each, int64_t num_spans, const uint8_t* __restrict__ key,                  \
                       uint8_t* __restrict__ digests, int digest_size, uint32_t one) {                      \
    hash_spans<aligned>(rows, num_rows, bounds, bytes_each, num_spans, key, digests, digest_size, {one});   \
  }

GK_ROWS_KERNEL(aligned, true)
GK_ROWS_KERNEL(any, false)
GK_STAGE_KERNEL(aligned, true)
GK_STAGE_KERNEL(any, false)
GK_FOLD_KERNEL(aligned, true)
GK_FOLD_KERNEL(any, false)

#undef GK_ROWS_KERNEL
#undef GK_STAGE_KERNEL
#undef GK_FOLD_KERNEL
#undef GK_KERNEL
#undef GK_SHARED

}  // namespace gpukey
