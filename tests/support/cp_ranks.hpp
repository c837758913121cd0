// SPDX-License-Identifier: Apache-2.0
// tests: ranks that are threads of this process, and attention over them.
#pragma once
#include <froghopper/cp.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "src/base/storage.hpp"

namespace froghopper::test {

// A transport as strict as the interface allows: bytes are read from the sender's memory while both wait, what is to be
// received into holds NaN from `exchange` on, and who waits for more than ten seconds fails.
class Ranks {
 public:
  explicit Ranks(int64_t ranks) : ranks_(ranks), rank_(static_cast<size_t>(ranks)) {
    for (int64_t i = 0; i < ranks; ++i) rank_[static_cast<size_t>(i)] = {this, i, 0, 0, {}};
  }

  fh_cp_transport transport(int64_t rank) {
    fh_cp_transport t = fh_cp_transport_init();
    t.context = &rank_[static_cast<size_t>(rank)];
    t.ranks = ranks_, t.rank = rank;
    t.exchange = [](void* context, const fh_cp_transfer* sends, int64_t send_count, const fh_cp_transfer* recvs,
                    int64_t recv_count, void*, void** ticket) {
      Rank& r = *static_cast<Rank*>(context);
      return r.all->exchange(r, sends, send_count, recvs, recv_count, ticket);
    };
    t.wait = [](void* context, void* ticket, void*) {
      Rank& r = *static_cast<Rank*>(context);
      return r.all->wait(r, ticket);
    };
    t.cancel = [](void* context) { static_cast<Rank*>(context)->all->cancel(); };
    t.error = [](void* context) { return static_cast<Rank*>(context)->text.c_str(); };
    return t;
  }

  int64_t fails_at = -1;     // the exchange, counted on rank 0, that fails there
  uint64_t bytes_moved = 0;  // but for digests, which are the first exchange

 private:
  struct Rank {
    Ranks* all;
    int64_t rank, exchanges, waits;
    std::string text;
  };
  struct Sent {
    const void* data;
    uint64_t bytes;
    bool taken;
  };
  struct Group {
    int64_t number;
    std::vector<fh_cp_transfer> recvs;
  };
  using Key = std::tuple<int64_t, int64_t, int64_t>;  // exchange, from, to

  int exchange(Rank& r, const fh_cp_transfer* sends, int64_t send_count, const fh_cp_transfer* recvs,
               int64_t recv_count, void** ticket) {
    const std::lock_guard lock(mutex_);
    const int64_t number = r.exchanges++;
    if (r.rank == 0 && number == fails_at) return r.text = "the cable was pulled", 7;
    for (int64_t i = 0; i < recv_count; ++i) std::memset(recvs[i].data, 0xff, recvs[i].bytes);
    for (int64_t i = 0; i < send_count; ++i) {
      posted_[{number, r.rank, sends[i].peer}].push_back({sends[i].data, sends[i].bytes, false});
      if (number > 0) bytes_moved += sends[i].bytes;
    }
    groups_.push_back(std::make_unique<Group>(Group{number, {recvs, recvs + recv_count}}));
    *ticket = groups_.back().get();
    changed_.notify_all();
    return 0;
  }

  int wait(Rank& r, void* ticket) {
    const Group* const group = static_cast<Group*>(ticket);
    std::unique_lock lock(mutex_);
    if (group->number != r.waits++) return r.text = "waits are out of order", 1;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    const auto until = [&](auto there) {
      return changed_.wait_until(lock, deadline, [&] { return cancelled_ || there(); }) && !cancelled_;
    };
    std::map<int64_t, size_t> taken;
    for (const fh_cp_transfer& recv : group->recvs) {
      std::vector<Sent>& from = posted_[{group->number, recv.peer, r.rank}];
      const size_t i = taken[recv.peer]++;
      if (!until([&] { return i < from.size(); })) return r.text = "a peer sent nothing", 2;
      if (from[i].bytes != recv.bytes) return r.text = "lengths differ", 3;
      std::memcpy(recv.data, from[i].data, recv.bytes);
      from[i].taken = true;
      changed_.notify_all();
    }
    for (int64_t peer = 0; peer < ranks_; ++peer) {
      std::vector<Sent>& mine = posted_[{group->number, r.rank, peer}];
      const auto all_taken = [&] {
        for (const Sent& sent : mine)
          if (!sent.taken) return false;
        return true;
      };
      if (!until(all_taken)) return r.text = "a peer took nothing", 4;
    }
    return 0;
  }

