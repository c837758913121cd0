// SPDX-License-Identifier: Apache-2.0
// device/fwd: how many registers each role of the forward kernel has.
#pragma once
#include "contract/fwd_variant.h"

namespace froghopper::fwd {

// A CTA starts with 65536 / threads each, rounded down to 8 (168, 128, 96 at 2, 3, 4 consumers); setmaxnreg shares the
// same sum out again.
template <FwdVariant V>
struct RegistersOf {
  static constexpr bool scaled = fwd_scaled(V), widens = fwd_widens(V);
  static constexpr int count = fwd_consumers(V);
  // 8-bit variants take 56 to transpose, 8 blocks on their way at once; 24 and 3 where S, P and O of a Consumer take
  // 208, or 184 beside a mask. To widen takes 56, with 6 blocks on their way. Where Consumers need all of theirs, of 4
  // of them or of 256 columns, fewer have to do.
  static constexpr int of_tiles = is_8_bit(V.dtype) ? V.tiles.kv / 2 + V.tiles.kv / 8 + V.dims.v / 2 : 0;
  static constexpr bool crowded = of_tiles > (V.mask == Mask::none ? 200 : 180);
  static constexpr int transposed_ahead = crowded ? 3 : 8;
  static constexpr bool widens_in_few = widens && (count > 3 || V.dims.v > 192);
  static constexpr int widened_ahead = !widens_in_few ? 6 : count > 3 ? 3 : 4;
  static constexpr int usual_producers = count <= 2 ? 40 : 32;
  static constexpr int producers = crowded ? 24 : scaled && !widens_in_few ? 56 : usual_producers;
  static constexpr int usual_consumers = V.packed ? 216 : count <= 2 ? 232 : count == 3 ? 160 : 112;
  static constexpr int consumers = crowded ? 240 : usual_consumers - (scaled && !widens_in_few ? 8 : 0);
  static constexpr bool move = !V.packed || fwd_register_shares(V) > 1;
};

}  // namespace froghopper::fwd
