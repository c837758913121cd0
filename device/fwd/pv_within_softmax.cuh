// SPDX-License-Identifier: Apache-2.0
// device/fwd: P V between two halves of the exponentials, where two Consumers have FP8 products of 192 columns and
// more. Kernel is Forward of a variant and Consumer its own; forward.cuh has the rest of an iteration.
#pragma once
#include "contract/fwd_variant.h"
#include "device/tile/mma.cuh"

namespace froghopper::fwd {

// 256 columns of q take all registers, so there it is where nothing else needs some.
constexpr bool pv_within_softmax(FwdVariant v) {
  const bool more =
      v.ragged || v.kv.smooth || v.max_logit || v.score_mods.softcap || v.merges_lse || v.tiles.kv != scale_block;
  return fwd_fp8_mma(v) && (v.dims.qk == 192 || (v.dims.qk > 192 && !more));
}

// Weights of a tile by the old row max and, if it is not on its way yet, O += P V of the one before. Issued ahead of
// them, P V would be ahead of the next Consumer's S, which it then keeps waiting; behind them, nothing would run beside
// the second half. ptxas moves a product ahead of what it does not depend on, so whether this one accumulates is asked
// of the first half's sum: it does, for no sum of weights is -0.
template <class Kernel, class Consumer>
__device__ __forceinline__ auto guess_of(Consumer& its, typename Kernel::Softmax& softmax, typename Kernel::Scores& s,
                                         const typename Kernel::Weights& p, typename Kernel::Output& o) {
  if constexpr (!pv_within_softmax(Kernel::variant)) {
    return softmax.guess(s);
  } else {
    constexpr int half = Kernel::variant.tiles.kv / 2;
    constexpr ptx::u32 minus_0 = 1u << 31;
    const auto first = softmax.guess(tile::columns_of<0, half>(s));
    its.v.wait(its.smem.v_ring);
    tile::mma_abt<typename Kernel::T>(o, p, its.smem.v[its.v.stage],
                                      /*accumulate=*/__float_as_uint(first.sum.top) != minus_0);
    return Kernel::Softmax::joined(first, softmax.guess(tile::columns_of<half, half>(s)));
  }
}

}  // namespace froghopper::fwd
