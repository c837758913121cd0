// SPDX-License-Identifier: Apache-2.0
// cpu: split-KV. Any thread computes a split of the keys, and leaves a partial result of each block of lanes: the row
// maxima, the row sums relative to them, and o before the division. Partial results are merged in the order of their
// keys, so that the bits do not depend on the threads.
#include <algorithm>
#include <cstdint>

#include "src/cpu/work.hpp"

#if defined(FROGHOPPER_CPU_PARTIALS_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef FROGHOPPER_CPU_PARTIALS_INL
#undef FROGHOPPER_CPU_PARTIALS_INL
#else
#define FROGHOPPER_CPU_PARTIALS_INL
#endif
#include "hwy/highway.h"
#include "src/cpu/block-inl.hpp"
#include "src/cpu/softmax-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace froghopper::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The memory has row_max [width], row_sum [width] and o [dim_v][width]. A single row is a vector of equal lanes, and
// its o is [dim_v], in whole vectors.
template <class Element>
class Partial {
 public:
  Partial(const Block<Element>& b, int dim_v, bool one_row, float* memory)
      : width_(one_row ? vector_lanes : b.width),
        rows_(one_row ? (dim_v + vector_lanes - 1) / vector_lanes : dim_v),
        row_max_(memory),
        row_sum_(memory + width_),
        o_(memory + 2 * width_) {}

  void save(const Block<Element>& b) const {
    std::copy_n(b.state.row_max, width_, row_max_);
    std::copy_n(b.state.row_sum, width_, row_sum_);
    if (!b.fresh) std::copy_n(b.o, int64_t{rows_} * width_, o_);
  }

  // The block holds the result over the keys before these.
  void merge_into(Block<Element>& b) const {
    if (attends_to_none()) return;
    const Floats d;
    HWY_ALIGN float rescale[block_lanes], rescale_here[block_lanes];
    for (int lane = 0; lane < width_; lane += vector_lanes) {
      const Vector before = hn::Load(d, b.state.row_max + lane), here = hn::LoadU(d, row_max_ + lane);
      const Vector most = hn::Max(before, here), base = base_of(most);
      const Vector score_unit = hn::Set(d, b.state.score_unit);
      const Vector of_before = exponential(hn::Mul(hn::Sub(before, base), score_unit));
      const Vector of_here = exponential(hn::Mul(hn::Sub(here, base), score_unit));
      const Vector rescaled = hn::Mul(hn::Load(d, b.state.row_sum + lane), of_before);
      hn::Store(hn::MulAdd(hn::LoadU(d, row_sum_ + lane), of_here, rescaled), d, b.state.row_sum + lane);
      hn::Store(most, d, b.state.row_max + lane);
      hn::Store(of_before, d, rescale + lane);
      hn::Store(of_here, d, rescale_here + lane);
    }
    for (int64_t row = 0; row < rows_; ++row) {
      for (int lane = 0; lane < width_; lane += vector_lanes) {
        float* const o = b.o + row * width_ + lane;
        const Vector rescaled = b.fresh ? hn::Zero(d) : hn::Mul(hn::LoadU(d, o), hn::Load(d, rescale + lane));
        hn::StoreU(hn::MulAdd(hn::LoadU(d, o_ + row * width_ + lane), hn::Load(d, rescale_here + lane), rescaled), d,
                   o);
      }
    }
    b.fresh = false;
  }

 private:
  // Then o is not there. A NaN among the scores leaves largest as it is, but not sum.
  bool attends_to_none() const {
    return std::all_of(row_max_, row_max_ + width_, [](float x) { return x == minus_infinity; }) &&
           std::all_of(row_sum_, row_sum_ + width_, [](float x) { return x == 0; });
  }

  const int width_, rows_;
  float *row_max_, *row_sum_, *o_;
};

}  // namespace froghopper::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
