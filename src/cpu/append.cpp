// SPDX-License-Identifier: Apache-2.0
// cpu: new rows of k and v -> their places in a cache, and q with them. Rows are handed to threads, each with all of
// its heads, so that cos and sin of its position are read once.
#include <algorithm>
#include <new>
#include <vector>

#include "src/base/storage.hpp"
#include "src/base/text.hpp"
#include "src/cpu/append_work.hpp"
#include "src/cpu/cpu.hpp"
#include "src/cpu/scratch.hpp"
#include "src/cpu/threads.hpp"
#include "src/cpu/work.hpp"

namespace froghopper::cpu {
namespace {

std::vector<float> floats_of(const View& values) {
  std::vector<float> floats(values.data ? values.dim : 0);
  if (values.data) load_row(values.data, 0, values.dim, values.element, floats.data());
  return floats;
}

class NewRows {
 public:
  NewRows(const Plan& plan, const Views& views)
      : p_(plan.problem),
        kernel_(*plan.kernel),
        views_(views),
        weights_q_(floats_of(views.norm_q)),
        weights_k_(floats_of(views.norm_k)) {
    before_.reserve(p_.batch + 1);
    before_.push_back(0);
    for (int64_t b = 0; b < p_.batch; ++b) before_.push_back(before_.back() + rows_q(p_, views, b).used);
  }

  int64_t count() const { return before_.back(); }

  void write(int64_t number, float* scratch) const {
    const int64_t sequence = std::upper_bound(before_.begin(), before_.end(), number) - before_.begin() - 1;
    const PlaceOfRow place = place_of_row(p_, views_, sequence, number - before_[sequence]);
    const bool known = place.position >= 0 && place.position < p_.rotary_rows;  // unless it is a row without a place
    const bool rotates = p_.rotary_dim > 0;
    float *const cos = scratch + p_.dim_qk, *const sin = cos + p_.rotary_dim / 2;
    if (rotates && known) {
      load_table(views_.rotary_cos, place.position, cos);
      load_table(views_.rotary_sin, place.position, sin);
    }
    HeadsToAppend row{.from = p_.dtype,
                      .to = p_.dtype,
                      .heads = static_cast<int>(p_.heads_q),
                      .dim = static_cast<int>(p_.dim_qk),
                      .source = nullptr,
                      .destination = nullptr,
                      .stride_from = 0,
                      .stride_to = 0,
                      .norm = p_.norm,
                      .epsilon = p_.norm_epsilon,
                      .weights = weights_q_.empty() ? nullptr : weights_q_.data(),
                      .rotary_dim = static_cast<int>(p_.rotary_dim),
                      .interleaved = p_.rotary_interleaved,
                      .cos = cos,
                      .sin = sin,
                      .scales = nullptr,
                      .stride_scales = 0,
                      .own_scales = p_.scale_tokens,
                      .scratch = scratch};
    const bool may_rotate = !rotates || known;
    if (may_rotate) write_heads(row, views_.q, place, views_.q_out, place.batch, place.row, View{});
    if (place.slot < 0) return;
    const int64_t rows = p_.extent_kv(), batch = place.slot / rows, in_batch = place.slot % rows;
    row.to = p_.dtype_kv;
    row.heads = static_cast<int>(p_.heads_kv);
    row.weights = weights_k_.empty() ? nullptr : weights_k_.data();
    if (may_rotate) write_heads(row, views_.k, place, views_.cache_k, batch, in_batch, views_.scale_k);
    row.dim = static_cast<int>(p_.dim_v);
    row.norm = false, row.rotary_dim = 0;
    write_heads(row, views_.v, place, views_.cache_v, batch, in_batch, views_.scale_v);
  }

 private:
  static void load_table(const View& table, int64_t position, float* to) {
    load_row(table.data, table.at(0, position, 0), table.dim, table.element, to);
  }

  void write_heads(HeadsToAppend& row, const View& from, const PlaceOfRow& place, const View& to, int64_t batch,
                   int64_t in_batch, const View& scales) const {
    if (!from.data) return;
    row.source = from.address(place.batch, place.row, 0);
    row.destination = to.address(batch, in_batch, 0);
    row.stride_from = from.stride_head, row.stride_to = to.stride_head;
    row.scales = nullptr;
    if (scales.data)
      row.scales = scales.as<float>() + (p_.scale_tokens ? scales.at(batch, in_batch, 0) : 0),
      row.stride_scales = scales.stride_head;
    kernel_.append(row);
  }

  const Problem& p_;
  const Kernel& kernel_;
  const Views& views_;
  std::vector<float> weights_q_, weights_k_;
  std::vector<int64_t> before_;  // rows that count before each sequence
};

}  // namespace

Result<void> run_append(const Plan& plan, const Views& views, const InterruptWatch& watch) {
  try {
    const NewRows rows(plan, views);
    const Scratch scratch(std::min(plan.threads, rows.count()), plan.scratch_bytes() / sizeof(float));
    if (scratch.threads() > 0 || rows.count() == 0) {
      for_each(rows.count(), scratch.threads(), watch,
               [&](int64_t row, int64_t thread) { rows.write(row, scratch.of(thread)); });
      return {};
    }
  } catch (const std::bad_alloc&) {}  // nothing has been written: for_each says when it may be thrown
  return Failure{FH_INTERNAL, text("the CPU needs {} KiB of memory a thread and 8 bytes a sequence; the system gives "
                                   "no more. Free some.",
                                   plan.scratch_bytes() / 1024 + 1)};
}

}  // namespace froghopper::cpu
