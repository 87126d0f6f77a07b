// Torch tensors to the structs of fingerprint.h, checked. A wrong argument is std::invalid_argument, which Python sees
// as ValueError.
#pragma once

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <array>
#include <sstream>
#include <stdexcept>

#include "fingerprint.h"

namespace gpukey {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

template <class... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  std::ostringstream message;
  (message << ... << parts);
  throw std::invalid_argument(message.str());
}

template <class... Parts>
void check(bool good, const Parts&... parts) {
  if (!good) refuse(parts...);
}

inline int32_t dtype_of(const Tensor& tensor) {
  int32_t dtype;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(tensor.get(), &dtype));
  return dtype;
}

struct Place {
  int32_t type, index;
};

inline Place place_of(const Tensor& tensor) {
  Place place;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(tensor.get(), &place.type));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(tensor.get(), &place.index));
  return place;
}

inline void check_place(const Tensor& tensor, Place place, const char* name) {
  const Place own = place_of(tensor);
  check(own.type == place.type && own.index == place.index, name, " is on another device than rows");
}

// Whoever resizes or frees a storage leaves its tensors as they were, and nobody below asks before it reads.
inline void check_stored(const Tensor& tensor, const char* name) {
  if (tensor.numel() == 0) return;
  int64_t bytes, last = tensor.storage_offset(), step;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_storage_size(tensor.get(), &bytes));
  bool fits = true;
  for (int64_t i = 0; i < tensor.dim(); i++)
    fits = fits && !__builtin_mul_overflow(tensor.size(i) - 1, tensor.stride(i), &step) &&
           !__builtin_add_overflow(last, step, &last);
  check(fits && last >= 0 && last < bytes / static_cast<int64_t>(tensor.element_size()), name,
        " reaches past its storage of ", bytes, " bytes: it was freed or resized");
}

inline void check_bytes(const Tensor& tensor, const char* name) {
  check(tensor.dim() == 1 && tensor.numel() == 32 && dtype_of(tensor) == aoti_torch_dtype_uint8() &&
            tensor.is_contiguous(),
        name, " has ", tensor.dim(), " dimensions and ", tensor.numel(), " elements; contiguous uint8 [32] is needed");
  check_stored(tensor, name);
}

inline void check_digest_size(int64_t digest_size) {
  check(digest_size == 16 || digest_size == 32, "digest_size is ", digest_size, "; 16 or 32 is needed");
}

inline void check_shape(const Tensor& rows) {
  check(rows.dim() == 2, "rows has ", rows.dim(), " dimensions; [num_rows, hidden] is needed");
  check(rows.size(1) > 0, "rows has hidden = 0; at least 1 is needed");
}

inline bool contiguous_rows(const Tensor& rows) { return rows.stride(1) == 1 || rows.size(1) == 1; }

// The same tensor where its rows can be read in place, else a copy. Bits are copied, not values: some dtypes have no
// copy kernels, and a bool may hold neither 0 nor 1.
inline Tensor readable(const Tensor& rows) {
  check_shape(rows);
  check_stored(rows, "rows");
  if (contiguous_rows(rows)) return rows;
  ScalarType bits = ScalarType::Byte;
  switch (rows.element_size()) {
    case 2: bits = ScalarType::Short; break;
    case 4: bits = ScalarType::Int; break;
    case 8: bits = ScalarType::Long; break;
    case 16: bits = ScalarType::ComplexDouble; break;
  }
  std::array<StableIValue, 2> stack{torch::stable::detail::from(rows), torch::stable::detail::from(bits)};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aten::view", "dtype", stack.data(), TORCH_ABI_VERSION));
  return torch::stable::contiguous(torch::stable::detail::to<Tensor>(stack[0]));
}

// Rows that `readable` returned.
inline Rows rows_of(const Tensor& rows) {
  const int64_t element = static_cast<int64_t>(rows.element_size()), hidden = rows.size(1);
  check(hidden < kMaxWidth / element, "rows has hidden = ", hidden, "; rows shorter than 4 TiB are needed");
  // The stride of a lone row says nothing, and may be too large to count in bytes.
  const int64_t stride = rows.size(0) > 1 ? rows.stride(0) : hidden;
  return {rows.const_data_ptr(), rows.size(0), hidden * element, stride * element};
}

