// SPDX-License-Identifier: Apache-2.0
// cpu: blocks of scratch wait on a shelf from call to call: the system would take most of a small call's time to map
// them again. The shelf keeps one a core at most; calls from more threads than that return the rest.
#include "src/cpu/scratch.hpp"

#include <mutex>
#include <new>
#include <utility>

#include "src/base/cores.hpp"
#include "src/base/fork.hpp"

namespace froghopper::cpu {

struct Block {
  Block* next;
  size_t floats;  // from 64 bytes after the block's start on
};

namespace {

constexpr size_t head_bytes = 64;  // so that the floats are aligned as the block is
static_assert(sizeof(Block) <= head_bytes);

std::mutex mutex;  // of all below
Block* shelf = nullptr;
int64_t on_shelf = 0;
bool closed = false;
[[maybe_unused]] const bool forks = unlocked_in_children<mutex>();

Block* allocate(size_t floats) {
  void* const bytes = ::operator new (head_bytes + floats * sizeof(float), std::align_val_t{64}, std::nothrow);
  return bytes ? new (bytes) Block{nullptr, floats} : nullptr;
}

void release(Block* block) { ::operator delete (block, std::align_val_t{64}); }

// The block that was put there last: the cache may still know it. Null: the shelf is empty.
Block* from_shelf() {
  const std::lock_guard lock(mutex);
  if (!shelf) return nullptr;
  --on_shelf;
  return std::exchange(shelf, shelf->next);
}

void to_shelf(Block* block, int64_t most) {
  {
    const std::lock_guard lock(mutex);
    if (!closed && on_shelf < most) {
      block->next = std::exchange(shelf, block);
      ++on_shelf;
      return;
    }
  }
  release(block);
}

// At dlclose and at the end of the process. What calls of other threads still use, they release themselves.
struct Closer {
  ~Closer() {
    const std::lock_guard lock(mutex);
    closed = true;
    while (shelf) release(std::exchange(shelf, shelf->next));
  }
} closer;

}  // namespace

Scratch::Scratch(int64_t threads, size_t floats) : most_on_shelf_(cores()) {
  blocks_.reserve(threads);
  while (this->threads() < threads) {
    Block* block = from_shelf();
    while (block && block->floats < floats) {  // it was made for a smaller head dim
      release(block);
      block = from_shelf();
    }
    if (!block) block = allocate(floats);
    if (!block) return;
    blocks_.push_back(block);
  }
}

// In the order in which the next call shall find them.
Scratch::~Scratch() {
  while (!blocks_.empty()) {
    to_shelf(blocks_.back(), most_on_shelf_);
    blocks_.pop_back();
  }
}

float* Scratch::of(int64_t thread) const {
  return reinterpret_cast<float*>(reinterpret_cast<char*>(blocks_[thread]) + head_bytes);
}

}  // namespace froghopper::cpu
