// Reads cases from a file, runs the launchers of csrc/fingerprint.cu on them, and compares every byte with what the
// file expects. Buffers have exactly the size that a case names, so that a byte too far is one for ASan.
//   run_cases FILE     exit 0 and "N cases", or 1 and the first bad byte
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "fingerprint.h"
#if defined(SIMT_CHECK)
#include "races.h"
#endif

namespace {

enum Operation : int64_t { kRows, kStage, kFold };

// One case as test_simt.py writes it; sizes and offsets in bytes. `at`, `staged_at`, `digests_at`: offset of the first
// byte from a multiple of 16.
struct Header {
  int64_t operation, num_rows, width, stride, at, staged_stride, staged_at, digest_size, digests_at, num_spans,
      bound_bytes;
};

// `bytes` bytes that start `at` bytes after a multiple of 16, the rest of the allocation is ahead of them.
struct Buffer {
  char* allocation;
  char* data;
  size_t bytes;
  Buffer(size_t at, size_t bytes, int fill = 0xCD)
      : allocation(static_cast<char*>(malloc(at + bytes))), data(allocation + at), bytes(bytes) {
    memset(allocation, fill, at + bytes);
  }
  Buffer(const Buffer&) = delete;
  ~Buffer() { free(allocation); }
};

void allow_rows([[maybe_unused]] const Buffer& buffer, [[maybe_unused]] const Header& h,
                [[maybe_unused]] int64_t stride, [[maybe_unused]] bool writable) {
#if defined(SIMT_CHECK)
  if (stride == h.width)
    simt::allow(buffer.data, buffer.bytes, writable);
  else
    for (int64_t i = 0; i < h.num_rows; i++) simt::allow(buffer.data + i * stride, h.width, writable);
#endif
}

void allow([[maybe_unused]] const Buffer& buffer, [[maybe_unused]] bool writable) {
#if defined(SIMT_CHECK)
  simt::allow(buffer.data, buffer.bytes, writable);
#endif
}

size_t extent(int64_t num_rows, int64_t width, int64_t stride) {
  return num_rows == 0 ? 0 : static_cast<size_t>((num_rows - 1) * stride + width);
}

bool read_bytes(FILE* file, void* to, size_t bytes) { return fread(to, 1, bytes, file) == bytes; }

bool same(const char* what, int number, const char* got, const char* expected, size_t bytes) {
  for (size_t i = 0; i < bytes; i++) {
    if (got[i] == expected[i]) continue;
    printf("case %d: %s differs at byte %zu of %zu\n", number, what, i, bytes);
    return false;
  }
  return true;
}

bool run_case(FILE* file, const Header& h, int number) {
  const int64_t num_digests = h.operation == kFold ? h.num_spans : h.num_rows;
  Buffer data(h.at, extent(h.num_rows, h.width, h.stride)), key(0, 32);
  Buffer digests(h.digests_at, static_cast<size_t>(num_digests * h.digest_size));
  Buffer bounds(0, h.operation == kFold ? static_cast<size_t>((h.num_spans + 1) * h.bound_bytes) : 0);
  Buffer staged(h.staged_at, h.operation == kStage ? extent(h.num_rows, h.width, h.staged_stride) : 0);
  std::vector<char> expected(digests.bytes);
  if (!read_bytes(file, key.data, 32) || !read_bytes(file, data.data, data.bytes) ||
      !read_bytes(file, bounds.data, bounds.bytes) || !read_bytes(file, expected.data(), expected.size())) {
    printf("case %d: the file is cut\n", number);
    return false;
  }
  allow_rows(data, h, h.stride, false);
  if (h.operation == kStage) allow_rows(staged, h, h.staged_stride, true);
  allow(key, false);
  allow(bounds, false);
  allow(digests, true);
  const gpukey::Rows rows{data.data, h.num_rows, h.width, h.stride};
  const gpukey::Digests out{digests.data, static_cast<int>(h.digest_size)};
  const gpukey::Bounds spans{bounds.data, h.num_spans, static_cast<int>(h.bound_bytes)};
  int error = 0;
  if (h.operation == kRows) error = gpukey::cuda::fingerprint_rows(rows, key.data, out, nullptr);
  if (h.operation == kStage)
    error = gpukey::cuda::stage_rows(rows, staged.data, h.staged_stride, key.data, out, nullptr);
  if (h.operation == kFold) error = gpukey::cuda::fold_spans(rows, spans, key.data, out, nullptr);
#if defined(SIMT_CHECK)
  simt::forget_allowed();
#endif
  if (error != 0) {
    printf("case %d: %s\n", number, gpukey::cuda::error_string(error));
    return false;
  }
  if (h.operation == kStage) {
    // Between rows nothing may change.
    std::vector<char> copy(staged.bytes, static_cast<char>(0xCD));
    for (int64_t i = 0; i < h.num_rows; i++)
      memcpy(copy.data() + i * h.staged_stride, data.data + i * h.stride, h.width);
    if (!same("staged", number, staged.data, copy.data(), staged.bytes)) return false;
  }
  return same("digests", number, digests.data, expected.data(), expected.size());
}

}  // namespace

int main(int argc, char** argv) {
  FILE* file = argc == 2 ? fopen(argv[1], "rb") : nullptr;
  if (!file) {
    fprintf(stderr, "usage: run_cases FILE\n");
    return 2;
  }
  int number = 0;
  bool good = true;
  for (Header header; good && read_bytes(file, &header, sizeof header); number++) good = run_case(file, header, number);
  fclose(file);
  printf("%d cases\n", number);
  return good ? 0 : 1;
}