inline Rows fingerprints_of(const Tensor& rows, int64_t digest_size) {
  check(rows.dim() == 2 && rows.size(1) == digest_size && dtype_of(rows) == aoti_torch_dtype_uint8() &&
            rows.is_contiguous(),
        "rows is not fingerprints: contiguous uint8 [num_rows, ", digest_size, "] is needed");
  return {rows.const_data_ptr(), rows.size(0), digest_size, digest_size};
}

inline Bounds bounds_of(const Tensor& cu_seqlens) {
  const int32_t dtype = dtype_of(cu_seqlens);
  const bool narrow = dtype == aoti_torch_dtype_int32();
  check(cu_seqlens.dim() == 1 && cu_seqlens.numel() > 0 && (narrow || dtype == aoti_torch_dtype_int64()),
        "cu_seqlens has ", cu_seqlens.dim(), " dimensions and ", cu_seqlens.numel(),
        " elements; int32 or int64 [num_spans + 1] is needed");
  check(cu_seqlens.is_contiguous(), "cu_seqlens is not contiguous");
  return {cu_seqlens.const_data_ptr(), cu_seqlens.numel() - 1, narrow ? 4 : 8};
}

inline void check_staged(const Tensor& rows, const Tensor& out) {
  check_shape(rows);
  check(out.dim() == 2 && out.size(0) == rows.size(0) && out.size(1) == rows.size(1) && dtype_of(out) == dtype_of(rows),
        "out differs from rows in shape or dtype");
  check(contiguous_rows(out), "out has stride ", out.stride(1), " in its last dimension; 1 is needed");
  check(out.size(0) <= 1 || out.stride(0) >= out.size(1), "out has rows that overlap");
  check_stored(out, "out");
}

inline Tensor new_digests(int64_t count, int64_t digest_size, Place place) {
  const int64_t sizes[] = {count, digest_size}, strides[] = {digest_size, 1};
  AtenTensorHandle handle;
  TORCH_ERROR_CODE_CHECK(
      aoti_torch_empty_strided(2, sizes, strides, aoti_torch_dtype_uint8(), place.type, place.index, &handle));
  return Tensor(handle);
}

inline Digests digests_of(const Tensor& out, int64_t count, int64_t digest_size, Place place, const char* name) {
  check(out.dim() == 2 && out.size(0) == count && out.size(1) == digest_size &&
            dtype_of(out) == aoti_torch_dtype_uint8() && out.is_contiguous(),
        name, " is not contiguous uint8 [", count, ", ", digest_size, "]");
  check_place(out, place, name);
  check_stored(out, name);
  return {out.mutable_data_ptr(), static_cast<int>(digest_size)};
}

// --- memory that is written must not be read ---

inline Rows memory_of(const Tensor& tensor) {
  const int64_t bytes = static_cast<int64_t>(tensor.numel() * tensor.element_size());
  return {tensor.const_data_ptr(), 1, bytes, bytes};
}
inline Rows memory_of(const Digests& digests, int64_t count) {
  return {digests.data, 1, count * digests.size, count * digests.size};
}

inline int64_t start_of(const Rows& rows) { return reinterpret_cast<int64_t>(rows.data); }
inline int64_t end_of(const Rows& rows) {
  return start_of(rows) + (rows.num_rows > 1 ? (rows.num_rows - 1) * rows.stride : 0) + rows.width;
}

// Whether they share a byte.
inline bool meet(const Rows& a, const Rows& b) {
  if (a.num_rows == 0 || b.num_rows == 0 || a.width == 0 || b.width == 0) return false;
  if (start_of(a) >= end_of(b) || start_of(b) >= end_of(a)) return false;
  // The first row of b that ends after a row of a begins is the one that may meet it.
  for (int64_t i = 0; i < (a.stride == 0 ? 1 : a.num_rows); i++) {
    const int64_t begin = start_of(a) + i * a.stride, behind = begin - start_of(b) - b.width;
    const int64_t first = behind < 0 || b.num_rows == 1 || b.stride == 0 ? 0 : behind / b.stride + 1;
    const int64_t row = start_of(b) + first * b.stride;
    if (first < b.num_rows && row < begin + a.width && row + b.width > begin) return true;
  }
  return false;
}

inline void check_apart(const Rows& written, const char* name, const Rows& read, const char* other) {
  check(!meet(written, read), name, " shares memory with ", other);
}

}  // namespace gpukey
