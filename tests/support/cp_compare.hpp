// SPDX-License-Identifier: Apache-2.0
// tests: attention over ranks beside fp64 and beside one rank.
#pragma once
#include "tests/support/cp_attention.hpp"

namespace froghopper::test {

inline fh_problem small(int64_t rows, int64_t heads_q = 4, int64_t heads_kv = 2) {
  fh_problem p = fh_problem_init();
  p.dtype = FH_F32;
  p.batch = 2, p.heads_q = heads_q, p.heads_kv = heads_kv, p.seq_q = p.seq_kv = rows;
  p.dim_qk = 16, p.dim_v = 8;
  p.max_sms = 1, p.deterministic = 1;
  return p;
}
// One sequence, or the rows of several documents.
inline fh_problem packed(int64_t rows, int64_t heads_q = 4, int64_t heads_kv = 2) {
  fh_problem p = small(rows, heads_q, heads_kv);
  p.batch = 1;
  return p;
}
inline fh_problem causal(fh_problem p) { return p.causal = 1, p; }
inline fh_problem windowed(fh_problem p, int64_t left, int64_t right) {
  return p.window_left = left, p.window_right = right, p;
}

inline double largest_error(const Numbers& found, const std::vector<double>& wanted) {
  double most = 0;
  for (int64_t i = 0; i < found.count(); ++i) {
    const double error = std::abs(found.at(i) - wanted[static_cast<size_t>(i)]);
    if (!(error <= most)) most = error;  // NaN is an error too
    if (std::isnan(error)) return error;
  }
  return most;
}
inline double largest(const std::vector<double>& all) {
  double most = 0;
  for (const double x : all) most = std::max(most, std::abs(x));
  return most;
}

// lse of the oracle is [batch][seq][heads].
inline std::vector<double> lines_first(const fh_problem& p, const std::vector<double>& rows_first) {
  std::vector<double> all(rows_first.size());
  for (int64_t b = 0; b < p.batch; ++b)
    for (int64_t r = 0; r < p.seq_q; ++r)
      for (int64_t h = 0; h < p.heads_q; ++h)
        all[static_cast<size_t>((b * p.heads_q + h) * p.seq_q + r)] =
            rows_first[static_cast<size_t>((b * p.seq_q + r) * p.heads_q + h)];
  return all;
}

struct Compared {
  Numbers CpTensors::*tensor;
  View Views::*view;
  fh_op op;
  const char* name;
};
inline constexpr Compared everything[] = {
    {&CpTensors::o, &Views::o, FH_FORWARD, "o"},
    {&CpTensors::lse, &Views::lse, FH_FORWARD, "lse"},
    {&CpTensors::grad_q, &Views::grad_q, FH_BACKWARD, "grad_q"},
    {&CpTensors::grad_k, &Views::grad_k, FH_BACKWARD, "grad_k"},
    {&CpTensors::grad_v, &Views::grad_v, FH_BACKWARD, "grad_v"},
    {&CpTensors::grad_sink, &Views::grad_sink, FH_BACKWARD, "grad_sink"},
};

// Of two cases of the same tensors, over ranks: forward and backward, all results bit by bit.
inline void expect_equal_bits(const CpCase& one, const CpCase& other) {
  CpTensors first = inputs(one);
  run_alone(one, first);
  CpTensors second = first;
  for (auto [c, t] : {std::pair{&one, &first}, std::pair{&other, &second}}) {
    run_ranks(*c, FH_BACKWARD, *t);
    run_ranks(*c, FH_FORWARD, *t);
  }
  for (const Compared& x : everything) EXPECT_EQ(first.*x.tensor, second.*x.tensor) << x.name;
}

// No worse than twice the error of one rank, and one rounding of the largest number.
inline void expect_as_on_one_rank(const CpCase& c) {
  CpTensors alone = inputs(c);
  run_alone(c, alone);
  CpTensors spread = alone;
  run_ranks(c, FH_FORWARD, spread);
  CpTensors backward = alone;
  const bool has_gradients = !alone.scale_k.data();
  if (has_gradients) run_ranks(c, FH_BACKWARD, backward);
  for (const Compared& x : everything) {
    if (!has_gradients && x.op == FH_BACKWARD) continue;
    if (x.tensor == &CpTensors::grad_sink && !c.whole.sink) continue;
    std::vector<double> wanted = exact(c, x.op, alone, x.view);
    if (x.tensor == &CpTensors::lse) wanted = lines_first(c.whole, wanted);
    const Numbers& found = (x.op == FH_FORWARD ? spread : backward).*x.tensor;
    const double unit = unit_roundoff(element_of_c(c.whole.dtype));
    const double most = 2 * largest_error(alone.*x.tensor, wanted) + (unit + 0x1p-22) * largest(wanted);
    EXPECT_LE(largest_error(found, wanted), most)
        << x.name << ", " << fh_cp_scheme_name(c.scheme) << ", " << c.ranks << " ranks, " << c.whole.seq_q << " rows";
  }
}

}  // namespace froghopper::test
