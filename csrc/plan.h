// How rows and spans are laid on thread blocks. Plain host arithmetic, the same for every card, so that a launch needs
// no query; gpukey/backends/nvrtc.py mirrors it and a test compares the two.
#pragma once

#include "blake3.cuh"

namespace gpukey {

constexpr int kWarp = 32;
constexpr int kMaxThreads = 256;
constexpr int64_t kMaxBlocks = 0x7FFFFFFF;  // kernels step by the grid, so fewer blocks than work is fine
// Below this many blocks a card is not full (4 on each of the 132 SMs of an H200), and smaller blocks spread better.
constexpr int64_t kFewBlocks = 528;

struct Plan {
  int64_t blocks;
  int threads;
  int rows_per_block;
};

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int round_to_warp(int64_t lanes) { return static_cast<int>(ceil_div(lanes, kWarp) * kWarp); }

// A lane hashes a chunk. Rows of up to 256 chunks share a block, 32 at a time where they fit, so that a warp holds one
// chunk number of 32 rows and its lanes end together; few rows use blocks down to one warp. A longer row has a block.
inline Plan plan_rows(int64_t num_rows, int64_t width) {
  const int64_t chunks = num_chunks(width);
  if (chunks > kMaxThreads) return {num_rows < kMaxBlocks ? num_rows : kMaxBlocks, kMaxThreads, 1};
  int64_t rows = kMaxThreads / chunks;
  if (rows > kWarp) rows -= rows % kWarp;
  while (ceil_div(num_rows, rows) < kFewBlocks && rows * chunks > kWarp && rows > 1) rows /= 2;
  const int64_t blocks = ceil_div(num_rows, rows);
  return {blocks < kMaxBlocks ? blocks : kMaxBlocks, round_to_warp(rows * chunks), static_cast<int>(rows)};
}

// A span has a block, sized for the mean span. A power of two: a block's tile is a complete subtree.
inline Plan plan_spans(int64_t num_rows, int digest_size, int64_t num_spans) {
  const int64_t mean_chunks = num_chunks(ceil_div(num_rows, num_spans) * digest_size);
  int threads = kWarp;
  while (threads < mean_chunks && threads < kMaxThreads) threads *= 2;
  return {num_spans < kMaxBlocks ? num_spans : kMaxBlocks, threads, 1};
}

// Whether every row starts at a multiple of 16 bytes.
inline bool is_aligned(const void* data, int64_t stride, int64_t num_rows) {
  return (reinterpret_cast<uint64_t>(data) | static_cast<uint64_t>(num_rows > 1 ? stride : 0)) % 16 == 0;
}

}  // namespace gpukey
