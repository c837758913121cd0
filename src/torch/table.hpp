// SPDX-License-Identifier: Apache-2.0
// torch: the calls that a thread has made before, found by all that a call is but its addresses.
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

#include <froghopper/froghopper.h>

#include "src/torch/tensors.hpp"

namespace froghopper::torch {

// Everything but addresses, in numbers; two calls with one key are the same problem.
constexpr int most_tensors = 13;
struct Key {
  std::array<int64_t, 3 + most_tensors*(2 + 2 * most_dims)> words;
  size_t count = 0;
  uint64_t hash = 0xcbf29ce484222325;

  // FNV-1a, a word at a time, with its high bits brought down.
  void add(int64_t word) {
    words[count++] = word;
    hash = (hash ^ static_cast<uint64_t>(word)) * 0x100000001b3;
    hash ^= hash >> 29;
  }
  void add(const Described& x) {
    add(x.dim | int64_t{x.dtype} << 8 | int64_t{x.device} << 24 | int64_t{x.index} << 40);
    for (int64_t i = 0; i < x.dim; ++i) add(x.sizes[i]), add(x.strides[i]);
  }
  bool operator==(const Key& other) const {
    return hash == other.hash && count == other.count &&
           std::memcmp(words.data(), other.words.data(), count * sizeof words[0]) == 0;
  }
};

struct Known {
  Key key;
  fh_plan* plan = nullptr;
  size_t workspace_bytes = 0;
  std::array<int64_t, 3> slopes{};  // strides of alibi_slopes
  uintptr_t aligned = 0;            // bits of addresses that must be zero

  Known() = default;
  Known(const Known&) = delete;
  Known& operator=(const Known&) = delete;
  ~Known() { fh_plan_destroy(plan); }
};

// A thread's calls that were made before. A new one takes the place of the oldest of its group.
class Table {
 public:
  const Known* find(const Key& key) const {
    for (const auto& known : groups_[key.hash % groups])
      if (known && known->key == key) return known.get();
    return nullptr;
  }
  // The ticket of a key that Python may keep next.
  int64_t ask(const Key& key) {
    asked_ = key;
    return ++ticket_;
  }
  fh_status keep(int64_t ticket, const fh_problem& problem, const char* target, const int64_t* slopes,
                 int64_t alignment) {
    if (ticket != ticket_ || find(asked_)) return FH_OK;  // another call was in between
    std::unique_ptr<Known> made(new (std::nothrow) Known);
    if (!made) return FH_OK;
    if (const fh_status status = fh_plan_create(&problem, target, &made->plan)) return status;
    made->key = asked_;
    made->workspace_bytes = fh_plan_workspace_bytes(made->plan);
    std::copy_n(slopes, 3, made->slopes.begin());
    made->aligned = static_cast<uintptr_t>(alignment - 1);
    auto& group = groups_[asked_.hash % groups];
    std::rotate(group.begin(), group.end() - 1, group.end());
    group[0] = std::move(made);
    return FH_OK;
  }

 private:
  static constexpr size_t groups = 64, group_size = 4;  // 256 problems of about 1.3 KB
  std::array<std::array<std::unique_ptr<Known>, group_size>, groups> groups_;
  Key asked_;
  int64_t ticket_ = 0;
};

}  // namespace froghopper::torch
