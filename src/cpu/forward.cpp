// SPDX-License-Identifier: Apache-2.0
// cpu: cuts a problem into pieces of work and hands them to threads.
//
// A piece is a run of lanes (see work.hpp) of one key head of one sequence, and each piece walks over all the keys that
// its lanes see. The lanes of a key head are its query rows, and within a row the query heads that share the key head.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <memory>
#include <new>
#include <numeric>
#include <vector>

#include "src/base/text.hpp"
#include "src/cpu/cpu.hpp"
#include "src/cpu/threads.hpp"
#include "src/cpu/work.hpp"

namespace froghopper::cpu {
namespace {

constexpr float no_sink = -std::numeric_limits<float>::infinity();

struct Sequence {
  int64_t batch;              // index into the tensors' first extent
  int64_t first_q, first_kv;  // its row 0 in them
  int64_t extent;             // rows of o and lse
  int64_t used_q, used_kv;
  int64_t pieces_before;  // of the sequences ahead of it
};

struct Cut {
  std::vector<Sequence> sequences;  // those with most work first, so that no thread gets a long one last
  int64_t group;                    // query heads of a key head
  int64_t piece_lanes;
  int64_t pieces;

  int64_t pieces_of(const Sequence& s) const { return (s.extent * group + piece_lanes - 1) / piece_lanes; }
};

// Threads wake up for at least this many multiply-adds each: a core does them in 10 to 20 microseconds, and waking a
// thread takes as long.
constexpr double worth_a_thread = 1e6;
// Pieces for each thread, so that threads end within an eighth of their time of each other.
constexpr int64_t pieces_a_thread = 8;

int64_t threads_for(const Problem& p) {
  const double work = static_cast<double>(p.rows_q()) * p.heads_q * p.seq_kv * (p.dim_qk + p.dim_v);
  const int64_t allowed = p.max_sms == 0 ? cores() : std::min(p.max_sms, cores());
  return std::clamp<int64_t>(static_cast<int64_t>(std::min(work / worth_a_thread, 1e6)), 1, allowed);
}

std::vector<Sequence> sequences_of(const Problem& p, const Views& views) {
  std::vector<Sequence> all;
  for (int64_t b = 0; b < p.batch; ++b) {
    const Rows q = rows_q(p, views, b), kv = rows_kv(p, views, b);
    all.push_back({q.batch, q.first, kv.first, q.extent, q.used, kv.used, 0});
  }
  const auto more_work = [](const Sequence& a, const Sequence& b) {
    return static_cast<double>(a.used_q) * a.used_kv > static_cast<double>(b.used_q) * b.used_kv;
  };
  std::stable_sort(all.begin(), all.end(), more_work);
  if (p.varlen) {  // rows behind the last sequence have no keys; their o and lse are written all the same
    const int64_t end = p.batch == 0 ? 0 : views.cu_seqlens_q.as<int32_t>()[p.batch];
    all.push_back({0, end, 0, p.total_q - end, 0, 0, 0});
  }
  return all;
}

Cut cut(const Problem& p, const Views& views, int64_t threads, int64_t block_lanes) {
  Cut c{sequences_of(p, views), p.heads_q / std::max<int64_t>(1, p.heads_kv), 0, 0};
  const int64_t fair = p.rows_q() * p.heads_q / (threads * pieces_a_thread);
  c.piece_lanes = std::clamp<int64_t>(fair / block_lanes * block_lanes, block_lanes, lanes_max);
  for (Sequence& s : c.sequences) {
    s.pieces_before = c.pieces;
    c.pieces += c.pieces_of(s) * p.heads_kv;
  }
  return c;
}

// Kept until the thread ends; 0.5 to 1.3 MB, grown when a larger head dim comes.
class Scratch {
 public:
  ~Scratch() { std::free(floats_); }
  float* at_least(size_t floats) {
    if (floats > size_) {
      std::free(floats_);
      const size_t bytes = (floats * sizeof(float) + 63) / 64 * 64;
      floats_ = static_cast<float*>(std::aligned_alloc(64, bytes));
      size_ = floats_ ? floats : 0;
    }
    return floats_;
  }

 private:
  float* floats_ = nullptr;
  size_t size_ = 0;
};

class Forward {
 public:
  Forward(const Problem& p, const Views& views, const Cut& cut) : p_(p), views_(views), cut_(cut) {}

