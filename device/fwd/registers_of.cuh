// SPDX-License-Identifier: Apache-2.0
// device/fwd: how many registers each role of the forward kernel has.
#pragma once
#include "contract/fwd_smem.h"
#include "contract/fwd_variant.h"
#include "contract/types.h"

namespace froghopper::fwd {

// At launch each thread of a CTA has 65536 / threads, rounded down to 8 (168, 128, 96 at 3, 4, 5 warpgroups);
// setmaxnreg divides the same sum between the roles.
template <FwdVariant V>
struct RegistersOf {
  static constexpr int count = fwd_consumers(V);
  static constexpr bool dequantising_warpgroup = fwd_dequantises_in_four_warps(V);
  // What S, P and O of a Consumer with FP8 MMAs take. Two Consumers are crowded above 200 of them, or 180 with a mask;
  // three are crowded by just S and O (fwd_immediate_pv).
  static constexpr int of_tiles = fwd_fp8_mma(V) ? V.tiles.kv / 2 + V.tiles.kv / 8 + V.dims.v / 2 : 0;
  static constexpr bool crowded = fwd_immediate_pv(V) || of_tiles > (V.mask == Mask::none ? 200 : 180);
  // Consumers need all of their registers where there are 4 of them, or at head dim 256.
  static constexpr bool dequantises_in_few_registers =
      fwd_dequantises_on_load(V) && !dequantising_warpgroup && (count > 3 || V.dims.v > 192);

  struct Shares {  // of a thread of each role
    int of_consumer, of_producer;
    int of_dequantiser = 0;  // where they are a warpgroup of their own
  };
  static constexpr Shares shares() {
    if (dequantising_warpgroup) return count == 1 ? Shares{240, 72, 96} : Shares{208, 40, 56};
    if (crowded && count <= 2) return {240, 24};
    if (V.kv.layout == KvLayout::page_rows && !fwd_reads_8_bit(V) &&
        count <= 2)  // to make addresses of rows from the block table
      return V.pack_gqa && count == 1 ? Shares{200, 56} : Shares{216, 72};
    const Shares usual = count == 1 && V.pack_gqa ? Shares{216, 40}
                         : count <= 2             ? Shares{232, 40}
                                                  : Shares{count == 3 ? 160 : 112, 32};
    if (!fwd_reads_8_bit(V) || dequantises_in_few_registers || crowded) return usual;
    return {usual.of_consumer - (V.pack_gqa ? 16 : 8), 56};  // to transpose or to dequantise
  }
  // Registers of a thread.
  static constexpr int of_consumer = shares().of_consumer, of_producer = shares().of_producer,
                       of_dequantiser = shares().of_dequantiser;
  static constexpr bool uses_setmaxnreg = dequantising_warpgroup || !V.pack_gqa || count > 1 ||
                                          fwd_ctas_by_registers(V) > 1;

  // An SM has 65536 registers: 512 a thread of one warpgroup, divided among the CTAs that share it.
  static_assert(!uses_setmaxnreg ||
                of_producer + of_dequantiser + count * of_consumer <= 512 / fwd_ctas_by_registers(V));

  // Blocks on their way from shared memory at once: as many as these registers hold.
  static constexpr int transposed_ahead = crowded ? 3 : 8;
  static constexpr int dequantised_ahead = V.kv.token_scales               ? 3
                                           : !dequantises_in_few_registers ? 5
                                           : count > 3                     ? 2
                                                                           : 3;
};

}  // namespace froghopper::fwd
