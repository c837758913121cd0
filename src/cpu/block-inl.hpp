// SPDX-License-Identifier: Apache-2.0
// cpu: the lanes of a forward work item that are computed side by side, and what is known of them.
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
  int head;                    // of the work item's
  int count, width;            // lanes, and lanes with the vectors filled up
  int64_t begin, end;          // keys that some lane attends to
  int64_t all_begin, all_end;  // keys that every lane attends to
  bool fresh;                  // no key yet: o holds nothing
  Element* q;                  // [elements of dim_qk][width]
  float* o;                    // [dim_v][width]
  Statistics known;
  float *scales_q, *mean_scores;  // of 8-bit q and k, see descale
  bool descales;                  // these differ between lanes or keys, or cannot be part of scale
  float scale;                    // of the products then, else of all that makes scores of products

  // Lanes that fill up the last vector do what the last real one does, and are not stored.
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

  // Some score may be beyond the largest float; an infinite one is not told from others. One that is NaN is.
  bool left_range() const {
    for (int i = 0; i < count; ++i)
      if (lanes[i].begin < lanes[i].end && std::isinf(known.largest[i])) return true;
    return false;
  }

  // What alibi needs for the keys from `first` on.
  const LaneSlopes& slopes(int64_t first, LaneSlopes& to) const {
    for (int i = 0; i < width; ++i)
      to.slope[i] = lane(i).slope / known.score_unit, to.level[i] = static_cast<float>(lane(i).level - first);
    return to;
  }
};

}  // namespace froghopper::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
