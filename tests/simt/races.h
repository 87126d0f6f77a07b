// What the scheduler tells the checker (races.cpp) in a build with -DSIMT_CHECK, and what a test tells it.
#pragma once

#include <cstddef>

namespace simt {

// A kernel may read, or with `writable` write, these bytes. Nothing else but shared memory and its own stack.
void allow(const void* data, size_t bytes, bool writable);
void forget_allowed();

void check_stack(const void* low, size_t bytes);
void check_launch(const void* argument, size_t bytes);
void check_block(unsigned block, unsigned threads, const void* shared_low, size_t shared_bytes);
void check_barrier();
void check_warp(int warp, unsigned mask);

}  // namespace simt
