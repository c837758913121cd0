// SPDX-License-Identifier: Apache-2.0
// cpu: the forward pass: distributes work items (work_items.hpp) to threads. The thread that computes the last split
// of a Q tile merges the partial results of all its splits.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <memory>
#include <new>
#include <vector>

#include "contract/alibi.h"
#include "src/base/text.hpp"
#include "src/cpu/cpu.hpp"
#include "src/cpu/scratch.hpp"
#include "src/cpu/threads.hpp"
#include "src/cpu/work.hpp"
#include "src/cpu/work_items.hpp"
#include "src/problem/mask.hpp"

namespace froghopper::cpu {
namespace {

constexpr float no_sink = -std::numeric_limits<float>::infinity(), no_score = no_sink;

class Forward {
 public:
  Forward(const Plan& plan, const Views& views, const WorkItems& items, const InterruptWatch& watch)
      : p_(plan.problem),
        watch_(watch),
        kernel_(*plan.kernel),
        views_(views),
        items_(items),
        tile_kv_(static_cast<int>(plan.tile_kv)),
        largest_(p_.max_logit ? items.count() * heads_of_item() : 0, no_score),
        partials_(std::make_unique_for_overwrite<float[]>(items.floats())),
        splits_done_(std::make_unique<std::atomic<int64_t>[]>(items.split_q_tiles())) {}

  void attend(int64_t index, float* scratch) {
    const WorkItem item = items_.item(index);
    if (item.splits == 1) {
      attend(index, item, every_key, nullptr, 0, scratch);
      return;
    }
    float* const partials = &partials_[item.memory];
    attend(index, item, item.keys, partials + item.split * item.floats, 0, scratch);
    // The thread that counts the last split sees what all others have written.
    if (splits_done_[item.q_tile].fetch_add(1, std::memory_order_acq_rel) + 1 == item.splits)
      attend(index, item, every_key, partials, item.splits, scratch);
  }

  // Called when all work items are done: the maximum of each sequence and head, which is the same in any order.
  void put_max_logit() const {
    if (!p_.max_logit) return;
    auto* const to = views_.max_logit.as<float>();
    if (!p_.merges_lse()) std::fill_n(to, p_.batch * p_.heads_q, no_score);
    for (int64_t index = 0; index < items_.count(); ++index) {
      const WorkItem item = items_.item(index);
      if (item.sequence.index >= p_.batch) continue;  // rows of no sequence
      float* const of_group = to + item.sequence.index * p_.heads_q + item.head_kv * items_.group();
      for (int64_t h = 0; h < item.heads * items_.group(); ++h)
        of_group[h] = std::max(of_group[h], largest_[index * heads_of_item() + h]);
    }
  }

 private:
  // The lanes of the work item attend to `keys` at most. partials, count: see Work.
  void attend(int64_t index, const WorkItem& item, Visible keys, float* partials, int64_t count, float* scratch) {
    const Sequence& s = item.sequence;
    const bool has_keys = s.used_kv > 0;  // else k and v may be empty, and their strides anything
    const Rows rows{s.batch, s.first_kv, s.extent_kv, s.used_kv};
    Lane lanes[lanes_max];
    float* const largest = p_.max_logit ? &largest_[index * heads_of_item()] : nullptr;
    OfHead of_heads[heads_most];
    for (int64_t h = 0; h < item.heads; ++h) {
      const int64_t head = item.head_kv + h;
      const auto scales = [&](View Views::*of) {
        return has_keys ? scales_of_kv(p_, views_, of, rows, s.index, head) : Scales();
      };
      of_heads[h] = {.scales_k = scales(&Views::scale_k),
                     .scales_v = scales(&Views::scale_v),
                     .mean_k = mean_of(views_.mean_k, s, head),
                     .mean_v = mean_of(views_.mean_v, s, head)};
      for (int64_t i = 0; i < item.count; ++i)
        lanes[h * item.count + i] =
            lane(s, head, item.first + i, keys, largest ? largest + h * items_.group() : nullptr);
    }
    kernel_.attend({.dtype = p_.dtype,
                    .dtype_kv = p_.dtype_kv,
                    .dtype_o = p_.dtype_o,
                    .dim_qk = static_cast<int>(p_.dim_qk),
                    .dim_v = static_cast<int>(p_.dim_v),
                    .scale = p_.scale,
                    .softcap = p_.softcap,
                    .alibi = p_.alibi,
                    .invariant = p_.invariant,
                    .merge = p_.merges_lse(),
                    .k = has_keys ? k_rows(views_, rows, s.index) : KvRows(),
                    .v = has_keys ? v_rows(views_, rows, s.index) : KvRows(),
                    .paged = p_.paged(),
                    .watch = &watch_,
                    .first_head = item.head_kv,
                    .heads = static_cast<int>(item.heads),
                    .tile_kv = tile_kv_,
                    .of_heads = of_heads,
                    .lanes = lanes,
                    .lane_count = static_cast<int>(item.heads * item.count),
                    .scratch = scratch,
                    .partials = partials,
                    .partial_count = static_cast<int>(count),
                    .partial_stride = item.floats});
  }

