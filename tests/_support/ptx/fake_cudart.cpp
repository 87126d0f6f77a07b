// Stands in for the CUDA runtime under launchers that nvcc compiled: a launch is handed to a callback, which runs the
// kernel's PTX in the emulator. So the product's own host code chooses kernels, grids and arguments.
#include <cstddef>
#include <cstring>
#include <map>

namespace {

struct Dim {  // passed as dim3 is
  unsigned x, y, z;
};

using OnLaunch = int (*)(const char* kernel, const unsigned* grid, const unsigned* block, size_t shared, void** args);

OnLaunch on_launch = nullptr;
int last_error = 0;
struct {
  Dim grid, block;
  size_t shared;
  void* stream;
} configuration;

std::map<const void*, const char*>& kernel_names() {
  static std::map<const void*, const char*> names;  // filled by the constructors that nvcc emits
  return names;
}

}  // namespace

extern "C" {

void fake_cudart_on_launch(OnLaunch callback) { on_launch = callback; }

void** __cudaRegisterFatBinary(void*) {
  static void* handle;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 1; }
void __cudaRegisterFunction(void**, const char* host, char*, const char* device, int, void*, void*, void*, void*,
                            int*) {
  kernel_names()[host] = device;
}
int __cudaGetKernel(const void** kernel, const void* host) {
  *kernel = host;
  return 0;
}
unsigned __cudaPushCallConfiguration(Dim grid, Dim block, size_t shared, void* stream) {
  configuration = {grid, block, shared, stream};
  return 0;
}
int __cudaPopCallConfiguration(Dim* grid, Dim* block, size_t* shared, void* stream) {
  *grid = configuration.grid;
  *block = configuration.block;
  *shared = configuration.shared;
  std::memcpy(stream, &configuration.stream, sizeof(void*));
  return 0;
}
int __cudaLaunchKernel(const void* kernel, Dim grid, Dim block, void** args, size_t shared, void*) {
  last_error = on_launch(kernel_names().at(kernel), &grid.x, &block.x, shared, args);
  return last_error;
}
int cudaLaunchKernel(const void* kernel, Dim grid, Dim block, void** args, size_t shared, void* stream) {
  return __cudaLaunchKernel(kernel, grid, block, args, shared, stream);
}
int cudaGetLastError() {
  const int error = last_error;
  last_error = 0;
  return error;
}
const char* cudaGetErrorString(int) { return "the emulator stopped the kernel"; }

}  // extern "C"
