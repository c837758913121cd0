// SPDX-License-Identifier: Apache-2.0
// cpu: the end of a forward work item: o divided by its denominator, merged with what was there if so asked,
// rounded and back in its rows; lse and max_logit.
#include <algorithm>
#include <bitset>
#include <cmath>

#include "src/cpu/work.hpp"

#if defined(FROGHOPPER_CPU_FINISH_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef FROGHOPPER_CPU_FINISH_INL
#undef FROGHOPPER_CPU_FINISH_INL
#else
#define FROGHOPPER_CPU_FINISH_INL
#endif
#include "hwy/highway.h"
#include "src/cpu/block-inl.hpp"
#include "src/cpu/convert-inl.hpp"
#include "src/cpu/multiply-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace froghopper::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class Element>
struct Finish {
  explicit Finish(const Work& work) : w(work) {}

  const Work& w;
  float *rows = nullptr, *spare = nullptr;  // room for four rows of o; for one
  bool too_large = false;                   // some o was, before it was divided
  std::bitset<lanes_max> left_out;          // of work that merges: the lanes where it was

  void block(Block<Element>& b, bool one_row) {
    // From here on largest is what o, as it was, is multiplied by, and sum the weight of all keys.
    for (int i = 0; i < b.count; ++i)
      b.known.rescale[i] = weight_of_all(b, i, w.merges, b.known.largest[i], b.known.sum[i]);
    if (one_row) return store(b, 0, b.o);
    for (int i = 0; i < b.count; i += 4) {
      transpose(b.o + i, b.width, w.dim_v, 4, rows, dim_max);
      for (int r = 0; r < std::min(4, b.count - i); ++r) store(b, i + r, rows + r * dim_max);
    }
  }

  // One over the lane's denominator, the sink included; writes lse and max_logit. of_sink: the sink's share; of_keys:
  // that of all keys, on entry their weights.
  static float weight_of_all(const Block<Element>& b, int i, bool merges, float& of_sink, float& of_keys) {
    const Lane& lane = b.lanes[i];
    const bool again = b.known.less > 0;
    if (lane.begin >= lane.end) {
      if (lane.lse && !merges) *lane.lse = lane.sink;  // which alone is in the denominator
      return 0;
    }
    if (lane.max_logit && !again)
      *lane.max_logit = std::max(*lane.max_logit, b.known.largest[i] * b.known.score_unit);
    double largest = double{b.known.largest[i]} * b.known.score_unit, sum = std::ldexp(of_keys, b.known.less),
           shrunk = 1;
    if (sum == 0) return weight_of_none(lane, merges, again, of_sink, of_keys);
    of_sink = 0, of_keys = 1;
    if (lane.sink != minus_infinity) {
      const double larger = std::max<double>(largest, lane.sink), sink_weight = weight_below(larger, lane.sink);
      shrunk = weight_below(larger, largest);
      const double keys = sum * shrunk;
      sum = keys + sink_weight;
      of_sink = static_cast<float>(sink_weight / sum);
      of_keys = static_cast<float>(keys / sum);  // as 1 less the other it would have no digits beside a large sink
      largest = larger;
    }
    if (lane.lse && !again) *lane.lse = static_cast<float>(largest + std::log(sum));
    return static_cast<float>(std::ldexp(shrunk / sum, b.known.less));
  }

  // Infinity is no distance from itself.
  static double weight_below(double largest, double logit) {
    return logit == largest ? 1 : std::exp(logit - largest);
  }

  // As weight_of_all, of a lane all of whose scores are -inf: as if it attended to no key, but that o is written.
  static float weight_of_none(const Lane& lane, bool merges, bool again, float& of_sink, float& of_keys) {
    if (lane.lse && !again) *lane.lse = lane.sink;
    of_sink = merges && lane.sink != minus_infinity ? 1.0f : 0.0f;
    of_keys = 0;
    return 0;
  }

  // Again: only what was not finite the first time.
  void store(const Block<Element>& b, int i, float* row) {
    const Eight d;
    const Lane& lane = b.lanes[i];
    const float factor = b.known.rescale[i];
    const bool again = b.known.less > 0, fully_masked = lane.begin >= lane.end;  // its row was never written
    if (w.merges && (fully_masked || (again && !left_out[&lane - w.lanes]))) return;
    for (int c = 0; c < w.dim_v; c += eight) {
      hn::StoreU(fully_masked ? hn::Zero(d) : hn::Mul(hn::LoadU(d, row + c), hn::Set(d, factor)), d, row + c);
    }
    if (!fully_masked) stand_for(w.of_heads[b.head], b.known.sum[i], row);
    if (again && !w.merges) {
      keep_what_was_finite(lane.o, row);
    } else if (!again && !all_finite(row, w.dim_v) && std::isfinite(factor)) {
      too_large = true;  // or v is not finite itself: then going again changes nothing
      if (w.merges) return left_out.set(&lane - w.lanes), void();  // what o holds is still needed
    }
    if (w.merges && b.known.largest[i] > 0) add_held(lane.o, b.known.largest[i], row);
    from_floats(row, w.dtype_o, w.dim_v, lane.o);
  }

  // A row of o as 8-bit v's numbers stand for it, but for scales that weights had. share: of all keys.
  void stand_for(const OfHead& head, float share, float* row) const {
    const Scales& scales = head.scales_v;
    if (!scales) return;
    if (scales.by_column()) {
      times(scales.of_row(0), w.dim_v, row);
    } else if (!scales.by_rows()) {
      times(*scales.of_row(0), w.dim_v, row);
    }
    if (head.mean_v) plus(head.mean_v, share, w.dim_v, row);
  }

  void add_held(const void* o, float share, float* row) const {
    const Eight d;
    const auto* const held = static_cast<const float*>(o);
    for (int c = 0; c < w.dim_v; c += eight)
      hn::StoreU(hn::MulAdd(hn::LoadU(d, held + c), hn::Set(d, share), hn::LoadU(d, row + c)), d, row + c);
  }

  void keep_what_was_finite(const void* o, float* row) {
    const Eight d;
    to_floats(o, w.dtype_o, w.dim_v, spare);
    for (int c = 0; c < w.dim_v; c += eight) {
      const auto was = hn::LoadU(d, spare + c), is = hn::LoadU(d, row + c);
      const auto better = hn::AndNot(finite(was), finite(is));
      hn::StoreU(hn::IfThenElse(better, is, was), d, row + c);
    }
  }

  static HWY_INLINE hn::Mask<Eight> finite(hn::Vec<Eight> x) {
    const Eight d;
    return hn::Eq(hn::Mul(x, hn::Zero(d)), hn::Zero(d));
  }
};

}  // namespace froghopper::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
