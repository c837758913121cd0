// SPDX-License-Identifier: Apache-2.0
// tests: gradients by the CPU backend, and their judge: an error may be twice that of plain loops of that precision.
#pragma once
#include <string>

#include "tests/support/cpu_problems.hpp"

namespace froghopper::test {

inline Problem gradients_of(Problem p, bool accumulate = false) {
  p.op = FH_BACKWARD;
  p.accumulate = accumulate;
  return p;
}

// o and lse as an exact forward pass gives them, rounded. NaN stays where lse is -infinity: there nothing is read.
inline void fill_from_forward(HandMade& t) {
  const Forward forward = exact(t);
  const View& o = t.views.o;
  for (int64_t i = 0; i < static_cast<int64_t>(forward.lse.size()); ++i) {
    if (forward.lse[i] == -infinity) continue;
    t.lse[i] = static_cast<float>(forward.lse[i]);
    const int64_t row = i % o.seq, head = i / o.seq % o.heads, batch = i / o.seq / o.heads;
    const int64_t dense = ((batch * o.seq + row) * o.heads + head) * o.dim;
    for (int64_t c = 0; c < o.dim; ++c)
      store(o.data, HandMade::element(o, dense + c), o.element, static_cast<float>(forward.o[dense + c]));
  }
}

inline constexpr View Views::*gradients[] = {&Views::grad_q, &Views::grad_k, &Views::grad_v, &Views::grad_sink};

inline double at(const View& view, int64_t dense) {
  return load(view.data, HandMade::element(view, dense), view.element);
}

// What a problem with accumulate adds to.
inline void fill_gradients(HandMade& t, float value) {
  for (View Views::*gradient : gradients) {
    const View& view = t.views.*gradient;
    for (int64_t i = 0; i < view.batch * view.seq * view.heads * view.dim; ++i)
      store(view.data, HandMade::element(view, i), view.element, value);
  }
}

// A gradient may cancel to much less than what is added up to it, so a few roundings of that are allowed too.
inline void expect_gradients(const HandMade& t, const oracle::Gradients& exact, const oracle::Answers& rough,
                             const std::string& what) {
  const auto largest_of = [](const std::vector<double>& numbers) {
    double largest = 0;
    for (double x : numbers) largest = std::max(largest, std::abs(x));
    return largest;
  };
  for (View Views::*gradient : gradients) {
    const size_t tensor = index_of(gradient);
    const std::vector<double>& right = exact.exact[tensor];
    if (right.empty()) continue;
    const double allowed = largest_error(right, [&](size_t i) { return rough[tensor][i]; });
    const double summed =
        (largest_of(exact.summed[tensor]) + largest_of(exact.rounded[tensor])) * 8 * unit_roundoff(Element::f32);
    const double unit = unit_roundoff((t.views.*gradient).element);
    EXPECT_LE(largest_error(right, [&](size_t i) { return at(t.views.*gradient, static_cast<int64_t>(i)); }),
              2 * allowed + largest_of(right) * unit + summed)
        << what << ' ' << tensors()[tensor].name << ' ' << t.problem.line();
  }
}

using Prepare = std::function<void(HandMade&)>;

// By every kernel that this machine can run.
inline void expect_right_gradients(const Problem& p, const Lengths& lengths = {}, const Prepare& prepare = {}) {
  HandMade given(p, lengths);
  if (prepare) prepare(given);
  fill_from_forward(given);
  if (p.accumulate) fill_gradients(given, 0.5f);
  const oracle::Gradients exact = oracle::compute_gradients(given.problem, given.views);
  const oracle::Answers rough = oracle::compute_same_precision(given.problem, given.views);
  for (const cpu::Kernel* kernel : cpu::kernels(p.dtype)) {
    fill_gradients(given, p.accumulate ? 0.5f : nan);
    const Result<void> done = cpu::run(cpu::plan_with(*kernel, given.problem), given.views);
    ASSERT_TRUE(done) << done.failure().text;
    expect_gradients(given, exact, rough, kernel->name);
  }
}

}  // namespace froghopper::test
