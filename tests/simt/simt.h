// Runs CUDA C++ kernels on the host: one fiber per CUDA thread, block after block. csrc/device.h includes this file
// where the compiler is not nvcc or NVRTC. Only what the kernels here use; anything else does not compile.
//
// Environment: SIMT_ORDER=fwd|rev|rand:SEED  order of blocks, warps and lanes
//              SIMT_FILL=BYTE                what shared memory holds at the start of a block (default 0xA5)
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)

struct uint3 {
  unsigned x, y, z;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((static_cast<uint64_t>(high) << 32 | low) >> (shift & 31));
}

namespace simt {

struct Place {
  uint3 thread, block;
};
// What the running fiber reads as threadIdx and so on; set by the scheduler.
extern Place* current;
extern uint3 block_dim, grid_dim;

// Where a collective is called, for messages.
struct Site {
  const char* file = __builtin_FILE();
  int line = __builtin_LINE();
};

[[noreturn]] void die(const char* what, Site site);
void barrier(Site site);
void* shared_array(const void* tag, size_t bytes);
// Value of `lane` among the lanes of `mask`, once they have all come here.
uint64_t exchange(unsigned mask, uint64_t value, int lane, Site site);
int lane();
// Runs call(argument) as every thread; `bytes`: the size of what the argument points at.
void run(unsigned grid, unsigned block, void (*call)(void*), void* argument, size_t bytes);

template <class... P, class... A>
void launch(void (*kernel)(P...), unsigned grid, unsigned block, A&&... args) {
  struct Call {
    void (*kernel)(P...);
    std::tuple<P...> args;
  } call{kernel, {static_cast<P>(args)...}};
  run(
      grid, block, [](void* p) { std::apply(static_cast<Call*>(p)->kernel, static_cast<Call*>(p)->args); }, &call,
      sizeof call);
}

}  // namespace simt

#define threadIdx (::simt::current->thread)
#define blockIdx (::simt::current->block)
#define blockDim (::simt::block_dim)
#define gridDim (::simt::grid_dim)

#define SMEM_STATIC(T, name, N)     \
  static const char name##_tag = 0; \
  T(&name)[N] = *static_cast<T(*)[N]>(::simt::shared_array(&name##_tag, sizeof(T[N])))

#define DEV_LAUNCH(kernel, grid, block, stream, ...) \
  (static_cast<void>(stream), ::simt::launch(kernel, grid, block, __VA_ARGS__))

inline void __syncthreads(simt::Site site = {}) { simt::barrier(site); }
inline void __syncwarp(unsigned mask = 0xFFFFFFFFu, simt::Site site = {}) {
  simt::exchange(mask, 0, simt::lane(), site);
}
inline unsigned __shfl_sync(unsigned mask, unsigned value, int from, simt::Site site = {}) {
  return static_cast<unsigned>(simt::exchange(mask, value, from & 31, site));
}
inline unsigned __shfl_xor_sync(unsigned mask, unsigned value, int with, simt::Site site = {}) {
  return static_cast<unsigned>(simt::exchange(mask, value, simt::lane() ^ (with & 31), site));
}
inline unsigned __shfl_down_sync(unsigned mask, unsigned value, unsigned by, simt::Site site = {}) {
  const int from = simt::lane() + static_cast<int>(by);
  return static_cast<unsigned>(simt::exchange(mask, value, from < 32 ? from : simt::lane(), site));
}
