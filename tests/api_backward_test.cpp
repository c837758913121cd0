// SPDX-License-Identifier: Apache-2.0
// Claims about gradients through the public interface: a forward plan's o and lse and a backward plan of the same
// description give them, added up where so asked, for keys without rows too; what is missing is named.
#include <froghopper/froghopper.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <vector>

namespace {

namespace fh = froghopper;

// Scores are 0, so a causal row i gives each of its i + 1 keys the same weight. The gradient of o is 1 everywhere:
// grad_v[j] is the sum of 1 / (i + 1) over both heads and all rows from j on, and grad_q is scale times the sum of
// (dim j - dim i / 2) / (i + 1) over the keys j, which is 0.
struct KnownGradients {
  static constexpr int64_t rows = 5, heads = 2, dim = 8;
  fh::Problem problem{.dtype = fh::Dtype::f32,
                      .heads_q = heads,
                      .heads_kv = 1,
                      .seq_q = rows,
                      .seq_kv = rows,
                      .dim_qk = dim,
                      .causal = true};
  std::vector<float> q, k, v, o, lse, grad_o, grad_q, grad_k, grad_v;

  KnownGradients()
      : q(rows * heads * dim), k(rows * dim, 1.0f), v(k), o(q), lse(rows * heads), grad_o(q.size(), 1.0f) {
    for (size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>(i / dim);
    grad_q.assign(q.size(), NAN), grad_k.assign(k.size(), NAN), grad_v.assign(v.size(), NAN);
    fh::attention(problem, forward_tensors(), "cpu");
    problem.op = fh::Op::backward;
  }

  fh::Tensors forward_tensors() {
    return {.q = fh::dense(q.data(), rows, heads, dim),
            .k = fh::dense(k.data(), rows, 1, dim),
            .v = fh::dense(v.data(), rows, 1, dim),
            .o = fh::dense(o.data(), rows, heads, dim),
            .lse = lse.data()};
  }
  fh::Tensors tensors() {
    fh::Tensors t = forward_tensors();
    t.grad_o = fh::dense(grad_o.data(), rows, heads, dim);
    t.grad_q = fh::dense(grad_q.data(), rows, heads, dim);
    t.grad_k = fh::dense(grad_k.data(), rows, 1, dim);
    t.grad_v = fh::dense(grad_v.data(), rows, 1, dim);
    return t;
  }

  static double exact_grad_v(int64_t key) {
    double sum = 0;
    for (int64_t row = key; row < rows; ++row) sum += static_cast<double>(heads) / static_cast<double>(row + 1);
    return sum;
  }
  // times: how often the gradients are in what is found.
  void expect(double times) const {
    for (const float x : grad_q) EXPECT_NEAR(x, 0, 1e-5);
    for (size_t i = 0; i < v.size(); ++i)
      EXPECT_NEAR(grad_v[i], times * exact_grad_v(static_cast<int64_t>(i) / dim), 1e-5);
    for (const float x : grad_k) EXPECT_NEAR(x, 0, 1e-5);  // q is 0
  }
};

TEST(api_backward, a_plan_gives_the_gradients) {
  KnownGradients known;
  const fh::Plan plan(known.problem, "cpu");
  EXPECT_EQ(plan.line().rfind("bwd f32 b1 hq2 hkv1 sq5 skv5 d8 causal -> cpu", 0), 0u) << plan.line();
  plan.run(known.tensors());
  known.expect(1);
  plan.run(known.tensors());
  known.expect(1);
}

TEST(api_backward, gradients_are_added_to_what_is_there) {
  KnownGradients known;
  known.problem.accumulate = true;
  for (std::vector<float>* const gradient : {&known.grad_q, &known.grad_k, &known.grad_v})
    gradient->assign(gradient->size(), 0.0f);
  EXPECT_EQ(fh::print(known.problem), "bwd f32 b1 hq2 hkv1 sq5 skv5 d8 causal acc");
  EXPECT_EQ(fh::parse(fh::print(known.problem)).accumulate, true);
  fh::attention(known.problem, known.tensors(), "cpu");
  fh::attention(known.problem, known.tensors(), "cpu");
  known.expect(2);
}

TEST(api_backward, keys_without_rows_have_gradients_of_zero) {
  std::vector<float> kv(3 * 8, 1.0f), grad_k(kv.size(), NAN), grad_v(kv.size(), NAN), sink(2, 1.0f),
      grad_sink(2, NAN);
  const fh::Problem problem{.op = fh::Op::backward,
                            .dtype = fh::Dtype::f32,
                            .heads_q = 2,
                            .heads_kv = 1,
                            .seq_q = 0,
                            .seq_kv = 3,
                            .dim_qk = 8,
                            .sink = true};
  std::vector<float> nothing(1);
  fh::Tensors t;
  t.k = t.v = fh::dense(kv.data(), 3, 1, 8);
  t.grad_k = fh::dense(grad_k.data(), 3, 1, 8);
  t.grad_v = fh::dense(grad_v.data(), 3, 1, 8);
  t.lse = nothing.data();
  t.sink = sink.data(), t.grad_sink = grad_sink.data();
  fh::attention(problem, t, "cpu");
  for (const auto* const gradient : {&grad_k, &grad_v, &grad_sink})
    for (const float x : *gradient) EXPECT_EQ(x, 0);
}

struct Refused {
  const char* says;
  void (*spoil)(fh_problem&, fh_tensors&);
};

TEST(api_backward, what_is_missing_is_named) {
  const Refused all[] = {
      {"fh_attention: lse is NULL; a problem with a backward pass needs ",
       [](fh_problem&, fh_tensors& t) { t.lse = nullptr; }},
      {"fh_attention: grad_o.data is NULL; ", [](fh_problem&, fh_tensors& t) { t.grad_o.data = nullptr; }},
      {"fh_attention: grad_k.data is NULL; ", [](fh_problem&, fh_tensors& t) { t.grad_k.data = nullptr; }},
      {"fh_attention: grad_o is set, but the problem has no backward pass",
       [](fh_problem& p, fh_tensors&) { p.op = FH_FORWARD; }},
      // A program of a header without gradients asks for them by number: its struct ends before their tensors.
      {"fh_attention: grad_o.data is NULL; ",
       [](fh_problem&, fh_tensors& t) { t.size = offsetof(fh_tensors, grad_o); }},
  };
  for (const Refused& refused : all) {
    KnownGradients known;
    fh_problem p = fh::to_c(known.problem);
    fh_tensors t = fh::to_c(known.tensors());
    refused.spoil(p, t);
    EXPECT_EQ(fh_attention(&p, "cpu", &t, nullptr, 0, nullptr), FH_INVALID_TENSOR);
    EXPECT_EQ(std::string(fh_last_error()).rfind(refused.says, 0), 0u) << fh_last_error();
    for (const float x : known.grad_v) EXPECT_TRUE(std::isnan(x));
  }
}

}  // namespace
