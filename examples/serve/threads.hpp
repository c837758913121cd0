// SPDX-License-Identifier: Apache-2.0
// Threads that share the plain loops of the model, and sleep in between.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace serve {

class Threads {
 public:
  explicit Threads(int64_t count) {
    for (int64_t i = 1; i < count; ++i) helpers_.emplace_back([this, i] { help(i); });
  }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;
  ~Threads() {
    job_ = nullptr;
    round_.fetch_add(1);
    round_.notify_all();
    for (std::thread& helper : helpers_) helper.join();
  }

  // Calls job(begin, end) for parts of 0 to count, side by side, and returns when all are done. A job does not throw.
  void share(int64_t count, const std::function<void(int64_t begin, int64_t end)>& job) {
    const auto threads = static_cast<int64_t>(helpers_.size()) + 1;
    part_ = (count + threads - 1) / threads, count_ = count, job_ = &job;
    busy_.store(threads - 1);
    round_.fetch_add(1);
    round_.notify_all();
    do_part(0);
    while (const int64_t busy = busy_.load()) busy_.wait(busy);
  }

 private:
  void help(int64_t which) {
    for (uint64_t seen = 0;; ++seen) {
      round_.wait(seen);
      if (job_ == nullptr) return;
      do_part(which);
      if (busy_.fetch_sub(1) == 1) busy_.notify_one();
    }
  }

  void do_part(int64_t which) const {
    const int64_t begin = which * part_, end = std::min(begin + part_, count_);
    if (begin < end) (*job_)(begin, end);
  }

  std::atomic<uint64_t> round_ = 0;
  std::atomic<int64_t> busy_ = 0;
  int64_t part_ = 0, count_ = 0;
  const std::function<void(int64_t, int64_t)>* job_ = nullptr;
  std::vector<std::thread> helpers_;
};

}  // namespace serve
