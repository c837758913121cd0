// SPDX-License-Identifier: Apache-2.0
// cpu: a block of lanes of a forward work item, which are computed side by side, and the state of their softmax.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "src/cpu/work.hpp"

#if defined(FROGHOPPER_CPU_BLOCK_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef FROGHOPPER_CPU_BLOCK_INL
#undef FROGHOPPER_CPU_BLOCK_INL
#else
#define FROGHOPPER_CPU_BLOCK_INL
#endif
#include "hwy/highway.h"
#include "src/cpu/softmax-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace froghopper::cpu::HWY_NAMESPACE {

// Lanes are loaded and stored four at a time, and in whole vectors.
inline constexpr int lane_group = std::max(4, vector_lanes);
static_assert(lane_group <= lane_group_most && lane_group_most % lane_group == 0);

// Up to block_lanes lanes, computed side by side.
template <class Element>
struct Block {
  const Lane* lanes;
  int head;                    // index among those of the work item
  int count, width;            // lanes; rounded up to whole vectors
  int64_t begin, end;          // keys that some lane attends to
  int64_t all_begin, all_end;  // keys that every lane attends to
  bool fresh;                  // before the first key: o is uninitialised
  Element* q;                  // [elements of dim_qk][width]
  float* o;                    // [dim_v][width]
  SoftmaxState state;
  float *scales_q, *mean_scores;  // of 8-bit q and k, see descale
  bool descales;                  // scales differ between lanes or keys, or cannot be part of `scale`
  float scale;                    // of the products; with `descales`, without the scales of q and k

  // Lanes that fill the last vector repeat the last real lane, and are not stored.
  const Lane& lane(int i) const { return lanes[std::min(i, count - 1)]; }

  void find_keys() {
    begin = std::numeric_limits<int64_t>::max();
    end = 0;
    all_begin = 0;
    all_end = std::numeric_limits<int64_t>::max();
    for (int i = 0; i < count; ++i) {
      all_begin = std::max(all_begin, lanes[i].begin);
      all_end = std::min(all_end, lanes[i].end);
      if (lanes[i].begin >= lanes[i].end) continue;
      begin = std::min(begin, lanes[i].begin);
      end = std::max(end, lanes[i].end);
    }
  }

  // Whether a score may exceed the largest float. An infinite q.k counts too, NaN does not.
  bool scores_overflow() const {
    for (int i = 0; i < count; ++i)
      if (lanes[i].begin < lanes[i].end && std::isinf(state.row_max[i])) return true;
    return false;
  }

  // Which of the keys from `first` on each lane attends to.
  const LaneMaskRange& mask_range(int64_t first, int keys, LaneMaskRange& to) const {
    for (int i = 0; i < width; ++i) {
      to.begin[i] = static_cast<int32_t>(std::clamp<int64_t>(lane(i).begin - first, 0, keys));
      to.end[i] = static_cast<int32_t>(std::clamp<int64_t>(lane(i).end - first, 0, keys));
    }
    return to;
  }

  // The slopes and diagonals for the keys from `first` on.
  const LaneSlopes& slopes(int64_t first, LaneSlopes& to) const {
    for (int i = 0; i < width; ++i)
      to.slope[i] = lane(i).slope / state.score_unit, to.diagonal[i] = static_cast<float>(lane(i).diagonal - first);
    return to;
  }
};

}  // namespace froghopper::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
