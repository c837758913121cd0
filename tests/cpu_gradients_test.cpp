// SPDX-License-Identifier: Apache-2.0
// tests: the CPU backend's gradients against the oracle, problem by problem.
#include "tests/support/cpu_gradients.hpp"

namespace froghopper {
namespace {

using namespace test;

constexpr Dtype all_dtypes[] = {Dtype::f16, Dtype::bf16, Dtype::f32};

TEST(CpuGradients, EveryHeadDim) {
  for (Dtype dtype : all_dtypes) {
    for (int64_t dim = 8; dim <= 256; dim += 8)
      expect_right_gradients(gradients_of(problem(dtype, 2, 1, 37, 150, dim)));
    for (int64_t dim : {264, 320, 384, 504, 512})
      expect_right_gradients(gradients_of(problem(dtype, 2, 1, 37, 150, dim)));
  }
}

TEST(CpuGradients, HeadDimOfVIsItsOwn) {
  for (Dtype dtype : all_dtypes) {
    for (auto [dim_qk, dim_v] : {std::pair{192, 128}, {8, 256}, {256, 8}, {72, 40}, {512, 64}, {64, 512}}) {
      Problem p = gradients_of(problem(dtype, 1, 1, 70, 200, dim_qk));
      p.dim_v = dim_v;
      expect_right_gradients(p);
    }
  }
}

// Around the sizes of vectors (16), blocks (64), tiles (128), KV tiles (64 to 256), and the register rows (6).
TEST(CpuGradients, OddLengths) {
  for (int64_t seq_q : {1, 2, 5, 15, 16, 17, 127, 129, 300}) {
    for (int64_t seq_kv : {1, 3, 6, 7, 63, 65, 129, 261, 515}) {
      expect_right_gradients(gradients_of(problem(Dtype::f32, 1, 1, seq_q, seq_kv, 16)));
      expect_right_gradients(gradients_of(with_mask(problem(Dtype::bf16, 1, 1, seq_q, seq_kv, 16), all_keys, 0)));
    }
  }
}

TEST(CpuGradients, Masks) {
  for (int64_t left : {all_keys, int64_t{0}, int64_t{5}, int64_t{130}}) {
    for (int64_t right : {all_keys, int64_t{0}, int64_t{3}, int64_t{200}}) {
      for (fh_align align : {FH_BOTTOM_RIGHT, FH_TOP_LEFT}) {
        for (auto [seq_q, seq_kv] : {std::pair{150, 150}, {40, 301}, {301, 40}, {600, 600}})
          expect_right_gradients(
              gradients_of(with_mask(problem(Dtype::f32, 2, 1, seq_q, seq_kv, 24), left, right, align)));
      }
    }
  }
}

TEST(CpuGradients, HeadsShareKeys) {
  for (auto [heads_q, heads_kv] : {std::pair{8, 8}, {8, 2}, {6, 2}, {40, 1}, {7, 1}}) {
    for (int64_t seq_q : {1, 3, 50})
      expect_right_gradients(
          gradients_of(with_mask(problem(Dtype::f16, heads_q, heads_kv, seq_q, 140, 64), all_keys, 0)));
  }
}

TEST(CpuGradients, SoftcapScaleAndSink) {
  for (Dtype dtype : all_dtypes) {
    for (float softcap : {0.0f, 0.5f, 30.0f}) {
      for (bool sink : {false, true}) {
        for (bool accumulate : {false, true}) {
          Problem p = gradients_of(with_mask(problem(dtype, 4, 2, 190, 180, 32), 20, 0), accumulate);
          p.softcap = softcap;
          p.sink = sink;
          p.scale = 0.3f;
          expect_right_gradients(p);
        }
      }
    }
  }
}

TEST(CpuGradients, PackedSequencesOfAllKinds) {
  for (Dtype dtype : all_dtypes) {
    for (bool accumulate : {false, true}) {
      Problem p = gradients_of(with_mask(problem(dtype, 4, 2, 200, 300, 40), all_keys, 0), accumulate);
      p.varlen = true;
      p.batch = 6;
      p.total_q = 400;
      p.total_kv = 500;
      // No query, no key, more queries than keys, fewer, one of each; rows 391 to 399 belong to none.
      const Lengths lengths{{0, 0, 50, 190, 190, 390, 391}, {0, 10, 10, 60, 60, 330, 331}, {}, {}};
      expect_right_gradients(p, lengths);
      p.sink = true;
      p.align = FH_TOP_LEFT;
      expect_right_gradients(p, lengths);
      p.seqused = true;
      Lengths used = lengths;
      used.used_q = {0, 49, 140, 0, 130, 0};
      used.used_kv = {9, 0, 1, 0, 129, 1};
      expect_right_gradients(p, used);
      used.used_q.clear();
      expect_right_gradients(p, used);
    }
  }
}

TEST(CpuGradients, UsedLengthsWithoutPacking) {
  Problem p = gradients_of(with_mask(problem(Dtype::bf16, 2, 2, 70, 200, 64), all_keys, 0));
  p.batch = 4;
  p.seqused = true;
  p.sink = true;
  expect_right_gradients(p, {{}, {}, {70, 0, 13, 65}, {200, 100, 0, 131}});
  expect_right_gradients(p, {{}, {}, {}, {1, 128, 199, 64}});
}

TEST(CpuGradients, NothingToDo) {
  for (bool accumulate : {false, true}) {
    for (auto [batch, seq_q, seq_kv] : {std::array{0, 5, 5}, {2, 0, 5}, {2, 5, 0}, {0, 0, 0}}) {
      Problem p = gradients_of(problem(Dtype::f32, 2, 2, seq_q, seq_kv, 16), accumulate);
      p.batch = batch;
      p.sink = true;
      expect_right_gradients(p);
    }
    Problem p = gradients_of(problem(Dtype::f32, 2, 2, 0, 0, 16), accumulate);
    p.varlen = true;
    p.batch = 0;
    p.total_q = 5;
    p.total_kv = 3;
    expect_right_gradients(p, {{0}, {0}, {}, {}});
  }
}

TEST(CpuGradients, GradLseMayBeLeftOut) {
  expect_right_gradients(gradients_of(problem(Dtype::f32, 2, 1, 33, 65, 64)), {},
                         [](HandMade& t) { t.views.grad_lse = {}; });
}

}  // namespace
}  // namespace froghopper
