// torch bindings of the CUDA half: namespace gpukey_cuda, stable ABI of torch 2.11. Compiled and linked without
// libtorch_cuda, so the library needs no CUDA build of torch to be built, nor a driver to be loaded.
#include "ops_common.h"

#include <dlfcn.h>
#include <torch/csrc/stable/accelerator.h>

namespace gpukey {
namespace {

// The one function of the shim that lives in libtorch_cuda.
void* current_stream(int32_t device) {
  using Get = AOTITorchError (*)(int32_t, void**);
  static const Get get = [] {
    void* torch_cuda = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
    return torch_cuda ? reinterpret_cast<Get>(dlsym(torch_cuda, "aoti_torch_get_current_cuda_stream")) : nullptr;
  }();
  if (get == nullptr) throw std::runtime_error("gpukey_cuda needs a CUDA build of torch");
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(get(device, &stream));
  return stream;
}

struct Cuda {
  static Place place(const Tensor& rows) {
    const Place place = place_of(rows);
    check(place.type == aoti_torch_device_type_cuda(), "rows is not on a CUDA device");
    return place;
  }

  // `launch` runs with the rows' device current, on the current stream of that device.
  template <class Launch>
  static void run(Place place, const Launch& launch) {
    const torch::stable::accelerator::DeviceGuard guard(place.index);
    const int error = launch(current_stream(place.index));
    if (error < 0) refuse(cuda::error_string(error));
    if (error > 0) throw std::runtime_error(std::string("gpukey_cuda: ") + cuda::error_string(error));
  }

  static void rows(const Rows& rows, const void* key, const Digests& digests, Place place) {
    run(place, [&](void* stream) { return cuda::fingerprint_rows(rows, key, digests, stream); });
  }
  static void stage(const Rows& rows, void* staged, int64_t stride, const void* key, const Digests& digests,
                    Place place) {
    run(place, [&](void* stream) { return cuda::stage_rows(rows, staged, stride, key, digests, stream); });
  }
  static void fold(const Rows& rows, const Bounds& bounds, const void* key, const Digests& digests, Place place) {
    run(place, [&](void* stream) { return cuda::fold_spans(rows, bounds, key, digests, stream); });
  }
};

}  // namespace
}  // namespace gpukey

STABLE_TORCH_LIBRARY(gpukey_cuda, library) { gpukey::Ops<gpukey::Cuda>::define(library); }

STABLE_TORCH_LIBRARY_IMPL(gpukey_cuda, CUDA, library) { gpukey::Ops<gpukey::Cuda>::implement(library); }

// Called by gpukey/backends/cuda.py through ctypes. Registers these kernels for the ops of gpukey/ops.py; 0 is success.
extern "C" __attribute__((visibility("default"))) int gpukey_cuda_register() {
  return gpukey::Ops<gpukey::Cuda>::register_for_gpukey("CUDA");
}
