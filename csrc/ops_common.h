// What the CPU and the CUDA bindings share: the six ops over a device's three functions.
#pragma once

#include <torch/csrc/stable/library.h>

#include "tensors.h"

namespace gpukey {

// The six kernels of a device in terms of its three functions on checked arguments: Device::place checks the device of
// rows; rows, fold and stage launch.
template <class Device>
struct Ops {
  static void rows_out(const Tensor& rows, const Tensor& key, int64_t digest_size, const Tensor& out) {
    check_digest_size(digest_size);
    const Place place = Device::place(rows);
    check_bytes(key, "key");
    check_place(key, place, "key");
    const Tensor source = readable(rows);
    const Rows input = rows_of(source);
    const Digests digests = digests_of(out, source.size(0), digest_size, place, "out");
    const Rows written = memory_of(digests, input.num_rows);
    check_apart(written, "out", input, "rows");
    check_apart(written, "out", memory_of(key), "key");
    Device::rows(input, key.const_data_ptr(), digests, place);
  }

  static Tensor rows(const Tensor& rows, const Tensor& key, int64_t digest_size) {
    check_digest_size(digest_size);
    check_shape(rows);
    const Tensor out = new_digests(rows.size(0), digest_size, Device::place(rows));
    rows_out(rows, key, digest_size, out);
    return out;
  }

  static void fold_out(const Tensor& rows, const Tensor& cu_seqlens, const Tensor& key, int64_t digest_size,
                       const Tensor& out) {
    check_digest_size(digest_size);
    const Place place = Device::place(rows);
    check_bytes(key, "key");
    check_place(key, place, "key");
    check_place(cu_seqlens, place, "cu_seqlens");
    check_stored(rows, "rows");
    check_stored(cu_seqlens, "cu_seqlens");
    const Tensor source = torch::stable::contiguous(rows), ends = torch::stable::contiguous(cu_seqlens);
    const Bounds bounds = bounds_of(ends);
    const Rows input = fingerprints_of(source, digest_size);
    const Digests digests = digests_of(out, bounds.num_spans, digest_size, place, "out");
    const Rows written = memory_of(digests, bounds.num_spans);
    check_apart(written, "out", input, "rows");
    check_apart(written, "out", memory_of(ends), "cu_seqlens");
    check_apart(written, "out", memory_of(key), "key");
    Device::fold(input, bounds, key.const_data_ptr(), digests, place);
  }

  static Tensor fold(const Tensor& rows, const Tensor& cu_seqlens, const Tensor& key, int64_t digest_size) {
    check_digest_size(digest_size);
    check(cu_seqlens.dim() == 1 && cu_seqlens.numel() > 0, "cu_seqlens is not [num_spans + 1]");
    const Tensor out = new_digests(cu_seqlens.numel() - 1, digest_size, Device::place(rows));
    fold_out(rows, cu_seqlens, key, digest_size, out);
    return out;
  }

  static void stage_out(const Tensor& rows, const Tensor& out, const Tensor& key, int64_t digest_size,
                        const Tensor& digests) {
    check_digest_size(digest_size);
    const Place place = Device::place(rows);
    check_staged(rows, out);
    check_place(out, place, "out");
    check_bytes(key, "key");
    check_place(key, place, "key");
    const Tensor source = readable(rows);
    const Rows input = rows_of(source);
    const int64_t stride = input.num_rows > 1 ? out.stride(0) * static_cast<int64_t>(out.element_size()) : input.width;
    const Digests written = digests_of(digests, rows.size(0), digest_size, place, "digests");
    const Rows staged{out.mutable_data_ptr(), input.num_rows, input.width, stride};
    const Rows marks = memory_of(written, input.num_rows);
    // Rows staged where they stand are read and written by the same lane.
    if (input.data != staged.data || (input.stride != stride && input.num_rows > 1))
      check_apart(staged, "out", input, "rows");
    check_apart(staged, "out", memory_of(key), "key");
    check_apart(marks, "digests", input, "rows");
    check_apart(marks, "digests", staged, "out");
    check_apart(marks, "digests", memory_of(key), "key");
    Device::stage(input, out.mutable_data_ptr(), stride, key.const_data_ptr(), written, place);
  }

  static Tensor stage(const Tensor& rows, const Tensor& out, const Tensor& key, int64_t digest_size) {
    check_digest_size(digest_size);
    check_shape(rows);
    const Tensor digests = new_digests(rows.size(0), digest_size, Device::place(rows));
    stage_out(rows, out, key, digest_size, digests);
    return digests;
  }

  static void define(torch::stable::detail::StableLibrary& library) {
    library.def("fingerprint_rows(Tensor rows, Tensor key, int digest_size) -> Tensor");
    library.def("fingerprint_rows.out(Tensor rows, Tensor key, int digest_size, *, Tensor(a!) out) -> ()");
    library.def("fold_spans(Tensor rows, Tensor cu_seqlens, Tensor key, int digest_size) -> Tensor");
    library.def("fold_spans.out(Tensor rows, Tensor cu_seqlens, Tensor key, int digest_size, *, Tensor(a!) out) -> ()");
    library.def("stage_rows(Tensor rows, Tensor(a!) out, Tensor key, int digest_size) -> Tensor");
    library.def(
        "stage_rows.out(Tensor rows, Tensor(a!) out, Tensor key, int digest_size, *, Tensor(b!) digests) -> ()");
  }

  static void implement(torch::stable::detail::StableLibrary& library) {
    library.impl("fingerprint_rows", TORCH_BOX(&rows));
    library.impl("fingerprint_rows.out", TORCH_BOX(&rows_out));
    library.impl("fold_spans", TORCH_BOX(&fold));
    library.impl("fold_spans.out", TORCH_BOX(&fold_out));
    library.impl("stage_rows", TORCH_BOX(&stage));
    library.impl("stage_rows.out", TORCH_BOX(&stage_out));
  }

  // The same kernels for the ops that gpukey/ops.py has defined in the namespace `gpukey`: for the life of the process.
  static int register_for_gpukey(const char* dispatch_key) {
    using torch::stable::detail::StableLibrary;
    try {
      implement(*new StableLibrary(StableLibrary::Kind::IMPL, "gpukey", dispatch_key, __FILE__, __LINE__));
      return 0;
    } catch (const std::exception&) {
      return 1;
    }
  }
};

}  // namespace gpukey
