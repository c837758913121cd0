// SPDX-License-Identifier: Apache-2.0
// plan: CTAs that take work items, and how long they are busy. docs/4-planning.md, "How long it takes".
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "src/plan/time.hpp"

namespace froghopper {

inline double time_of(const Load& load, const Rate& rate) {
  return load.iterations * rate.iteration_us + load.items * rate.item_us;
}

// CTAs that take items: each goes to the first that asks for one. They ask when so many iterations of the item that
// they have are left; of two at the same time the one asks first that began first.
class Workers {
 public:
  Workers(int count, const Rate& rate, double iterations_left = 0)
      : rate_(rate), iterations_left_(iterations_left), heap_(std::max(count, 1)) {}
  void take(const Load& item) {
    std::ranges::pop_heap(heap_, std::greater());
    Worker& first = heap_.back();
    const double begins = first.us;
    first.us += time_of(item, rate_);
    first.asks = iterations_left_ == 0
                     ? first.us
                     : begins + std::max(0.0, item.iterations - iterations_left_) * rate_.iteration_us;
    first.number = ++taken_;
    add(first.load, item), add(all_, item);
    std::ranges::push_heap(heap_, std::greater());
  }
  const Load& all() const { return all_; }
  const Load& busiest() const { return std::ranges::max_element(heap_, {}, &Worker::us)->load; }

 private:
  struct Worker {
    double us = 0, asks = 0;
    int64_t number = 0;
    Load load;
    bool operator>(const Worker& other) const {
      return asks != other.asks ? asks > other.asks : number > other.number;
    }
  };
  static void add(Load& sum, const Load& item) { sum.iterations += item.iterations, sum.items += item.items; }

  Rate rate_;
  double iterations_left_;
  int64_t taken_ = 0;
  std::vector<Worker> heap_;  // the first to ask on top
  Load all_;
};

}  // namespace froghopper
