// SPDX-License-Identifier: Apache-2.0
// device/fwd: P V between two halves of the exponentials, with FP8 MMAs and head dims from 192 on (three Consumers have
// immediate_pv.cuh instead); consumer.cuh has the rest of an iteration.
#pragma once
#include "device/fwd/consumer.cuh"
#include "device/ptx/types.cuh"
#include "device/tile/accum.cuh"

namespace froghopper::fwd {

// Operand of a tile by the old row max and, if it is not on its way yet, O += P V of the one before. Issued ahead of
// them, P V would be ahead of the next Consumer's S, which it then keeps waiting; behind them, nothing would overlap
// with the second half. ptxas moves a product ahead of what it does not depend on. So its accumulate predicate is made
// to depend on the first half's sum; it is always true, for a sum of weights is never -0.
template <class Kernel>
__device__ __forceinline__ auto Consumer<Kernel>::guess_of(Softmax& softmax, Scores& s, const Operand& p, Output& o) {
  if constexpr (!pv_within_softmax(V)) {
    return softmax.guess(s);
  } else {
    constexpr int half = V.tiles.kv / 2;
    constexpr ptx::u32 minus_0 = 1u << 31;
    const auto first = softmax.guess(tile::columns_of<0, half>(s));
    mma.wait_v();
    mma.pv_of_fp8(o, p, /*accumulate=*/__float_as_uint(first.sum.top) != minus_0);
    return Softmax::merged(first, softmax.guess(tile::columns_of<half, half>(s)));
  }
}

}  // namespace froghopper::fwd
