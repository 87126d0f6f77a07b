// Vectors of GCC and Clang: as many bytes as asked for, whatever registers the target has. No intrinsics.
#pragma once

#include <cstdint>

#include "blake3.cuh"

namespace gpukey {

template <class Element, int kBytes>
struct Vector {
  typedef Element type __attribute__((vector_size(kBytes)));
};

// Elements i... of a ‖ b.
template <int... i, class Word>
GK_INLINE Word shuffle(Word a, Word b) {
#if defined(__clang__)
  return __builtin_shufflevector(a, b, i...);
#else
  using Element = decltype(a[0] + 0u);
  return __builtin_shuffle(a, b, Word{static_cast<Element>(i)...});
#endif
}

}  // namespace gpukey
