// SPDX-License-Identifier: Apache-2.0
// tests: the CPU backend against the oracle, problem by problem.
#include <array>

#include "tests/support/cpu_problems.hpp"

namespace froghopper {
namespace {

using namespace test;

constexpr Dtype all_dtypes[] = {Dtype::f16, Dtype::bf16, Dtype::f32};

TEST(Cpu, EveryHeadDim) {
  for (Dtype dtype : all_dtypes) {
    for (int64_t dim = 8; dim <= 256; dim += 8) expect_right(problem(dtype, 2, 1, 37, 150, dim));
    for (int64_t dim : {264, 320, 384, 504, 512}) expect_right(problem(dtype, 2, 1, 37, 150, dim));
  }
}

TEST(Cpu, HeadDimOfVIsItsOwn) {
  for (Dtype dtype : all_dtypes) {
    for (auto [dim_qk, dim_v] : {std::pair{192, 128}, {8, 256}, {256, 8}, {72, 40}, {512, 64}, {64, 512}}) {
      Problem p = problem(dtype, 1, 1, 70, 200, dim_qk);
      p.dim_v = dim_v;
      expect_right(p);
    }
  }
}

// Around the sizes of vectors (16), blocks (64), tiles (128) and work items (256), and the register rows (6).
TEST(Cpu, OddLengths) {
  for (int64_t seq_q : {1, 2, 5, 15, 16, 17, 63, 65, 127, 257, 300}) {
    for (int64_t seq_kv : {1, 3, 6, 7, 127, 128, 129, 261}) {
      expect_right(problem(Dtype::f32, 1, 1, seq_q, seq_kv, 16));
      expect_right(with_mask(problem(Dtype::bf16, 1, 1, seq_q, seq_kv, 16), all_keys, 0));
    }
  }
}

TEST(Cpu, Masks) {
  for (int64_t left : {all_keys, int64_t{0}, int64_t{5}, int64_t{130}}) {
    for (int64_t right : {all_keys, int64_t{0}, int64_t{3}, int64_t{200}}) {
      for (fh_align align : {FH_BOTTOM_RIGHT, FH_TOP_LEFT}) {
        for (auto [seq_q, seq_kv] : {std::pair{150, 150}, {40, 301}, {301, 40}}) {
          expect_right(with_mask(problem(Dtype::f32, 2, 1, seq_q, seq_kv, 24), left, right, align));
        }
      }
    }
  }
}

TEST(Cpu, HeadsShareKeys) {
  for (auto [heads_q, heads_kv] : {std::pair{8, 8}, {8, 2}, {6, 2}, {40, 1}, {7, 1}}) {
    for (int64_t seq_q : {1, 3, 50}) {
      expect_right(with_mask(problem(Dtype::f16, heads_q, heads_kv, seq_q, 140, 64), all_keys, 0));
    }
  }
}

// Where a key head has a block of lanes at most, several are computed side by side; one row alone has loops of its own.
TEST(Cpu, FewRowsOfManyHeads) {
  for (Dtype dtype : all_dtypes) {
    for (auto [heads_q, heads_kv] : {std::pair{2, 2}, {20, 20}, {12, 3}, {35, 35}, {64, 2}}) {
      for (int64_t dim : {8, 72, 264}) {
        for (int64_t seq_q : {1, 3}) expect_right(problem(dtype, heads_q, heads_kv, seq_q, 150, dim));
        Problem p = with_mask(problem(dtype, heads_q, heads_kv, 1, 77, dim), 30, 0);
        p.sink = true;
        p.softcap = 5;
        expect_right(p);
      }
    }
    Problem p = with_mask(problem(dtype, 9, 9, 2, 300, 40), all_keys, 0);
    p.varlen = true;
    p.batch = 5;
    p.total_q = 12;
    p.total_kv = 500;
    expect_right(p, {{0, 1, 3, 3, 4, 6}, {0, 300, 301, 330, 330, 480}, {}, {}});  // 6 rows of no sequence
  }
}

TEST(Cpu, SoftcapScaleAndSink) {
  for (Dtype dtype : all_dtypes) {
    for (float softcap : {0.0f, 0.5f, 30.0f}) {
      for (bool sink : {false, true}) {
        Problem p = with_mask(problem(dtype, 4, 2, 90, 80, 32), 20, 0);
        p.softcap = softcap;
        p.sink = sink;
        p.scale = 0.3f;
        expect_right(p);
      }
    }
  }
}

TEST(Cpu, PackedSequencesOfAllKinds) {
  for (Dtype dtype : all_dtypes) {
    Problem p = with_mask(problem(dtype, 4, 2, 200, 300, 40), all_keys, 0);
    p.varlen = true;
    p.batch = 6;
    p.total_q = 400;
    p.total_kv = 500;
    // No query, no key, more queries than keys, fewer, one of each; rows 391 to 399 belong to none.
    const Lengths lengths{{0, 0, 50, 190, 190, 390, 391}, {0, 10, 10, 60, 60, 330, 331}, {}, {}};
    expect_right(p, lengths);
    p.sink = true;
    p.align = FH_TOP_LEFT;
    expect_right(p, lengths);
    p.seqused = true;
    Lengths used = lengths;
    used.used_q = {0, 49, 140, 0, 130, 0};
    used.used_kv = {9, 0, 1, 0, 129, 1};
    expect_right(p, used);
    used.used_q.clear();
    expect_right(p, used);
  }
}

TEST(Cpu, UsedLengthsWithoutPacking) {
  Problem p = with_mask(problem(Dtype::bf16, 2, 2, 70, 200, 64), all_keys, 0);
  p.batch = 4;
  p.seqused = true;
  expect_right(p, {{}, {}, {70, 0, 13, 65}, {200, 100, 0, 131}});
  expect_right(p, {{}, {}, {}, {1, 128, 199, 64}});
}

TEST(Cpu, NothingToDo) {
  for (auto [batch, seq_q, seq_kv] : {std::array{0, 5, 5}, {2, 0, 5}, {2, 5, 0}, {0, 0, 0}}) {
    Problem p = problem(Dtype::f32, 2, 2, seq_q, seq_kv, 16);
    p.batch = batch;
    p.sink = true;
    expect_right(p);
  }
  Problem p = problem(Dtype::f32, 2, 2, 0, 0, 16);
  p.varlen = true;
  p.batch = 0;
  p.total_q = 5;
  expect_right(p, {{0}, {0}, {}, {}});
}

TEST(Cpu, LseMayBeLeftOut) {
  HandMade t(problem(Dtype::f32, 2, 1, 33, 65, 64));
  t.views.lse.data = nullptr;
  run(t);
  EXPECT_TRUE(std::isnan(t.lse[0]));
  const test::Forward exact = test::exact(t);
  EXPECT_LT(largest_error(exact.o, [&](size_t i) { return t.o(i); }), 1e-5);
}

TEST(Cpu, SaysWhatRunsHere) {
  Problem p = problem(Dtype::f32, 8, 8, 1000, 1000, 64);
  p.max_sms = 1;
  const auto plan = cpu::plan(p);
  ASSERT_TRUE(plan);
  const std::string line = plan->line();
  EXPECT_EQ(line, p.line() + " -> " + plan->how());
  EXPECT_NE(line.find(" -> cpu "), std::string::npos) << line;
  EXPECT_NE(line.find(".kv128 threads 1"), std::string::npos) << line;
}

}  // namespace
}  // namespace froghopper