  // False: there was no memory.
  bool run(int64_t threads, const Kernel& kernel) {
    std::atomic<bool> short_of_memory{false};
    for_each(cut_.pieces, threads, [&](int64_t piece) {
      static thread_local Scratch scratch;
      float* const floats = scratch.at_least(scratch_floats(p_.dim_qk, p_.dim_v));
      if (floats) {
        attend(piece, kernel, floats);
      } else {
        short_of_memory = true;
      }
    });
    return !short_of_memory;
  }

 private:
  void attend(int64_t piece, const Kernel& kernel, float* scratch) const {
    const auto behind = [](int64_t n, const Sequence& s) { return n < s.pieces_before; };
    const Sequence& s = *--std::upper_bound(cut_.sequences.begin(), cut_.sequences.end(), piece, behind);
    const int64_t pieces = cut_.pieces_of(s), of_head = (piece - s.pieces_before) % pieces;
    const int64_t head_kv = (piece - s.pieces_before) / pieces;
    // Under a bound that grows with the row, later rows see more keys: they come first.
    const int64_t first = cut_.piece_lanes * (p_.window_right == all_keys ? of_head : pieces - 1 - of_head);

    Lane lanes[lanes_max];
    const int64_t count = std::min(cut_.piece_lanes, s.extent * cut_.group - first);
    for (int64_t i = 0; i < count; ++i) lanes[i] = lane(s, head_kv, first + i);
    kernel.attend({.dtype = p_.dtype,
                   .dim_qk = static_cast<int>(p_.dim_qk),
                   .dim_v = static_cast<int>(p_.dim_v),
                   .scale = p_.scale,
                   .softcap = p_.softcap,
                   .k = views_.k.address(s.batch, s.first_kv, head_kv),
                   .v = views_.v.address(s.batch, s.first_kv, head_kv),
                   .stride_k = views_.k.stride_seq,
                   .stride_v = views_.v.stride_seq,
                   .lanes = lanes,
                   .lane_count = static_cast<int>(count),
                   .scratch = scratch});
  }

  Lane lane(const Sequence& s, int64_t head_kv, int64_t index) const {
    const int64_t i = index / cut_.group, head = head_kv * cut_.group + index % cut_.group;
    const int64_t row = s.first_q + i;
    const Visible visible = i < s.used_q ? visible_keys(p_, s.used_q, s.used_kv, i) : Visible{0, 0};
    return {.q = views_.q.address(s.batch, row, head),
            .o = views_.o.address(s.batch, row, head),
            .lse = views_.lse.data ? reinterpret_cast<float*>(views_.lse.address(s.batch, row, head)) : nullptr,
            .begin = visible.begin,
            .end = visible.end,
            .sink = p_.sink && i < s.used_q ? views_.sink.as<float>()[head] : no_sink};
  }

  const Problem& p_;
  const Views& views_;
  const Cut& cut_;
};

}  // namespace

Result<Plan> plan(const Problem& p) {  // whatever Problem::from accepts
  return Plan{.problem = p, .kernel = &kernels().front(), .threads = threads_for(p)};
}

Result<void> run(const Plan& plan, const Views& views) {
  const Problem& p = plan.problem;
  if (Result<void> lengths = check_lengths(p, views); !lengths) return lengths;
  try {
    const Cut pieces = cut(p, views, plan.threads, plan.kernel->block_lanes);
    if (Forward(p, views, pieces).run(plan.threads, *plan.kernel)) return {};
  } catch (const std::bad_alloc&) {}
  return Failure{FH_INTERNAL,
                 text("{} threads need {} KiB of memory each; the system gives no more. Free some, or set "
                      "max_sms to fewer threads.",
                      plan.threads, scratch_floats(p.dim_qk, p.dim_v) * sizeof(float) / 1024)};
}

std::string Plan::line() const {
  return text("{} -> cpu {} q{}.kv{} threads {}", problem.line(), kernel->name, kernel->block_lanes, tile_kv,
              threads);
}

std::string Plan::explanation() const {
  return text("cpu {} q{}.kv{} threads {}\n  workspace  0 bytes; {} KiB of scratch a thread", kernel->name,
              kernel->block_lanes, tile_kv, threads,
              scratch_floats(problem.dim_qk, problem.dim_v) * sizeof(float) / 1024);
}

}  // namespace froghopper::cpu
