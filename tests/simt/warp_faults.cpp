// A kernel with warp collectives, right or with a fault that the shim must name: warp_faults FAULT.
#include <cstdio>
#include <string>

#include "simt.h"

namespace {

constexpr unsigned kAll = 0xFFFFFFFFu;

__global__ void sum_pairs(unsigned* out, int fault) {
  const unsigned lane = threadIdx.x;
  const unsigned value = lane * lane;
  unsigned mask = kAll;
  if (fault == 1 && lane < 16) mask = 0x0000FFFFu;  // the partner is lane + 16
  if (fault == 2) mask = 0xFFFFFFFEu;               // lane 0 calls all the same
  if (fault == 3) mask = lane < 16 ? 0x0001FFFFu : 0xFFFF0000u;
  if (fault == 4 && lane == 0) {
    __syncthreads();
    return;
  }
  const unsigned other =
      fault == 3 ? __shfl_sync(mask, value, static_cast<int>(lane)) : __shfl_xor_sync(mask, value, 16);
  out[lane] = value + other;
}

}  // namespace

#if defined(SIMT_CHECK)
#include "races.h"
#endif

int main(int argc, char** argv) {
  const std::string names[] = {"none", "mask without the source", "mask without the caller", "masks that overlap",
                               "barrier that some skip"};
  unsigned out[32];
  int fault = 0;
  for (int i = 0; i < 5; i++)
    if (argc == 2 && names[i] == argv[1]) fault = i;
#if defined(SIMT_CHECK)
  simt::allow(out, sizeof out, true);
#endif
  DEV_LAUNCH(sum_pairs, 1, 32, nullptr, out, fault);
  for (unsigned lane = 0; lane < 32; lane++) {
    const unsigned partner = lane ^ 16;
    if (out[lane] != lane * lane + partner * partner) {
      printf("lane %u is wrong\n", lane);
      return 1;
    }
  }
  return 0;
}