  void cancel() {
    const std::lock_guard lock(mutex_);
    cancelled_ = true;
    changed_.notify_all();
  }

  const int64_t ranks_;
  std::vector<Rank> rank_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Key, std::vector<Sent>> posted_;
  std::vector<std::unique_ptr<Group>> groups_;
  bool cancelled_ = false;
};

// Every rank a thread.
inline void on_all_ranks(int64_t ranks, const std::function<void(int64_t)>& work) {
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < ranks; ++rank) threads.emplace_back(work, rank);
  for (std::thread& thread : threads) thread.join();
}

// Numbers of one type, dense; bytes before they are written are those of NaN.
struct Numbers {
  Element type = Element::f32;
  std::vector<char> bytes;
  Numbers() = default;
  Numbers(Element type, int64_t count) : type(type), bytes(static_cast<size_t>(count * size_of(type)), char(0xff)) {}
  int64_t count() const { return static_cast<int64_t>(bytes.size()) / size_of(type); }
  void* data() { return bytes.empty() ? nullptr : bytes.data(); }
  float at(int64_t i) const { return load(bytes.data(), i, type); }
  void set(int64_t i, float x) { store(bytes.data(), i, type, x); }
  void draw(uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < count(); ++i) set(i, normal(random));
  }
  bool operator==(const Numbers&) const = default;
};

// A tensor of the whole sequence [batch, rows, width], or lse's [batch, lines, rows], and its part on a rank.
struct Layout {
  int64_t batch, rows, width;
  bool lines;  // rows last
};
inline void each_number(const Layout& l, const std::vector<fh_cp_range>& ranges,
                        const std::function<void(int64_t whole, int64_t shard)>& pair) {
  int64_t held = 0;
  for (const fh_cp_range& range : ranges) held += range.end - range.begin;
  for (int64_t b = 0; b < l.batch; ++b) {
    int64_t row = 0;
    for (const fh_cp_range& range : ranges)
      for (int64_t r = range.begin; r < range.end; ++r, ++row)
        for (int64_t i = 0; i < l.width; ++i)
          if (l.lines)
            pair((b * l.width + i) * l.rows + r, (b * l.width + i) * held + row);
          else
            pair((b * l.rows + r) * l.width + i, (b * held + row) * l.width + i);
  }
}
inline Numbers shard_of(const Numbers& whole, const Layout& l, const std::vector<fh_cp_range>& ranges) {
  int64_t held = 0;
  for (const fh_cp_range& range : ranges) held += range.end - range.begin;
  Numbers part(whole.type, l.batch * held * l.width);
  each_number(l, ranges, [&](int64_t from, int64_t to) { part.set(to, whole.at(from)); });
  return part;
}
inline void put_back(Numbers& whole, const Numbers& part, const Layout& l, const std::vector<fh_cp_range>& ranges) {
  each_number(l, ranges, [&](int64_t to, int64_t from) { whole.set(to, part.at(from)); });
}

// Memory at a multiple of 256 bytes, filled with what is NaN in every type.
class Workspace {
 public:
  explicit Workspace(uint64_t bytes)
      : bytes_(bytes), data_(::operator new (static_cast<size_t>(bytes) + 1, std::align_val_t{256})) {
    std::memset(data_, 0xff, static_cast<size_t>(bytes));
  }
  Workspace(const Workspace&) = delete;
  ~Workspace() { ::operator delete (data_, std::align_val_t{256}); }
  void* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }

 private:
  uint64_t bytes_;
  void* data_;
};

}  // namespace froghopper::test
