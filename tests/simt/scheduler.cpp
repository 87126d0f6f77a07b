// The fiber scheduler of simt.h. One OS thread; a fiber runs until it ends or waits in a barrier or a warp collective.
// Build with -DSIMT_ASAN beside -fsanitize=address, or with -DSIMT_CHECK for the race checker.
#include "simt.h"

#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <vector>

#if defined(SIMT_ASAN)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(SIMT_CHECK)
#include "races.h"
#endif

namespace simt {

Place* current;
uint3 block_dim, grid_dim;

namespace {

constexpr size_t kStackBytes = 256 << 10, kGuardBytes = 4096, kSharedBytes = 227 << 10;
constexpr int kWarp = 32;

enum State { kReady, kInBarrier, kInWarp, kDone };

struct Fiber : Place {
  State state = kDone;
  int index = 0;  // in the block
  Site site;      // where it waits
  char* stack = nullptr;
  ucontext_t context;
  void* fake_stack = nullptr;  // ASan's
};

// Lanes of one warp that meet under one mask. Two sets of values: a fast lane may come to the next collective before a
// slow one has read its value from this one.
struct Meeting {
  unsigned mask = 0, arrived = 0, generation = 0;
  Site site;
  uint64_t values[2][kWarp];
};

struct Array {
  const void* tag;
  char* data;
};

std::vector<Fiber> fibers;
std::vector<std::vector<Meeting>> warps;
std::vector<Array> arrays;
ucontext_t scheduler_context;
char* shared;
size_t shared_used;
int num_threads, num_live, num_waiting;
void (*entry_call)(void*);
void* entry_argument;
[[maybe_unused]] void* scheduler_fake_stack;
[[maybe_unused]] const void* scheduler_stack;
[[maybe_unused]] size_t scheduler_stack_bytes;

Fiber& self() { return *static_cast<Fiber*>(current); }

char* map_pages(size_t bytes) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) die("mmap failed", {});
  return static_cast<char*>(p);
}

void leave([[maybe_unused]] bool for_good) {
  Fiber& fiber = self();
#if defined(SIMT_ASAN)
  __sanitizer_start_switch_fiber(for_good ? nullptr : &fiber.fake_stack, scheduler_stack, scheduler_stack_bytes);
#endif
  swapcontext(&fiber.context, &scheduler_context);
#if defined(SIMT_ASAN)
  __sanitizer_finish_switch_fiber(fiber.fake_stack, &scheduler_stack, &scheduler_stack_bytes);
#endif
}

void wait(State state, Site site) {
  self().state = state;
  self().site = site;
  leave(false);
}

void entry() {
#if defined(SIMT_ASAN)
  __sanitizer_finish_switch_fiber(nullptr, &scheduler_stack, &scheduler_stack_bytes);
#endif
  entry_call(entry_argument);
  self().state = kDone;
  leave(true);
}

void resume(Fiber& fiber) {
  current = &fiber;
#if defined(SIMT_ASAN)
  __sanitizer_start_switch_fiber(&scheduler_fake_stack, fiber.stack, kStackBytes);
#endif
  swapcontext(&scheduler_context, &fiber.context);
#if defined(SIMT_ASAN)
  __sanitizer_finish_switch_fiber(scheduler_fake_stack, nullptr, nullptr);
#endif
  current = nullptr;
}

void prepare(Fiber& fiber, int index, unsigned block) {
  if (!fiber.stack) {
    fiber.stack = map_pages(kStackBytes);
    mprotect(fiber.stack, kGuardBytes, PROT_NONE);
#if defined(SIMT_CHECK)
    check_stack(fiber.stack, kStackBytes);
#endif
  }
#if defined(SIMT_ASAN)
  ASAN_UNPOISON_MEMORY_REGION(fiber.stack + kGuardBytes, kStackBytes - kGuardBytes);
#endif
  fiber.index = index;
  fiber.thread = {static_cast<unsigned>(index), 0, 0};
  fiber.block = {block, 0, 0};
  fiber.state = kReady;
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack;
  fiber.context.uc_stack.ss_size = kStackBytes;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, entry, 0);
}

// Orders of blocks, warps and lanes as SIMT_ORDER says.
struct Order {
  bool reverse = false, random = false;
  std::mt19937 generator;

  Order() {
    const char* order = getenv("SIMT_ORDER");
    if (!order || !strcmp(order, "fwd")) return;
    if (!strcmp(order, "rev"))
      reverse = true;
    else if (!strncmp(order, "rand:", 5))
      random = true, generator.seed(static_cast<unsigned>(atoi(order + 5)));
    else
      die("SIMT_ORDER is none of fwd, rev, rand:SEED", {});
  }
  std::vector<unsigned> operator()(unsigned n) {
    std::vector<unsigned> order(n);
    std::iota(order.begin(), order.end(), 0u);
    if (reverse) std::reverse(order.begin(), order.end());
    if (random) std::shuffle(order.begin(), order.end(), generator);
    return order;
  }
};

void fresh_shared_memory() {
  const char* text = getenv("SIMT_FILL");
  if (!shared) shared = map_pages(kSharedBytes);
#if defined(SIMT_ASAN)
  ASAN_UNPOISON_MEMORY_REGION(shared, kSharedBytes);
#endif
  memset(shared, text ? static_cast<int>(strtol(text, nullptr, 0)) : 0xA5, shared_used ? shared_used : kSharedBytes);
#if defined(SIMT_ASAN)
  ASAN_POISON_MEMORY_REGION(shared, kSharedBytes);
#endif
  shared_used = 64;
  arrays.clear();
}

