// Race and bounds checker. Kernels are compiled with -fsanitize=thread (compile step only); this file provides the
// callbacks in place of libtsan, under CUDA's rules: two accesses of one launch to a byte, one of them a write, must be
// ordered by the same thread, by a __syncthreads of their block or by a warp collective of both lanes. Nothing orders
// two blocks. An access must lie in shared memory, in the fiber's stack or in what the test allowed.
#include "races.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "simt.h"

namespace simt {
namespace {

constexpr int kWarp = 32, kPageBytes = 4096;

// An access: by which thread, after how many barriers of its block, after how many collectives of its thread.
struct Access {
  uint32_t launch = 0, block = 0, epoch = 0, clock = 0;
  int thread = 0;
  void* where = nullptr;
};
struct Byte {
  Access write, read, other_read;  // the last two reads by different threads
};
struct Page {
  Byte bytes[kPageBytes];
};
struct Range {
  uintptr_t low, high;
  bool writable;
};
// What a thread knows: up to which collective of each lane of its warp it is ordered after.
struct Thread {
  uint32_t clock = 1;
  uint32_t known[kWarp] = {};
};

std::unordered_map<uintptr_t, std::unique_ptr<Page>> pages;
std::vector<Thread> threads;
std::vector<Range> stacks, allowed;
Range shared_memory, arguments;
uint32_t launch_number, block, epoch;
std::set<std::pair<void*, void*>> reported;

std::string source_line(void* where) {
  char command[200], line[400] = "?";
  snprintf(command, sizeof command, "addr2line -s -e /proc/%d/exe %p", getpid(),
           static_cast<void*>(static_cast<char*>(where) - 1));
  if (FILE* pipe = popen(command, "r")) {
    if (fgets(line, sizeof line, pipe)) line[strcspn(line, "\n")] = 0;
    pclose(pipe);
  }
  return line;
}

// The first word stays fixed: the tests look for it.
void report(const char* what, void* first, void* second, int thread) {
  if (!reported.insert({first, second}).second) return;
  fprintf(stderr, "SIMT %s: block %u thread %d\n", what, block, thread);
  if (first) fprintf(stderr, "  first  %s\n", source_line(first).c_str());
  fprintf(stderr, "  second %s\n", source_line(second).c_str());
}

bool ordered(const Access& before, int thread) {
  if (before.launch != launch_number) return true;
  if (before.block != block) return false;
  if (before.thread == thread || before.epoch < epoch) return true;
  return before.thread / kWarp == thread / kWarp && before.clock <= threads[thread].known[before.thread % kWarp];
}

bool inside(const Range& range, uintptr_t address, size_t bytes, bool write) {
  return address >= range.low && address + bytes <= range.high && (range.writable || !write);
}
bool inside(const std::vector<Range>& ranges, uintptr_t address, size_t bytes, bool write) {
  return std::any_of(ranges.begin(), ranges.end(), [&](const Range& r) { return inside(r, address, bytes, write); });
}

// threadIdx, blockDim and the like, and the arguments: constant in a launch.
bool is_constant(uintptr_t address, size_t bytes) {
  const auto range = [](const void* p, size_t size) {
    const auto low = reinterpret_cast<uintptr_t>(p);
    return Range{low, low + size, false};
  };
  const Range ranges[] = {range(&current, sizeof current), range(current, sizeof *current),
                          range(&block_dim, sizeof block_dim), range(&grid_dim, sizeof grid_dim), arguments};
  return std::any_of(std::begin(ranges), std::end(ranges),
                     [&](const Range& r) { return inside(r, address, bytes, false); });
}

void access(const void* p, size_t bytes, bool write, void* where) {
  if (!current) return;
  const auto address = reinterpret_cast<uintptr_t>(p);
  if (inside(stacks, address, bytes, write) || (!write && is_constant(address, bytes))) return;
  const int thread = static_cast<int>(current->thread.x);
  if (!inside(shared_memory, address, bytes, write) && !inside(allowed, address, bytes, write))
    report(write ? "BOUNDS write" : "BOUNDS read", nullptr, where, thread);
  const Access now{launch_number, block, epoch, threads[thread].clock, thread, where};
  for (uintptr_t a = address; a < address + bytes; a++) {
    auto& page = pages[a / kPageBytes];
    if (!page) page = std::make_unique<Page>();
    Byte& byte = page->bytes[a % kPageBytes];
    if (!ordered(byte.write, thread))
      report(write ? "RACE write after write" : "RACE read after write", byte.write.where, where, thread);
    if (write) {
      if (!ordered(byte.read, thread)) report("RACE write after read", byte.read.where, where, thread);
      if (!ordered(byte.other_read, thread)) report("RACE write after read", byte.other_read.where, where, thread);
      byte = {now, {}, {}};
    } else {
      if (byte.read.thread != thread || byte.read.block != block) byte.other_read = byte.read;
      byte.read = now;
    }
  }
}

// A race or a stray access fails the run, after all of them are known.
struct AtExit {
  ~AtExit() {
    if (!reported.empty()) _exit(66);
  }
} at_exit;

}  // namespace

void allow(const void* data, size_t bytes, bool writable) {
  const auto low = reinterpret_cast<uintptr_t>(data);
  allowed.push_back({low, low + bytes, writable});
}
void forget_allowed() { allowed.clear(); }

void check_stack(const void* low, size_t bytes) {
  const auto address = reinterpret_cast<uintptr_t>(low);
  stacks.push_back({address, address + bytes, true});
}
void check_launch(const void* argument, size_t bytes) {
  launch_number++;
  const auto address = reinterpret_cast<uintptr_t>(argument);
  arguments = {address, address + bytes, false};
}
void check_block(unsigned number, unsigned num_threads, const void* shared_low, size_t shared_bytes) {
  block = number;
  epoch = 1;
  threads.assign(num_threads, {});
  const auto low = reinterpret_cast<uintptr_t>(shared_low);
  shared_memory = {low, low + shared_bytes, true};
  // The next block has shared memory of its own, at the same address here.
  for (uintptr_t page = low / kPageBytes; page <= (low + shared_bytes) / kPageBytes; page++) pages.erase(page);
}
void check_barrier() {
  epoch++;
  for (Thread& thread : threads) thread.clock++;
}
void check_warp(int warp, unsigned mask) {
  uint32_t known[kWarp] = {};
  for (int i = 0; i < kWarp; i++) {
    if (!(mask >> i & 1)) continue;
    Thread& thread = threads[warp * kWarp + i];
    thread.known[i] = thread.clock++;
    for (int j = 0; j < kWarp; j++) known[j] = std::max(known[j], thread.known[j]);
  }
  for (int i = 0; i < kWarp; i++)
    if (mask >> i & 1) memcpy(threads[warp * kWarp + i].known, known, sizeof known);
}

}  // namespace simt

#define CALLER __builtin_return_address(0)
#define ACCESS(size)                                                                  \
  void __tsan_read##size(void* p) { simt::access(p, size, false, CALLER); }           \
  void __tsan_write##size(void* p) { simt::access(p, size, true, CALLER); }           \
  void __tsan_unaligned_read##size(void* p) { simt::access(p, size, false, CALLER); } \
  void __tsan_unaligned_write##size(void* p) { simt::access(p, size, true, CALLER); }

extern "C" {
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_read_range(void* p, unsigned long n) { simt::access(p, n, false, CALLER); }
void __tsan_write_range(void* p, unsigned long n) { simt::access(p, n, true, CALLER); }
void* __tsan_memcpy(void* to, const void* from, size_t n) {
  simt::access(from, n, false, CALLER);
  simt::access(to, n, true, CALLER);
  return memcpy(to, from, n);
}
void* __tsan_memset(void* to, int value, size_t n) {
  simt::access(to, n, true, CALLER);
  return memset(to, value, n);
}
}
