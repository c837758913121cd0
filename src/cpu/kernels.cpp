// SPDX-License-Identifier: Apache-2.0
// cpu: lists the kernels, and finds those that this machine runs.
#include "src/cpu/factors.hpp"
#include "src/cpu/gradient_work.hpp"
#include "src/cpu/processor.hpp"
#include "src/cpu/work.hpp"

#define HWY_IS_DEBUG_BUILD 0
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/cpu/kernels.cpp"
#include "hwy/foreach_target.h"
//
#include "hwy/highway.h"
#include "src/cpu/multiply-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace froghopper::cpu::HWY_NAMESPACE {

// kernel.cpp
void attend_in_floats(const Work&);
void attend_in_pairs(const Work&);
void attend_in_tiles(const Work&);
void attend_in_emulated_tiles(const Work&);

// gradients.cpp
void differentiate_in_floats(const GradientWork&, QTiles&);
void differentiate_in_pairs(const GradientWork&, QTiles&);
void differentiate_in_tiles(const GradientWork&, QTiles&);
void differentiate_in_emulated_tiles(const GradientWork&, QTiles&);

// quantise_rows.cpp
void add_rows(const RowsToQuantise&, double* sums);
float largest_of_rows(const RowsToQuantise&);
void write_quantised_rows(const RowsToQuantise&, float scale);

// append_rows.cpp
void append_heads(const HeadsToAppend&);

constexpr int lanes = HWY_MAX_BYTES == 64 ? lanes_avx512 : lanes_usual;

constexpr Kernel in_floats(const char* name, bool (*runs_here)()) {
  return {attend_in_floats,
          differentiate_in_floats,
          add_rows,
          largest_of_rows,
          write_quantised_rows,
          append_heads,
          name,
          block_lanes,
          /*bf16_only=*/false,
          runs_here,
          lanes};
}
constexpr Kernel in_pairs(const char* name, bool (*runs_here)()) {
  return {attend_in_pairs,
          differentiate_in_pairs,
          add_rows,
          largest_of_rows,
          write_quantised_rows,
          append_heads,
          name,
          block_lanes,
          /*bf16_only=*/true,
          runs_here,
          lanes};
}

}  // namespace froghopper::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace froghopper::cpu {
namespace {

bool anywhere() { return true; }

#if HWY_TARGETS & HWY_AVX3
bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw");
}
// Processors with AMX start a vdpbf16ps every 2 cycles, and two fp32 multiply-adds every cycle: pairs have half the
// speed of floats there. Zen 5 starts as many of the one as of the other.
bool has_fast_pairs() { return has_avx512() && processor().avx512bf16 && !processor().amx_bf16; }
bool has_tiles() { return has_avx512() && processor().avx512bf16 && has_amx(); }
#endif
#if HWY_TARGETS & HWY_AVX2
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && processor().f16c &&
         __builtin_cpu_supports("bmi2");
}
#endif

// Constant, since threads may still compute while the process ends.
constexpr Kernel fastest_first[] = {
#if HWY_TARGETS & HWY_AVX3
    {N_AVX3::attend_in_tiles, N_AVX3::differentiate_in_tiles, N_AVX3::add_rows, N_AVX3::largest_of_rows,
     N_AVX3::write_quantised_rows, N_AVX3::append_heads, "amx", N_AVX3::block_lanes, /*bf16_only=*/true, has_tiles,
     lanes_max, tile_kv_amx},
    N_AVX3::in_pairs("avx512bf16", has_fast_pairs),
    N_AVX3::in_floats("avx512", has_avx512),
#endif
#if HWY_TARGETS & HWY_AVX2
    N_AVX2::in_floats("avx2", has_avx2),
#endif
    HWY_STATIC_DISPATCH(in_floats)("generic", anywhere),
};

constexpr Kernel for_tests[] = {
#if HWY_TARGETS & HWY_AVX3
    {N_AVX3::attend_in_emulated_tiles, N_AVX3::differentiate_in_emulated_tiles, N_AVX3::add_rows,
     N_AVX3::largest_of_rows, N_AVX3::write_quantised_rows, N_AVX3::append_heads, "emulated amx", N_AVX3::block_lanes,
     /*bf16_only=*/true, has_avx512, lanes_max, tile_kv_amx},
#endif
#if HWY_TARGETS & HWY_AVX2
    N_AVX2::in_pairs("emulated pairs, avx2", has_avx2),
#endif
    HWY_STATIC_DISPATCH(in_pairs)("emulated pairs, generic", anywhere),
};

void append(std::span<const Kernel> kernels, Dtype dtype, std::vector<const Kernel*>& to) {
  for (const Kernel& kernel : kernels)
    if (kernel.runs_here() && (dtype == Dtype::bf16 || !kernel.bf16_only)) to.push_back(&kernel);
}

}  // namespace

const Kernel& fastest_kernel(Dtype dtype) {
  const Kernel* kernel = fastest_first;
  while (!kernel->runs_here() || (kernel->bf16_only && dtype != Dtype::bf16)) ++kernel;
  return *kernel;
}

std::vector<const Kernel*> kernels(Dtype dtype) {
  std::vector<const Kernel*> all;
  append(fastest_first, dtype, all);
  append(for_tests, dtype, all);
  return all;
}

}  // namespace froghopper::cpu
#endif
