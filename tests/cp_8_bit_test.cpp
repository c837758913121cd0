// SPDX-License-Identifier: Apache-2.0
// Claims about 8-bit k and v over ranks: every scheme gives what fp64 gives of the same elements and scales, as closely
// as one rank does, for every mask, head count and length, and with documents; half the bytes move; each rank of an
// exchange of heads has the scales of its own heads; what cannot be is said.
#include <gtest/gtest.h>

#include "tests/support/cp_compare.hpp"
#include "tests/support/cp_given.hpp"

namespace froghopper {
namespace {

using test::causal;
using test::CpCase;
using test::CpTensors;
using test::expect_as_on_one_rank;
using test::small;
using test::windowed;

constexpr fh_cp_scheme schemes[] = {FH_CP_RING, FH_CP_ALL_GATHER, FH_CP_ALL_TO_ALL, FH_CP_ALL_TO_ALL_RING,
                                    FH_CP_ALL_TO_ALL_GATHER};

fh_problem of_8_bits(fh_problem p, fh_dtype kv = FH_E4M3) {
  p.dtype = FH_BF16, p.dtype_kv = kv, p.dim_qk = 32, p.dim_v = 16;
  return p;
}

void expect_all(const CpCase& given, std::initializer_list<int64_t> ranks) {
  for (const int64_t count : ranks)
    for (const fh_cp_scheme scheme : schemes) {
      CpCase c = given;
      c.ranks = count, c.scheme = scheme;
      const bool grid = scheme == FH_CP_ALL_TO_ALL_RING || scheme == FH_CP_ALL_TO_ALL_GATHER;
      if ((grid && count % 2 != 0) || (scheme == FH_CP_ALL_TO_ALL && c.whole.heads_q % count != 0)) continue;
      if (grid) c.heads_ranks = 2;
      const bool is_ring = scheme == FH_CP_RING || scheme == FH_CP_ALL_TO_ALL_RING;
      if (is_ring && (c.whole.window_right > 0 || c.whole.alibi)) continue;
      expect_as_on_one_rank(c);
    }
}
void expect_all(const fh_problem& whole, std::initializer_list<int64_t> ranks) {
  CpCase c;
  c.whole = whole;
  expect_all(c, ranks);
}

TEST(ContextParallel8Bit, every_scheme_gives_what_one_rank_gives) {
  for (const fh_dtype kv : {FH_E4M3, FH_E5M2})
    for (const fh_problem& p : {small(37), causal(small(37)), windowed(small(45), 11, 0), windowed(small(45), 5, 3)})
      expect_all(of_8_bits(p, kv), {1, 2, 3, 4});
  fh_problem f16 = of_8_bits(causal(small(64, 8, 8)));
  f16.dtype = FH_F16;
  expect_all(f16, {4, 8});
}

// Of fewer key heads than ranks several share one, and read its scale.
TEST(ContextParallel8Bit, key_heads_and_their_scales) {
  for (const int64_t heads_kv : {1, 2, 4, 8}) expect_all(of_8_bits(causal(small(50, 8, heads_kv))), {2, 4, 8});
}

TEST(ContextParallel8Bit, few_rows_and_empty_shards) {
  for (const int64_t rows : {0, 1, 3, 7, 9}) expect_all(of_8_bits(causal(small(rows, 4, 2))), {2, 4});
}

TEST(ContextParallel8Bit, options_and_f32_results) {
  CpCase c;
  c.whole = of_8_bits(causal(small(41))), c.out = FH_F32;
  c.whole.softcap = 1.5f, c.whole.scale = 0.3f, c.whole.sink = 1;
  expect_all(c, {2, 4});
  c.whole.sink = 0, c.whole.softcap = 0, c.whole.alibi = 1, c.out = FH_USUAL;
  expect_all(c, {2, 4});
}

TEST(ContextParallel8Bit, the_type_of_o_may_be_named) {
  fh_problem p = of_8_bits(causal(small(41)));
  p.dtype_o = FH_BF16;
  expect_all(p, {2});
}

TEST(ContextParallel8Bit, documents) {
  for (const fh_cp_layout layout : {FH_CP_CONTIGUOUS, FH_CP_ZIGZAG, FH_CP_BY_DOCUMENT}) {
    CpCase c;
    c.whole = of_8_bits(causal(small(45))), c.whole.batch = 1, c.layout = layout;
    c.documents = {0, 0, 7, 8, 36, 36, 40, 45, 45};
    expect_all(c, {2, 4});
  }
}

TEST(ContextParallel8Bit, two_runs_give_equal_bits) {
  for (const fh_cp_scheme scheme : schemes) {
    CpCase c;
    c.whole = of_8_bits(causal(small(45))), c.ranks = 4, c.scheme = scheme;
    if (scheme == FH_CP_ALL_TO_ALL_RING || scheme == FH_CP_ALL_TO_ALL_GATHER) c.heads_ranks = 2;
    CpTensors first = test::inputs(c), second = first;
    test::run_ranks(c, FH_FORWARD, first);
    test::run_ranks(c, FH_FORWARD, second);
    EXPECT_EQ(first.o, second.o) << fh_cp_scheme_name(scheme);
    EXPECT_EQ(first.lse, second.lse) << fh_cp_scheme_name(scheme);
  }
}

TEST(ContextParallel8Bit, half_the_bytes_move) {
  CpCase c;
  c.whole = of_8_bits(causal(small(64))), c.ranks = 4;
  for (const fh_cp_scheme scheme : {FH_CP_RING, FH_CP_ALL_GATHER}) {
    c.scheme = scheme, c.whole.dtype_kv = FH_E4M3;
    CpTensors narrow = test::inputs(c);
    const uint64_t moved = test::run_ranks(c, FH_FORWARD, narrow);
    c.whole.dtype_kv = FH_USUAL;
    CpTensors wide = test::inputs(c);
    EXPECT_EQ(2 * moved, test::run_ranks(c, FH_FORWARD, wide)) << fh_cp_scheme_name(scheme);
    EXPECT_GT(moved, 0u);
  }
}

std::string refused(fh_problem whole, fh_status status) {
  fh_cp_problem p = fh_cp_problem_init();
  p.whole = &whole, p.ranks = 2;
  fh_cp_plan* plan = nullptr;
  EXPECT_EQ(fh_cp_plan_create(&p, "cpu", &plan), status);
  fh_cp_plan_destroy(plan);
  return fh_cp_last_error();
}

TEST(ContextParallel8Bit, what_cannot_be_is_said) {
  fh_problem p = of_8_bits(small(8));
  p.op = FH_BACKWARD;
  EXPECT_NE(refused(p, FH_UNSUPPORTED).find("k and v of a backward pass must have the type of q"), std::string::npos);
  p = of_8_bits(small(8)), p.dtype = FH_E4M3;
  EXPECT_NE(refused(p, FH_UNSUPPORTED).find("whole->dtype_kv"), std::string::npos);
  p = of_8_bits(small(8)), p.scale_rows = 128;
  EXPECT_NE(refused(p, FH_UNSUPPORTED).find("whole->scale_rows is set"), std::string::npos);
  p = of_8_bits(small(8), FH_F32);
  EXPECT_NE(refused(p, FH_UNSUPPORTED).find("whole->dtype_kv is"), std::string::npos);
}

TEST(ContextParallel8Bit, scales_are_needed_and_nothing_else_has_them) {
  for (const bool has_8_bits : {true, false}) {
    CpCase c;
    c.whole = of_8_bits(small(8), has_8_bits ? FH_E4M3 : FH_USUAL);
    CpTensors t = test::inputs(c);
    t.o = test::empty_whole(c.whole, &CpTensors::o, Element::bf16);
    const test::CpPlan plan = test::plan_of(c, FH_FORWARD, 0);
    fh_cp_tensors x = test::cp_tensors(t, FH_FORWARD);
    float other[2] = {1, 1};
    (has_8_bits ? x.scale_v : x.scale_k) = has_8_bits ? nullptr : other;
    const test::Workspace workspace(fh_cp_plan_workspace_bytes(plan.get()));
    EXPECT_EQ(fh_cp_plan_run(plan.get(), nullptr, nullptr, &x, workspace.data(), workspace.bytes(), nullptr),
              FH_INVALID_TENSOR);
    EXPECT_NE(std::string(fh_cp_last_error()).find(has_8_bits ? "scale_v is NULL" : "scale_k is given"),
              std::string::npos)
        << fh_cp_last_error();
  }
}

// Before data move, so that all ranks are told, and as the function that the user has called says it.
TEST(ContextParallel8Bit, a_scale_that_is_none_is_refused_on_all_ranks) {
  const float good[] = {1, 1};
  for (const float wrong : {std::nanf(""), 0.0f, -1.0f, 1e38f, 1e-39f})
    for (const float* fh_cp_tensors::*list : {&fh_cp_tensors::scale_k, &fh_cp_tensors::scale_v}) {
      const float bad[] = {1, wrong};
      CpCase c = test::small_of(FH_CP_RING);
      c.whole.dtype = FH_BF16, c.whole.dtype_kv = FH_E4M3;
      test::Ranks ranks(4);
      const auto outcomes = test::run_given(c, FH_FORWARD, ranks, [&](int64_t rank, test::Given& g) {
        g.tensors.scale_k = g.tensors.scale_v = good;
        if (rank == 1) g.tensors.*list = bad;
      });
      const std::string name = list == &fh_cp_tensors::scale_k ? "scale_k" : "scale_v";
      for (size_t rank = 0; rank < 4; ++rank) {
        EXPECT_EQ(outcomes[rank].status, rank == 1 ? FH_INVALID_TENSOR : FH_INVALID_PROBLEM) << outcomes[rank].text;
        const std::string said = rank == 1 ? "tensors." + name + "[1] is " : "rank 1 refuses its arguments";
        EXPECT_EQ(outcomes[rank].text.find("fh_cp_plan_run: " + said), 0u) << outcomes[rank].text;
        EXPECT_TRUE(test::untouched(outcomes[rank].o));
      }
      EXPECT_EQ(ranks.bytes_moved, 0u);
    }
}

}  // namespace
}  // namespace froghopper
