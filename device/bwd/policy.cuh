// SPDX-License-Identifier: Apache-2.0
// device/bwd: choices that were measured and that change no result, by variant: those of backward.cuh; has_proxy_fencer
// and sleeps are also those of the kernels of two CTAs, by_keys.cuh and by_columns.cuh.
#pragma once
#include "contract/bwd_variant.h"
#include "contract/types.h"

namespace froghopper::bwd {

template <BwdVariant V>
struct PolicyOf {
  // With softcap and ALiBi or chunks there are no registers for lse and delta, and the tanh hides the loads; with
  // only ALiBi there are none for delta. Where CTAs add in order, early delta was 0.90 to 1.00 of the speed:
  // docs/experiments/0019.
  static constexpr bool lse_is_late =
      V.tiles.q != m_tile_rows || (V.score_mods.softcap && (V.score_mods.alibi || V.mask == Mask::chunk));
  static constexpr bool delta_is_late = lse_is_late || V.deterministic || V.score_mods.alibi;

  // A Consumer that stands at the proxy fence itself waits there for a tenth of its time, at head dim 128. With
  // 128 rows and a mask it does so still, as a ProxyFencer was slower at 512 keys, and no faster in the mean:
  // docs/8-backward.md, "The proxy fence".
  static constexpr bool has_proxy_fencer =
      !V.deterministic && !bwd_has_two_ctas(V) && (V.tiles.q == m_tile_rows || V.mask == Mask::none);

  // Whether producers sleep while they wait (Cursor). Where CTAs add to grad_q in order, one that wakes late makes all
  // the others late.
  static constexpr bool sleeps = !V.deterministic;

  // With constant addresses the compiler keeps most of the 16 descriptors of K and V, one for each of their products,
  // in registers, and moves them to uniform ones in front of the products. true: they are computed in every iteration
  // (Consumer::opaque_tile), and the registers hold the thread's own two addresses instead, ds_address and dq_offset.
  // With 64 rows that is up to a fifth faster. With 128 rows it is better to keep the descriptors: by 2 to 5 % under a
  // mask.
  static constexpr bool recomputes_descriptors = !V.deterministic && V.tiles.q == m_tile_rows;
  // Whether a Consumer waits for Q of the next iteration before it adds grad_q; a poll after that would wait behind the
  // adds. With 64 rows the loads of lse would wait there instead, and it lost 3 to 5 %; with 128 and a mask 1 %.
  static constexpr bool waits_q_early = !V.deterministic && V.tiles.q != m_tile_rows && V.mask == Mask::none;
};

}  // namespace froghopper::bwd
