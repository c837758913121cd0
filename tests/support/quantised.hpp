// SPDX-License-Identifier: Apache-2.0
// tests: q, k and v that are quantised through the C interface on the CPU.
#pragma once
#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "check/compare.hpp"
#include "src/problem/problem.hpp"
#include "tests/support/case_of.hpp"

namespace froghopper::test {

// Dense inputs in fp32 and what is written of them.
struct Quantised {
  explicit Quantised(const std::string& line) : p(*Problem::parse(line)) {
    fill(q, p.seq_q * p.heads_q * p.dim_qk, 1), fill(k, p.seq_kv * p.heads_kv * p.dim_qk, 2);
    fill(v, p.seq_kv * p.heads_kv * p.dim_v, 3);
    tensors.q = dense(q, p.heads_q, p.dim_qk), tensors.k = dense(k, p.heads_kv, p.dim_qk);
    tensors.v = dense(v, p.heads_kv, p.dim_v);
    q8.resize(q.size()), k8.resize(k.size()), v8.resize(v.size());
    tensors.quantised_q = dense(q8, p.heads_q, p.dim_qk), tensors.quantised_k = dense(k8, p.heads_kv, p.dim_qk);
    tensors.quantised_v = dense(v8, p.heads_kv, p.dim_v);
    scale_q.resize(p.scale_blocks(p.seq_q) * p.heads_q), scale_k.resize(p.scale_blocks(p.seq_kv) * p.heads_kv);
    scale_v.resize(scale_k.size());
    tensors.scale_q = dense(scale_q, p.heads_q, 1), tensors.scale_k = dense(scale_k, p.heads_kv, 1);
    tensors.scale_v = dense(scale_v, p.heads_kv, 1);
  }
  Quantised(const Quantised&) = delete;

  fh_status run() const {
    const fh_problem user = p.user_struct();
    return fh_attention(&user, "cpu", &tensors, nullptr, 0, nullptr);
  }
  template <class T>
  static fh_tensor dense(std::vector<T>& data, int64_t heads, int64_t dim) {
    return {data.data(), 0, heads * dim, dim};
  }
  // Some entries ten times larger than the others: the paper's N(0, 1) + N(0, 100) Bernoulli(0.001).
  static void fill(std::vector<float>& numbers, int64_t count, uint64_t seed) {
    uint64_t state = seed * 0x9e3779b97f4a7c15u;
    const auto uniform = [&] {
      state = state * 6364136223846793005u + 1442695040888963407u;
      return static_cast<double>((state >> 11) + 1) * 0x1p-53;
    };
    const auto normal = [&] {
      const double radius = std::sqrt(-2 * std::log(uniform()));
      return radius * std::cos(2 * 3.14159265358979 * uniform());
    };
    for (int64_t i = 0; i < count; ++i) {
      const double usual = normal(), large = 10 * normal();
      numbers.push_back(static_cast<float>(uniform() < 0.001 ? usual + large : usual));
    }
  }

  Problem p;
  fh_tensors tensors = fh_tensors_init();
  std::vector<float> q, k, v, scale_q, scale_k, scale_v;
  std::vector<uint8_t> q8, k8, v8;
};

// What the judge says of a case that the CPU has computed and `spoil` has changed; "": nothing.
inline std::string why_spoiled(const std::string& line, const std::function<void(const Views&)>& spoil) {
  const check::Case c = case_of(line);
  const auto in = check::make_inputs(c, 1);
  const auto views = bind(c.problem, in->tensors);
  EXPECT_TRUE(views) << views.failure().text;
  const check::Before before(c.problem, *in);
  const fh_problem user = c.problem.user_struct();
  EXPECT_EQ(fh_attention(&user, "cpu", &in->tensors, nullptr, 0, nullptr), FH_OK) << fh_last_error();
  spoil(*views);
  check::Outcome out;
  check::judge(c.problem, check::make_reference(c, *views), *views, *in, before, out);
  return out.why;
}

}  // namespace froghopper::test
