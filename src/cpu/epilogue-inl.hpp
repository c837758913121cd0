// SPDX-License-Identifier: Apache-2.0
// cpu: the epilogue of a forward work item: o is divided by its denominator, multiplied by its gate, merged with
// earlier calls, rounded and stored in rows, with lse and max_logit.
#include <algorithm>
#include <bitset>
#include <cmath>

#include "src/cpu/work.hpp"

#if defined(FROGHOPPER_CPU_EPILOGUE_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef FROGHOPPER_CPU_EPILOGUE_INL
#undef FROGHOPPER_CPU_EPILOGUE_INL
#else
#define FROGHOPPER_CPU_EPILOGUE_INL
#endif
#include "hwy/highway.h"
#include "src/cpu/block-inl.hpp"
#include "src/cpu/convert-inl.hpp"
#include "src/cpu/gate-inl.hpp"
#include "src/cpu/multiply-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace froghopper::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class Element>
struct Epilogue {
  explicit Epilogue(const Work& work) : w(work) {}

  const Work& w;
  float *rows = nullptr, *spare = nullptr;  // memory for four rows of o; for one
  bool too_large = false;                   // some o exceeded the largest float before the division
  std::bitset<lanes_max> deferred;          // with Work::merge: the lanes where it did

  void block(Block<Element>& b, bool one_row) {
    // From here on, row_max holds the share of the sink, row_sum that of the keys, and rescale what o is multiplied
    // by.
    for (int i = 0; i < b.count; ++i)
      b.state.rescale[i] = inverse_denominator(b, i, w.merge, b.state.row_max[i], b.state.row_sum[i]);
    if (one_row) return store(b, 0, b.o);
    for (int i = 0; i < b.count; i += 4) {
      transpose(b.o + i, b.width, w.dim_v, 4, rows, dim_max);
      for (int r = 0; r < std::min(4, b.count - i); ++r) store(b, i + r, rows + r * dim_max);
    }
  }

  // 1 / the lane's denominator, with the sink; also writes lse and max_logit. of_sink: the share of the sink; of_keys:
  // that of all keys, and on entry the sum of their weights.
  static float inverse_denominator(const Block<Element>& b, int i, bool merge, float& of_sink, float& of_keys) {
    const Lane& lane = b.lanes[i];
    const bool second_pass = b.state.weight_shift > 0;
    if (lane.begin >= lane.end) {
      if (lane.lse && !merge) *lane.lse = lane.sink;  // the sink is the whole denominator
      return 0;
    }
    if (lane.max_logit && !second_pass)
      *lane.max_logit = std::max(*lane.max_logit, b.state.row_max[i] * b.state.score_unit);
    double largest = double{b.state.row_max[i]} * b.state.score_unit, sum = std::ldexp(of_keys, b.state.weight_shift),
           rescale = 1;
    if (sum == 0) return without_weights(lane, merge, second_pass, of_sink, of_keys);
    of_sink = 0, of_keys = 1;
    if (lane.sink != minus_infinity) {
      const double larger = std::max<double>(largest, lane.sink), sink_weight = relative_weight(larger, lane.sink);
      rescale = relative_weight(larger, largest);
      const double keys = sum * rescale;
      sum = keys + sink_weight;
      of_sink = static_cast<float>(sink_weight / sum);
      of_keys = static_cast<float>(keys / sum);  // 1 - of_sink would have no digits with a large sink
      largest = larger;
    }
    if (lane.lse && !second_pass) *lane.lse = static_cast<float>(largest + std::log(sum));
    return static_cast<float>(std::ldexp(rescale / sum, b.state.weight_shift));
  }

  // inf - inf is NaN, but equal logits have weight 1.
  static double relative_weight(double largest, double logit) {
    return logit == largest ? 1 : std::exp(logit - largest);
  }

  // As inverse_denominator, for a lane whose scores are all -inf. It differs from a fully masked one in that o is
  // written.
  static float without_weights(const Lane& lane, bool merge, bool second_pass, float& of_sink, float& of_keys) {
    if (lane.lse && !second_pass) *lane.lse = lane.sink;
    of_sink = merge && lane.sink != minus_infinity ? 1.0f : 0.0f;
    of_keys = 0;
    return 0;
  }

  // The second pass stores only what was not finite in the first.
  void store(const Block<Element>& b, int i, float* row) {
    const Eight d;
    const Lane& lane = b.lanes[i];
    const float factor = b.state.rescale[i];
    const bool second_pass = b.state.weight_shift > 0,
               fully_masked = lane.begin >= lane.end;  // its row is uninitialised
    if (w.merge && (fully_masked || (second_pass && !deferred[&lane - w.lanes]))) return;
    for (int c = 0; c < w.dim_v; c += eight) {
      hn::StoreU(fully_masked ? hn::Zero(d) : hn::Mul(hn::LoadU(d, row + c), hn::Set(d, factor)), d, row + c);
    }
    const float share = fully_masked ? 0 : b.state.row_sum[i];
    if (!fully_masked) dequantise(w.of_heads[b.head], share, row);
    if (lane.gate && share > 0) apply_gate(lane.gate, w.dtype_o, w.dim_v, row);  // else o is 0, whatever the gate is
    if (second_pass && !w.merge) {
      keep_finite(lane.o, row);
    } else if (!second_pass && !all_finite(row, w.dim_v) && std::isfinite(factor)) {
      too_large = true;  // or v is not finite itself; then the second pass changes nothing
      if (w.merge) return deferred.set(&lane - w.lanes), void();  // the second pass needs the o of earlier calls
    }
    if (w.merge && b.state.row_max[i] > 0) add_previous(lane.o, b.state.row_max[i], row);
    from_floats(row, w.dtype_o, w.dim_v, lane.o);
  }

  // Applies to a row of o the scales and the mean of 8-bit v, except scales that weights have. share: of all keys.
  void dequantise(const OfHead& head, float share, float* row) const {
    const Scales& scales = head.scales_v;
    if (!scales) return;
    if (scales.by_column()) {
      times(scales.of_row(0), w.dim_v, row);
    } else if (!scales.by_rows()) {
      times(*scales.of_row(0), w.dim_v, row);
    }
    if (head.mean_v) plus(head.mean_v, share, w.dim_v, row);
  }

  void add_previous(const void* o, float share, float* row) const {
    const Eight d;
    const auto* const previous = static_cast<const float*>(o);
    for (int c = 0; c < w.dim_v; c += eight)
      hn::StoreU(hn::MulAdd(hn::LoadU(d, previous + c), hn::Set(d, share), hn::LoadU(d, row + c)), d, row + c);
  }

  void keep_finite(const void* o, float* row) {
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
