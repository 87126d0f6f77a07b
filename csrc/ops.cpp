// torch bindings of the CPU half: namespace gpukey_cpu, stable ABI of torch 2.11. Threads are torch's own.
#include "block_keys.h"
#include "lanes.h"
#include "ops_common.h"

#include <algorithm>
#include <atomic>

namespace gpukey {
namespace {

constexpr int64_t kThreadBytes = 64 * 1024;  // less than this is not worth waking a thread

struct Cpu {
  static Place place(const Tensor& rows) {
    const Place place = place_of(rows);
    check(place.type == aoti_torch_device_type_cpu(), "rows is not on the CPU");
    return place;
  }

  static void raise(int error) {
    if (error != 0) refuse(cpu::error_string(error));
  }

  // Calls f(first row, number of rows) from several threads.
  template <class F>
  static void split(const Rows& rows, const F& f) {
    const int64_t grain = std::max<int64_t>(1, kThreadBytes / rows.width);
    if (rows.num_rows <= grain) return raise(f(0, rows.num_rows));
    std::atomic<int> error{0};
    torch::stable::parallel_for(0, rows.num_rows, grain, [&](int64_t begin, int64_t end) {
      if (const int own = f(begin, end - begin)) error = own;
    });
    raise(error);
  }

  static Rows part(const Rows& rows, int64_t first, int64_t count) {
    return {static_cast<const uint8_t*>(rows.data) + first * rows.stride, count, rows.width, rows.stride};
  }
  static Digests part(const Digests& digests, int64_t first) {
    return {static_cast<uint8_t*>(digests.data) + first * digests.size, digests.size};
  }

  static void rows(const Rows& rows, const void* key, const Digests& digests, Place) {
    split(rows, [&](int64_t first, int64_t count) {
      return cpu::fingerprint_rows(part(rows, first, count), key, part(digests, first), nullptr);
    });
  }

  static void stage(const Rows& rows, void* staged, int64_t stride, const void* key, const Digests& digests, Place) {
    split(rows, [&](int64_t first, int64_t count) {
      return cpu::stage_rows(part(rows, first, count), static_cast<uint8_t*>(staged) + first * stride, stride, key,
                             part(digests, first), nullptr);
    });
  }

  // One thread: 16 bytes a row are a hundredth of what the rows were.
  static void fold(const Rows& rows, const Bounds& bounds, const void* key, const Digests& digests, Place) {
    raise(cpu::fold_spans(rows, bounds, key, digests, nullptr));
  }
};

// Keys of all full blocks of int64 [num_tokens] `token_ids`, uint8 [num_blocks, 32]; `parent`, `key`: uint8 [32].
Tensor chain(const Tensor& token_ids, const Tensor& parent, const Tensor& key, int64_t block_size) {
  const Place place = Cpu::place(token_ids);
  check(token_ids.dim() == 1 && dtype_of(token_ids) == aoti_torch_dtype_int64() && token_ids.is_contiguous(),
        "token_ids is not contiguous int64 [num_tokens]");
  check_stored(token_ids, "token_ids");
  check(block_size > 0 && block_size <= kMaxBlockSize, "block_size is ", block_size, "; 1 to 2**32 - 1 is needed");
  check_bytes(parent, "parent");
  check_place(parent, place, "parent");
  check_bytes(key, "key");
  check_place(key, place, "key");
  const int64_t* ids = static_cast<const int64_t*>(token_ids.const_data_ptr());
  const int64_t num_tokens = token_ids.numel(), num_blocks = num_tokens / block_size;
  int64_t signs = 0;
  for (int64_t i = 0; i < num_tokens; i++) signs |= ids[i];
  for (int64_t i = 0; signs < 0 && i < num_tokens; i++)
    check(ids[i] >= 0, "token_ids[", i, "] is ", ids[i], "; an integer in 0 <= id < 2**63 is needed");
  const Tensor keys = new_digests(num_blocks, kKeyBytes, place);
  block_keys(ids, num_blocks, block_size, static_cast<const uint8_t*>(parent.const_data_ptr()),
             static_cast<const uint8_t*>(key.const_data_ptr()), static_cast<uint8_t*>(keys.mutable_data_ptr()));
  return keys;
}

}  // namespace
}  // namespace gpukey

STABLE_TORCH_LIBRARY(gpukey_cpu, library) {
  gpukey::Ops<gpukey::Cpu>::define(library);
  library.def("block_keys(Tensor token_ids, Tensor parent, Tensor key, int block_size) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(gpukey_cpu, CPU, library) {
  gpukey::Ops<gpukey::Cpu>::implement(library);
  library.impl("block_keys", TORCH_BOX(&gpukey::chain));
}

#define GPUKEY_EXPORT extern "C" __attribute__((visibility("default")))

// Called by gpukey/backends/cpu.py through ctypes. Registers these kernels for the ops of gpukey/ops.py; 0 is success.
GPUKEY_EXPORT int gpukey_cpu_register() { return gpukey::Ops<gpukey::Cpu>::register_for_gpukey("CPU"); }

GPUKEY_EXPORT int gpukey_cpu_register_block_keys() {
  using torch::stable::detail::StableLibrary;
  try {
    auto* library = new StableLibrary(StableLibrary::Kind::IMPL, "gpukey", "CPU", __FILE__, __LINE__);
    library->impl("block_keys", TORCH_BOX(&gpukey::chain));
    return 0;
  } catch (const std::exception&) {
    return 1;
  }
}

GPUKEY_EXPORT const char* gpukey_cpu_instruction_set() { return gpukey::cpu::instruction_set(); }
