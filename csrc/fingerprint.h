// What the launchers take: pointers, sizes, a stream. No torch, no CUDA header. The same three functions for each
// device; the bindings (ops*.cpp) have checked dtypes, shapes and devices.
//
// A launcher returns 0, a cudaError_t (> 0), or an Error (< 0); error_string() says it in words.
#pragma once

#include <cstdint>

namespace gpukey {

// [num_rows, width] bytes; row i starts at data + i * stride (any alignment, any stride >= 0).
struct Rows {
  const void* data;
  int64_t num_rows;
  int64_t width;
  int64_t stride;
};

// [n, size] bytes, contiguous; size is 16 or 32.
struct Digests {
  void* data;
  int size;
};

// num_spans + 1 bounds, int32 (bytes_each 4) or int64 (8), on the device of the rows.
struct Bounds {
  const void* data;
  int64_t num_spans;
  int bytes_each;
};

enum Error : int {
  kBadDigestSize = -1,  // neither 16 nor 32
  kBadSize = -2,        // a negative count or stride, a width of 0 or of 4 TiB and more
  kBadBounds = -3,      // bytes_each is neither 4 nor 8, or (on a CPU) bounds that are not 0, ..., num_rows, rising
  kBadPointer = -4,     // null where bytes are needed
};

constexpr int64_t kMaxWidth = int64_t{1} << 42;

// `key`: 32 bytes on the device. `stream`: cudaStream_t, unused on a CPU. `staged`: [num_rows, width] bytes at
// `staged_stride`, written with the rows' bytes; the digests are of what was written.
// `rows` of fold_spans: fingerprints, contiguous (stride == width == digests.size).
#define GPUKEY_LAUNCHERS                                                                                         \
  int fingerprint_rows(const Rows& rows, const void* key, const Digests& digests, void* stream);                 \
  int fold_spans(const Rows& rows, const Bounds& bounds, const void* key, const Digests& digests, void* stream); \
  int stage_rows(const Rows& rows, void* staged, int64_t staged_stride, const void* key, const Digests& digests, \
                 void* stream);                                                                                  \
  const char* error_string(int error);

namespace cuda {  // fingerprint.cu: asynchronous on `stream` of the current device; bounds are clamped on the device
GPUKEY_LAUNCHERS
}
namespace cpu {  // fingerprint_cpu.cpp: one thread, the caller splits rows or spans among threads
GPUKEY_LAUNCHERS
}

#undef GPUKEY_LAUNCHERS

}  // namespace gpukey
