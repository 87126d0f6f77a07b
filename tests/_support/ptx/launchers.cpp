// The launchers of csrc/fingerprint.h for ctypes.
#include "fingerprint.h"

using namespace gpukey;

extern "C" {

int rows(const void* data, int64_t num_rows, int64_t width, int64_t stride, const void* key, void* digests, int size) {
  return cuda::fingerprint_rows({data, num_rows, width, stride}, key, {digests, size}, nullptr);
}
int stage(const void* data, int64_t num_rows, int64_t width, int64_t stride, void* staged, int64_t staged_stride,
          const void* key, void* digests, int size) {
  return cuda::stage_rows({data, num_rows, width, stride}, staged, staged_stride, key, {digests, size}, nullptr);
}
int fold(const void* data, int64_t num_rows, const void* bounds, int64_t num_spans, int bytes_each, const void* key,
         void* digests, int size) {
  return cuda::fold_spans({data, num_rows, size, size}, {bounds, num_spans, bytes_each}, key, {digests, size}, nullptr);
}

}  // extern "C"