void open_barrier() {
#if defined(SIMT_CHECK)
  check_barrier();
#endif
  num_waiting = 0;
  for (int i = 0; i < num_threads; i++)
    if (fibers[i].state == kInBarrier) fibers[i].state = kReady;
}

[[noreturn]] void deadlock(unsigned block) {
  fprintf(stderr, "SIMT ERROR: deadlock in block %u: %d of %d threads live, %d in __syncthreads\n", block, num_live,
          num_threads, num_waiting);
  for (int i = 0; i < num_threads; i++)
    if (fibers[i].state != kDone)
      fprintf(stderr, "  thread %d waits in %s at %s:%d\n", i,
              fibers[i].state == kInBarrier ? "__syncthreads" : "a warp collective", fibers[i].site.file,
              fibers[i].site.line);
  abort();
}

// Runs every ready lane of a warp once; whether any was.
bool step_warp(unsigned warp, Order& order) {
  bool progress = false;
  for (unsigned lane : order(kWarp)) {
    const int i = static_cast<int>(warp * kWarp + lane);
    if (i >= num_threads || fibers[i].state != kReady) continue;
    resume(fibers[i]);
    progress = true;
    if (fibers[i].state == kDone) num_live--;
  }
  return progress;
}

void run_block(unsigned block, Order& order) {
  fresh_shared_memory();
  const unsigned num_warps = static_cast<unsigned>(num_threads + kWarp - 1) / kWarp;
  warps.assign(num_warps, {});
  num_live = num_threads;
  num_waiting = 0;
  for (int i = 0; i < num_threads; i++) prepare(fibers[i], i, block);
#if defined(SIMT_CHECK)
  check_block(block, static_cast<unsigned>(num_threads), shared, kSharedBytes);
#endif
  while (num_live > 0) {
    bool progress = false;
    for (unsigned warp : order(num_warps))
      while (step_warp(warp, order)) progress = true;
    if (num_live > 0 && num_waiting == num_live) {
      open_barrier();
      progress = true;
    }
    if (!progress) deadlock(block);
  }
}

}  // namespace

void die(const char* what, Site site) {
  fprintf(stderr, "SIMT ERROR: %s at %s:%d", what, site.file, site.line);
  if (current) fprintf(stderr, ", block %u thread %u", current->block.x, current->thread.x);
  fprintf(stderr, "\n");
  abort();
}

int lane() { return self().index % kWarp; }

void barrier(Site site) {
  num_waiting++;
  wait(kInBarrier, site);
}

void* shared_array(const void* tag, size_t bytes) {
  for (const Array& array : arrays)
    if (array.tag == tag) return array.data;
  // A gap after each array, which ASan keeps poisoned.
  const size_t at = (shared_used + 15) / 16 * 16;
  if (at + bytes + 64 > kSharedBytes) die("over 227 KiB of shared memory", {});
  shared_used = at + bytes + 64;
#if defined(SIMT_ASAN)
  ASAN_UNPOISON_MEMORY_REGION(shared + at, bytes);
#endif
  arrays.push_back({tag, shared + at});
  return shared + at;
}

uint64_t exchange(unsigned mask, uint64_t value, int from, Site site) {
  const int index = self().index, warp = index / kWarp, lane = index % kWarp;
  if (!(mask >> lane & 1)) die("warp collective: the calling lane is not in its mask", site);
  if (!(mask >> from & 1)) die("shuffle reads a lane outside the mask", site);
  for (const Meeting& other : warps[warp])
    if (other.mask != mask && other.arrived != 0 && (other.mask & mask))
      die("warp collective: masks overlap but differ", site);
  auto& meetings = warps[warp];
  auto meeting = std::find_if(meetings.begin(), meetings.end(), [&](const Meeting& m) { return m.mask == mask; });
  if (meeting == meetings.end()) {
    meetings.emplace_back();
    meeting = meetings.end() - 1;
    meeting->mask = mask;
  }
  const long number = meeting - meetings.begin();  // a pointer would not survive another lane's emplace_back
  if (meeting->arrived == 0)
    meeting->site = site;
  else if (meeting->site.line != site.line)
    die("warp collective: lanes of a mask meet at different ones", site);
  const unsigned half = meeting->generation & 1;
  meeting->values[half][lane] = value;
  meeting->arrived |= 1u << lane;
  if (meeting->arrived == mask) {
    meeting->arrived = 0;
    meeting->generation++;
#if defined(SIMT_CHECK)
    check_warp(warp, mask);
#endif
    for (int i = 0; i < kWarp; i++)
      if (mask >> i & 1 && i != lane) fibers[warp * kWarp + i].state = kReady;
  } else {
    wait(kInWarp, site);
  }
  return warps[warp][number].values[half][from];
}

void run(unsigned grid, unsigned block, void (*call)(void*), void* argument, [[maybe_unused]] size_t bytes) {
  if (current) die("a launch within a kernel", {});
  if (grid < 1 || block < 1 || block > 1024) die("a grid or block of a size that no card takes", {});
  block_dim = {block, 1, 1};
  grid_dim = {grid, 1, 1};
  entry_call = call;
  entry_argument = argument;
  num_threads = static_cast<int>(block);
  if (static_cast<int>(fibers.size()) < num_threads) fibers.resize(block);
  Order order;
#if defined(SIMT_CHECK)
  check_launch(argument, bytes);
#endif
  for (unsigned b : order(grid)) run_block(b, order);
}

}  // namespace simt
