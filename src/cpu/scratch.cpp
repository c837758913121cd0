// SPDX-License-Identifier: Apache-2.0
// cpu: scratch memory is kept in a free list from call to call, since mapping it again would take most of the time of
// a small call. The list keeps at most one block a core; calls from more threads than that free the rest.
#include "src/cpu/scratch.hpp"

#include <mutex>
#include <new>
#include <utility>

#include "src/base/cores.hpp"
#include "src/base/fork.hpp"

namespace froghopper::cpu {

struct Block {
  Block* next;
  size_t floats;  // they begin 64 bytes after the block
};

namespace {

constexpr size_t head_bytes = 64;  // keeps the floats aligned
static_assert(sizeof(Block) <= head_bytes);

std::mutex mutex;  // guards everything below
Block* free_list = nullptr;
int64_t free_count = 0;
bool closed = false;
[[maybe_unused]] const bool forks = unlocked_in_children<mutex>();

Block* allocate(size_t floats) {
  void* const bytes = ::operator new (head_bytes + floats * sizeof(float), std::align_val_t{64}, std::nothrow);
  return bytes ? new (bytes) Block{nullptr, floats} : nullptr;
}

void release(Block* block) { ::operator delete (block, std::align_val_t{64}); }

// The block that was freed last, which may still be in the cache. Null: the list is empty.
Block* from_free_list() {
  const std::lock_guard lock(mutex);
  if (!free_list) return nullptr;
  --free_count;
  return std::exchange(free_list, free_list->next);
}

void to_free_list(Block* block, int64_t most) {
  {
    const std::lock_guard lock(mutex);
    if (!closed && free_count < most) {
      block->next = std::exchange(free_list, block);
      ++free_count;
      return;
    }
  }
  release(block);
}

// Runs at dlclose and at the end of the process. Calls of other threads that are running free their own blocks.
struct Closer {
  ~Closer() {
    const std::lock_guard lock(mutex);
    closed = true;
    while (free_list) release(std::exchange(free_list, free_list->next));
  }
} closer;

}  // namespace

Scratch::Scratch(int64_t threads, size_t floats) : most_free_(cores()) {
  blocks_.reserve(threads);
  while (this->threads() < threads) {
    Block* block = from_free_list();
    while (block && block->floats < floats) {  // made for a smaller head dim
      release(block);
      block = from_free_list();
    }
    if (!block) block = allocate(floats);
    if (!block) return;
    blocks_.push_back(block);
  }
}

// In the order in which the next call should find them.
Scratch::~Scratch() {
  while (!blocks_.empty()) {
    to_free_list(blocks_.back(), most_free_);
    blocks_.pop_back();
  }
}

float* Scratch::of(int64_t thread) const {
  return reinterpret_cast<float*>(reinterpret_cast<char*>(blocks_[thread]) + head_bytes);
}

}  // namespace froghopper::cpu
