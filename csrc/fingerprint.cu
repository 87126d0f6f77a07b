// Launchers of the kernels; see fingerprint.h. One launch each, nothing allocated, nothing waited for.
#include "fingerprint.h"

#include "fingerprint_kernels.cuh"
#include "plan.h"

namespace gpukey {
namespace cuda {
namespace {

static_assert(kMaxThreads == kThreads, "the plan and the kernels disagree");

int check(const Rows& rows, const void* key, const Digests& digests) {
  if (digests.size != 16 && digests.size != 32) return kBadDigestSize;
  if (rows.num_rows < 0 || rows.stride < 0 || rows.width <= 0 || rows.width >= kMaxWidth) return kBadSize;
  if (key == nullptr) return kBadPointer;
  return 0;
}

const uint8_t* bytes(const void* p) { return static_cast<const uint8_t*>(p); }
uint8_t* bytes(void* p) { return static_cast<uint8_t*>(p); }

int launched() {
#if defined(__CUDACC__)
  return static_cast<int>(cudaGetLastError());
#else
  return 0;
#endif
}

#if defined(__CUDACC__)
using Stream = cudaStream_t;
#else
using Stream = void*;
#endif

}  // namespace

int fingerprint_rows(const Rows& rows, const void* key, const Digests& digests, void* stream) {
  if (const int error = check(rows, key, digests)) return error;
  if (rows.num_rows == 0) return 0;
  if (rows.data == nullptr || digests.data == nullptr) return kBadPointer;
  const Plan plan = plan_rows(rows.num_rows, rows.width);
  const auto kernel = is_aligned(rows.data, rows.stride, rows.num_rows) ? gpukey_rows_aligned : gpukey_rows_any;
  DEV_LAUNCH(kernel, static_cast<unsigned>(plan.blocks), plan.threads, static_cast<Stream>(stream), bytes(rows.data),
             rows.num_rows, rows.width, rows.stride, bytes(key), bytes(digests.data), digests.size, plan.rows_per_block,
             1u);
  return launched();
}

int stage_rows(const Rows& rows, void* staged, int64_t staged_stride, const void* key, const Digests& digests,
               void* stream) {
  if (const int error = check(rows, key, digests)) return error;
  if (staged_stride < 0) return kBadSize;
  if (rows.num_rows == 0) return 0;
  if (rows.data == nullptr || staged == nullptr || digests.data == nullptr) return kBadPointer;
  const Plan plan = plan_rows(rows.num_rows, rows.width);
  const bool aligned =
      is_aligned(rows.data, rows.stride, rows.num_rows) && is_aligned(staged, staged_stride, rows.num_rows);
  const auto kernel = aligned ? gpukey_stage_aligned : gpukey_stage_any;
  DEV_LAUNCH(kernel, static_cast<unsigned>(plan.blocks), plan.threads, static_cast<Stream>(stream), bytes(rows.data),
             rows.num_rows, rows.width, rows.stride, bytes(staged), staged_stride, bytes(key), bytes(digests.data),
             digests.size, plan.rows_per_block, 1u);
  return launched();
}

int fold_spans(const Rows& rows, const Bounds& bounds, const void* key, const Digests& digests, void* stream) {
  if (const int error = check(rows, key, digests)) return error;
  if (rows.width != digests.size || rows.stride != digests.size || bounds.num_spans < 0) return kBadSize;
  if (bounds.bytes_each != 4 && bounds.bytes_each != 8) return kBadBounds;
  if (bounds.num_spans == 0) return 0;
  if ((rows.data == nullptr && rows.num_rows > 0) || bounds.data == nullptr || digests.data == nullptr)
    return kBadPointer;
  const Plan plan = plan_spans(rows.num_rows, digests.size, bounds.num_spans);
  const auto kernel = is_aligned(rows.data, rows.stride, rows.num_rows) ? gpukey_fold_aligned : gpukey_fold_any;
  DEV_LAUNCH(kernel, static_cast<unsigned>(plan.blocks), plan.threads, static_cast<Stream>(stream), bytes(rows.data),
             rows.num_rows, bounds.data, bounds.bytes_each, bounds.num_spans, bytes(key), bytes(digests.data),
             digests.size, 1u);
  return launched();
}

const char* error_string(int error) {
  switch (error) {
    case 0: return "no error";
    case kBadDigestSize: return "the digest size is neither 16 nor 32";
    case kBadSize: return "a count, a width or a stride is out of range";
    case kBadBounds: return "the bounds are neither int32 nor int64";
    case kBadPointer: return "a pointer is null";
  }
#if defined(__CUDACC__)
  return cudaGetErrorString(static_cast<cudaError_t>(error));
#else
  return "unknown error";
#endif
}

}  // namespace cuda
}  // namespace gpukey