  int64_t heads_of_item() const { return items_.heads() * items_.group(); }  // query heads of a work item, at most

  static const float* mean_of(const View& means, const Sequence& s, int64_t head) {
    return means.data && s.used_kv > 0 ? means.as<float>() + means.at(s.index, 0, head) : nullptr;
  }

  // largest: by head of the group; null: not wanted.
  Lane lane(const Sequence& s, int64_t head_kv, int64_t index, Visible keys, float* largest) const {
    const int64_t i = index / items_.group(), head = head_kv * items_.group() + index % items_.group();
    const int64_t row = s.first_q + i;
    Visible visible = i < s.used_q ? visible_keys(p_, s.used_q, s.used_kv, i) : Visible{0, 0};
    visible = {std::max(visible.begin, keys.begin), std::min(visible.end, keys.end)};
    return {.q = views_.q.address(s.batch, row, head),
            .o = views_.o.address(s.batch, row, head),
            .gate = views_.gate.data ? views_.gate.address(s.batch, row, head) : nullptr,
            .lse = views_.lse.data ? reinterpret_cast<float*>(views_.lse.address(s.batch, row, head)) : nullptr,
            .max_logit = largest ? largest + index % items_.group() : nullptr,
            .begin = visible.begin,
            .end = visible.end,
            .scale_q = i < s.used_q ? Scales(p_, views_.scale_q, s.index, head).at(i, 0) : 1,
            .slope = slope(s, head),
            .diagonal = i + p_.diagonal(s.used_q, s.used_kv),
            .sink = i < s.used_q ? sink_logit(s, row, head) : no_sink};
  }

  // Rows of no sequence have no slope.
  float slope(const Sequence& s, int64_t head) const {
    const View& slopes = views_.alibi_slopes;
    return p_.alibi && s.index < p_.batch ? within_steepest(slopes.as<float>()[slopes.at(s.index, 0, head)]) : 0;
  }

  float sink_logit(const Sequence& s, int64_t row, int64_t head) const {
    if (p_.merges_lse()) return views_.lse.as<float>()[views_.lse.at(s.batch, row, head)];
    return p_.sink ? views_.sink.as<float>()[head] : no_sink;
  }

  const Problem& p_;
  const InterruptWatch& watch_;
  const Kernel& kernel_;
  const Views& views_;
  const WorkItems& items_;
  const int tile_kv_;
  std::vector<float> largest_;  // largest scores, by work item and query head
  std::unique_ptr<float[]> partials_;
  std::unique_ptr<std::atomic<int64_t>[]> splits_done_;  // by split Q tile
};

}  // namespace

Result<void> run_forward(const Plan& plan, const Views& views, const InterruptWatch& watch) {
  try {
    const WorkItems items(plan, views);
    const Scratch scratch(std::min(plan.threads, items.count()), plan.scratch_bytes() / sizeof(float));
    if (scratch.threads() > 0 || items.count() == 0) {
      Forward forward(plan, views, items, watch);
      for_each(items.count(), scratch.threads(), watch,
               [&](int64_t item, int64_t thread) { forward.attend(item, scratch.of(thread)); });
      forward.put_max_logit();
      return {};
    }
  } catch (const std::bad_alloc&) {}  // nothing has been computed: for_each says when it may be thrown
  return Failure{FH_INTERNAL,
                 text("the CPU needs {} KiB of memory a thread{}; the system gives no more. Free some.",
                      plan.scratch_bytes() / 1024, plan.problem.ragged() ? " and 16 bytes a sequence" : "")};
}

}  // namespace froghopper::cpu
