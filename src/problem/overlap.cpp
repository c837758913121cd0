// SPDX-License-Identifier: Apache-2.0
// problem: the bytes of a tensor are runs of equal length at the sums of its strides. Two tensors share a byte where a
// difference of such sums falls into an interval as long as both runs. With the second one's axes counted from their
// ends all terms are positive, and a search over the strides, the largest first, looks only where the others still
// reach.
#include "src/problem/overlap.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <span>

#include "src/base/text.hpp"

namespace froghopper {
namespace {

struct Axis {
  int64_t stride, most;  // bytes; steps, at least 1 of each
};

// Up to three axes of each of two tensors, the largest stride first. Axes with one stride are one: slices of a buffer
// share theirs.
struct Axes {
  std::array<Axis, 6> all;
  size_t count = 0;

  void add(const Axis& axis) {
    size_t place = 0;
    while (place < count && all[place].stride > axis.stride) ++place;
    if (place < count && all[place].stride == axis.stride) {
      all[place].most += axis.most;
      return;
    }
    for (size_t i = count++; i > place; --i) all[i] = all[i - 1];
    all[place] = axis;
  }
  std::span<const Axis> span() const { return {all.data(), count}; }
};

// The bytes of a tensor: runs without a gap, at the sums of the strides.
struct Memory {
  uintptr_t begin;
  int64_t run;    // bytes of each run
  int64_t reach;  // from the first byte of the first run to that of the last one
  Axes axes;

  int64_t bytes() const { return reach + run; }  // from the first to one past the last
};

Memory memory_of(const View& view) {
  const int64_t size = size_of(view.element);
  Memory memory{reinterpret_cast<uintptr_t>(view.data), view.dim * size, 0, {}};
  std::array<Axis, 3> axes = {{{view.stride_batch * size, view.batch - 1},
                               {view.stride_seq * size, view.seq - 1},
                               {view.stride_head * size, view.heads - 1}}};
  std::ranges::sort(axes, {}, &Axis::stride);
  for (const Axis& axis : axes) {
    if (axis.most == 0 || axis.stride == 0) continue;
    if (axis.stride <= memory.run && memory.axes.count == 0) {  // the next run begins where the last one ends
      memory.run += axis.most * axis.stride;
    } else {
      memory.axes.add(axis);
      memory.reach += axis.most * axis.stride;
    }
  }
  return memory;
}

// Calls of falls_into(). Where strides are multiples of one another a few are enough; these take some 50 us.
constexpr int search_most = 4096;

// Whether some sum of the strides, each as often as its axis has steps, is in [low, high].
Overlap falls_into(std::span<const Axis> axes, int64_t low, int64_t high, int& calls_left) {
  int64_t all = 0, common = 0;
  for (const Axis& axis : axes) all += axis.stride * axis.most, common = std::gcd(common, axis.stride);
  if (high < 0 || low > all) return Overlap::none;
  if (low <= 0 || high >= all) return Overlap::some;  // no step at all, or all of them
  if (high / common * common < low) return Overlap::none;
  if (axes.size() == 1) return Overlap::some;
  if (--calls_left < 0) return Overlap::unclear;
  const auto [stride, most] = axes.front();
  const int64_t rest = all - stride * most;
  const int64_t last = std::min(most, high / stride);
  for (int64_t steps = low > rest ? (low - rest - 1) / stride + 1 : 0; steps <= last; ++steps) {
    const Overlap found = falls_into(axes.subspan(1), low - steps * stride, high - steps * stride, calls_left);
    if (found != Overlap::none) return found;
  }
  return Overlap::none;
}

Overlap overlap_of(const Memory& a, const Memory& b) {
  const bool a_first = a.begin <= b.begin;
  const Memory &one = a_first ? a : b, &other = a_first ? b : a;
  const uintptr_t apart = other.begin - one.begin;
  if (apart >= static_cast<uintptr_t>(one.bytes())) return Overlap::none;
  // x a step of one and y of the other, counted from its last run: x + y = apart + reach + (their places in the runs).
  const int64_t middle = static_cast<int64_t>(apart) + other.reach;
  Axes axes = one.axes;
  for (const Axis& axis : other.axes.span()) axes.add(axis);
  int calls_left = search_most;
  return falls_into(axes.span(), middle - (one.run - 1), middle + (other.run - 1), calls_left);
}

// One that is written, and another one.
std::string wrong_pair(const char* written, const Memory& its, const char* name, const Memory& other,
                       bool both_written, Overlap overlap) {
  const auto address = [](const Memory& memory) { return fmt::ptr(reinterpret_cast<const void*>(memory.begin)); };
  const char* const owner = both_written ? name : written;
  const std::string why =
      both_written ? "both are written" : text("{} is written while {} is still read", written, name);
  if (overlap == Overlap::unclear)
    return text(
        "{} at {} and {} at {} lie between each other with strides that cannot be told apart; {}. Give {} its own "
        "memory.",
        owner, address(both_written ? other : its), both_written ? written : name,
        address(both_written ? its : other), why, owner);
  if (its.begin == other.begin)
    return text("{} and {} are at the same address {}; {}. Give {} its own memory.", owner,
                both_written ? written : name, address(its), why, owner);
  // What strides and sizes make of a tensor may reach past its allocation, into the next one.
  const auto last = [](const Memory& memory) {
    return fmt::ptr(reinterpret_cast<const void*>(memory.begin + static_cast<uintptr_t>(memory.bytes()) - 1));
  };
  const Memory &first = both_written ? other : its, &second = both_written ? its : other;
  return text(
      "{0} at {1} to {2} and {3} at {4} to {5} have memory in common; {6}. Give {0} its own memory, or check the "
      "strides and sizes of both.",
      owner, address(first), last(first), both_written ? written : name, address(second), last(second), why);
}

}  // namespace

Overlap overlap_of(const View& a, const View& b) { return overlap_of(memory_of(a), memory_of(b)); }

std::string shared_memory(const Problem& p, const Views& views) {
  struct Present {
    const char* name;
    View Views::*view;
    bool written;
    Memory memory;
  };
  std::array<Present, sizeof(Views) / sizeof(View)> all;
  size_t count = 0;
  for (const Tensor& tensor : tensors())
    if (const View& view = views.*tensor.view; view.data)
      all[count++] = {tensor.name, tensor.view, is_written(tensor.use(p)), memory_of(view)};
  const std::span present(all.data(), count);
  for (const Present& out : present) {
    if (!out.written) continue;
    for (const Present& other : present) {
      if (&other == &out || (p.appends() && in_place(views, out.view, other.view))) continue;
      const Overlap overlap = overlap_of(out.memory, other.memory);
      if (overlap != Overlap::none)
        return wrong_pair(out.name, out.memory, other.name, other.memory, other.written, overlap);
    }
  }
  return {};
}

std::string shared_with_workspace(const Problem& p, const Views& views, const void* workspace, size_t bytes) {
  if (bytes == 0) return {};
  const Memory its{reinterpret_cast<uintptr_t>(workspace), static_cast<int64_t>(bytes), 0, {}};
  for (const Tensor& tensor : tensors()) {
    const View& view = views.*tensor.view;
    if (!view.data) continue;
    if (const Overlap overlap = overlap_of(memory_of(view), its); overlap != Overlap::none)
      return wrong_pair("workspace", its, tensor.name, memory_of(view), is_written(tensor.use(p)), overlap);
  }
  return {};
}

}  // namespace froghopper
