// SPDX-License-Identifier: Apache-2.0
// Continuous batching: which requests run in a step, and with how many rows. Requests join and leave between steps. A
// prompt is read in chunks, beside sequences that decode. Where pages run out, the youngest request goes back to the
// queue, and later computes again what was not kept.
#pragma once
#include <algorithm>
#include <deque>
#include <list>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "batch.hpp"
#include "pool.hpp"

namespace serve {

struct Request {
  int64_t number = 0, arrival = 0;  // arrival: the first step that may compute it
  std::vector<int32_t> tokens;      // the prompt, and then the answer as it grows
  int64_t prompt = 0, answer = 0;   // how many tokens the prompt has, and how many the answer shall have

  // While it runs.
  std::vector<int32_t> pages;
  uint64_t contents = 0;  // of its pages that are full, as Pool names them
  int64_t computed = 0;   // rows of k and v in these pages

  int64_t size() const { return static_cast<int64_t>(tokens.size()); }
  bool finished() const { return size() == prompt + answer; }
};

class Scheduler {
 public:
  Scheduler(Pool& pool, const Limits& limits) : pool_(pool), limits_(limits) {}

  void submit(Request request) {
    const int64_t most = std::min(limits_.context, limits_.pages * Pool::page_size);
    if (request.prompt + request.answer > most)
      throw std::invalid_argument("request " + std::to_string(request.number) + " must have at most " +
                                  std::to_string(most) + " tokens, for which there is room, but has " +
                                  std::to_string(request.prompt + request.answer) + ". Raise --context or --pages.");
    waiting_.push_back(std::move(request));
  }

  bool idle() const { return waiting_.empty() && running_.empty(); }
  const std::vector<Request>& finished() const { return finished_; }
  int64_t preempted() const { return preempted_; }

  // What to compute in this step. Each running sequence gets a row at least; the oldest get the rows that are left.
  Batch next(int64_t step) {
    admit(step);
    Batch batch;
    auto younger = static_cast<int64_t>(running_.size());
    for (auto request = running_.begin(); request != running_.end(); ++request) {
      const int64_t left = limits_.rows - batch.rows() - --younger;
      const int64_t rows = std::min(left, request->size() - request->computed);
      while (!reserve(*request, request->computed + rows)) {
        const bool itself = std::next(request) == running_.end();
        preempt_youngest();
        if (itself) return batch;
        --younger;
      }
      add(batch, *request, rows);
    }
    return batch;
  }

  // The batch is computed: `sampled` has the next token of each sequence that it names in batch.sampled.
  void done(const Batch& batch, std::span<const int32_t> sampled) {
    auto request = running_.begin();
    for (const int32_t length : batch.lengths) {
      publish(*request, length);
      if (length == request->size()) {
        request->tokens.push_back(sampled.front());
        sampled = sampled.subspan(1);
      }
      if (request->finished()) {
        pool_.release(request->pages);
        finished_.push_back(std::move(*request));
        request = running_.erase(request);
      } else {
        ++request;
      }
    }
  }

 private:
  // Requests that have arrived begin to run, in the order they came, while there is room for what they have to read.
  // What their prompts have in common with others' is not computed again, but for the last token, whose logits nobody
  // has kept.
  void admit(int64_t step) {
    int64_t promised = 0;  // pages that sequences which run need for what they still have to read
    for (const Request& request : running_)
      promised += std::max<int64_t>(0, pages_for(request.size()) - static_cast<int64_t>(request.pages.size()));
    while (!waiting_.empty() && waiting_.front().arrival <= step &&
           static_cast<int64_t>(running_.size()) < limits_.sequences &&
           pool_.available() - promised >= pages_for(waiting_.front().size())) {
      Request request = std::move(waiting_.front());
      waiting_.pop_front();
      auto prefix = pool_.share(std::span(request.tokens).first(request.tokens.size() - 1));
      request.pages = std::move(prefix.pages), request.contents = prefix.contents;
      request.computed = static_cast<int64_t>(request.pages.size()) * Pool::page_size;
      promised += pages_for(request.size()) - static_cast<int64_t>(request.pages.size());
      running_.push_back(std::move(request));
    }
  }

  // Whether the request has pages for so many rows; it takes those that it lacks.
  bool reserve(Request& request, int64_t rows) {
    while (static_cast<int64_t>(request.pages.size()) < pages_for(rows)) {
      const auto page = pool_.take();
      if (!page) return false;
      request.pages.push_back(*page);
    }
    return true;
  }

  void preempt_youngest() {
    Request request = std::move(running_.back());
    running_.pop_back();
    pool_.release(request.pages);
    request.pages.clear();
    waiting_.push_front(std::move(request));
    ++preempted_;
  }

  static void add(Batch& batch, const Request& request, int64_t rows) {
    for (int64_t row = request.computed; row < request.computed + rows; ++row) {
      batch.tokens.push_back(request.tokens[row]);
      batch.positions.push_back(static_cast<int32_t>(row));
      batch.slots.push_back(
          static_cast<int32_t>(request.pages[row / Pool::page_size] * Pool::page_size + row % Pool::page_size));
    }
    batch.ends.push_back(static_cast<int32_t>(batch.rows()));
    batch.lengths.push_back(static_cast<int32_t>(request.computed + rows));
    batch.pages.push_back(request.pages);
    if (request.computed + rows == request.size()) batch.sampled.push_back(batch.rows() - 1);
  }

  // The request has `computed` rows now. Pages that became full may be shared.
  void publish(Request& request, int64_t computed) {
    const std::span<const int32_t> tokens(request.tokens);
    for (int64_t page = request.computed / Pool::page_size; page < computed / Pool::page_size; ++page)
      request.contents = pool_.publish(request.pages[page], request.contents, tokens.subspan(page * Pool::page_size));
    request.computed = computed;
  }

  static int64_t pages_for(int64_t rows) { return (rows + Pool::page_size - 1) / Pool::page_size; }

  Pool& pool_;
  Limits limits_;
  std::deque<Request> waiting_;  // in the order of arrival
  std::list<Request> running_;   // from the oldest to the youngest
  std::vector<Request> finished_;
  int64_t preempted_ = 0;
};

}  // namespace serve
