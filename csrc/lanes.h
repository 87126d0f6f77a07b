// Many inputs of one length, hashed side by side: one input in each element ("lane") of the vector registers. The same
// code is compiled for several instruction sets (lanes_*.cpp); fingerprint_cpu.cpp chooses among them at run time.
#pragma once

#include <cstdint>

namespace gpukey {
namespace cpu {

constexpr int kMaxLanes = 16;

// What the inputs are: chunks of up to 1024 bytes, or pairs of child CVs (64 bytes).
enum class Node { kChunk, kParent };

struct Batch {
  const uint8_t* inputs[kMaxLanes];
  uint8_t* cvs[kMaxLanes];       // 32 bytes each; may overlap the inputs of the same batch
  uint32_t counters[kMaxLanes];  // chunk indices; 0 for parents
  int count = 0;                 // 1..kMaxLanes of the entries are in use
  int64_t ahead = 0;             // bytes from an input to where the next batch probably has its own; 0: no guess
};

// Chaining values of all inputs of `batch`, `length` bytes each. `root`: they are whole hashes. `key`: 8 words.
using HashBatch = void (*)(const Batch& batch, int length, Node node, bool root, const uint32_t* key);

void hash_batch_avx512(const Batch&, int length, Node, bool root, const uint32_t* key);
void hash_batch_avx2(const Batch&, int length, Node, bool root, const uint32_t* key);
void hash_batch_baseline(const Batch&, int length, Node, bool root, const uint32_t* key);

// What fingerprint_cpu.cpp chose: "avx512", "avx2" or "baseline".
const char* instruction_set();

}  // namespace cpu
}  // namespace gpukey
