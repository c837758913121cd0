// SPDX-License-Identifier: Apache-2.0
// check: the measures and their bounds.
//
// The yardstick is e, the error of plain loops that round inputs, weights and results to the storage type and sum in
// fp32. A backend rounds at the same places, but other numbers there (its weights are relative to another maximum,
// its sums have another order), so its errors are another draw of the same size: it may be off by 2 e. Where a case
// has only a few numbers, the draw of the plain loops can happen to be small, down to 0; then a bound by 2 e alone
// would fail a right result. So every bound has a second term, made of u, the largest relative error of one rounding
// to the storage type (2^-11 fp16, 2^-8 bf16, 2^-24 fp32), and of u32 = 2^-24:
//
//   largest error   2 e + u max|o|         one rounding of the largest result
//   row error       2 e + u                the same, relative to the row
//   lse error       2 e + 8 u32            scale, maximum, exponential, sum, logarithm, to base 2 and back are 7
//                                          roundings in fp32, and sums of positive numbers lose less than one more.
//                                          Softcap c adds 8 c u32: tanh x = 1 - 2 / (e^2x + 1) there, where argument,
//                                          power, reciprocal and difference lose up to 2 u32 of 1 each.
//   gain            2 |e| + 4 u/sqrt(3 R) + (4 + L) u32
//       The gain is the mean of R rows' relative errors along their exact result, R being the rows that see a key. A
//       rounding error is spread evenly over +-u, so it has a standard deviation of u/sqrt(3) and the mean of R a
//       standard deviation of u/sqrt(3 R); 4 of them are left. An error with a sign, such as weights and denominator
//       that are rounded apart, does not shrink with R and shows here where every single row is within its bound.
//       4 u32 is for what is systematic in fp32 itself: an exponential with a bias. Beside a score of size L, the
//       largest |lse|, every product is known to L u32 at best, and tensor cores cut it off there instead of rounding
//       it, which makes all scores of a row a little more alike.
#include "check/compare.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "src/base/storage.hpp"
#include "src/base/text.hpp"

namespace froghopper::check {

namespace {

// A measure and where it was largest.
struct Largest {
  double value = 0;
  size_t row = 0, column = 0;
  void offer(double candidate, size_t at_row, size_t at_column = 0) {
    if (candidate > value) *this = {candidate, at_row, at_column};
  }
};

struct Errors {
  Largest error, row, lse;
  double relative = 0, gain = 0;
  double largest_o = 0;      // max|o64|
  double rows_that_see = 0;  // R above
  double largest_lse = 0;    // L above
};

Errors measure(const Reference& reference, const Answer& found, size_t dim) {
  const Answer& exact = reference.exact;
  Errors e;
  double all_error = 0, all_norm = 0, all_along = 0;
  for (size_t i = 0; i < reference.rows.size(); ++i) {
    if (exact.lse[i] == -std::numeric_limits<double>::infinity()) continue;  // see sees_nothing()
    double row_error = 0, row_norm = 0;
    for (size_t c = 0; c < dim; ++c) {
      const double o = exact.o[i * dim + c], off = found.o[i * dim + c] - o;
      e.error.offer(std::fabs(off), i, c);
      e.largest_o = std::max(e.largest_o, std::fabs(o));
      row_error += off * off;
      row_norm += o * o;
      all_along += off * o;
    }
    if (row_norm > 0) e.row.offer(std::sqrt(row_error / row_norm), i);
    e.lse.offer(std::fabs(found.lse[i] - exact.lse[i]) / (1 + std::fabs(exact.lse[i])), i);
    e.largest_lse = std::max(e.largest_lse, std::fabs(exact.lse[i]));
    all_error += row_error;
    all_norm += row_norm;
    ++e.rows_that_see;
  }
  if (all_norm > 0) {
    e.relative = std::sqrt(all_error / all_norm);
    e.gain = all_along / all_norm;
  }
  return e;
}

std::string name_of(const Reference& reference, size_t i) {
  const RowId& id = reference.rows[i];
  return text("batch {} row {} head {}", id.batch, id.row, id.head);
}

// Rows that see no key are exact: o is 0 and lse is minus infinity.
std::string wrong_unseeing_row(const Reference& reference, const Answer& found, size_t dim) {
  const double nothing = -std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < reference.rows.size(); ++i) {
    if (reference.exact.lse[i] != nothing) continue;
    if (found.lse[i] != nothing) {
      return text("{} sees no key: lse must be -inf and is {}", name_of(reference, i), found.lse[i]);
    }
    for (size_t c = 0; c < dim; ++c) {
      const double o = found.o[i * dim + c];
      if (o != 0) return text("{} sees no key: o must be 0 and is {} in column {}", name_of(reference, i), o, c);
    }
  }
  return {};
}

std::string first_excess(const Outcome& out, const Errors& e, const Reference& reference, const Answer& found,
                         size_t dim) {
  // Written so that a NaN is an excess.
  if (!(out.error <= out.allowed)) {
    const size_t at = e.error.row * dim + e.error.column;
    return text("{} column {}: o is {}, exact {}", name_of(reference, e.error.row), e.error.column, found.o[at],
                reference.exact.o[at]);
  }
  if (!(out.row_error <= out.row_allowed)) {
    return text("{}: relative error of the row {:.2g}, allowed {:.2g}", name_of(reference, e.row.row), out.row_error,
                out.row_allowed);
  }
  if (!(out.lse_error <= out.lse_allowed)) {
    return text("{}: lse is {}, exact {}", name_of(reference, e.lse.row), found.lse[e.lse.row],
                reference.exact.lse[e.lse.row]);
  }
  if (!(std::fabs(out.mean_gain) <= out.gain_allowed)) {
    return text("mean gain is {:.2g}, allowed {:.2g}: errors have a common sign", out.mean_gain, out.gain_allowed);
  }
  return {};
}

}  // namespace

void compare(const Problem& p, const Reference& reference, const Answer& found, Outcome& out) {
  const auto dim = static_cast<size_t>(p.dim_v);
  const Errors e = measure(reference, found, dim), plain = measure(reference, reference.same_precision, dim);
  const double u = unit_roundoff(p.dtype), u32 = unit_roundoff(Dtype::f32);
  out.error = e.error.value;
  out.plain_error = plain.error.value;
  out.allowed = 2 * plain.error.value + u * e.largest_o;
  out.row_error = e.row.value;
  out.row_allowed = 2 * plain.row.value + u;
  out.relative = e.relative;
  out.lse_error = e.lse.value;
  out.lse_allowed = 2 * plain.lse.value + 8 * u32 * (1 + p.softcap);
  out.mean_gain = e.gain;
  out.gain_allowed =
      2 * std::fabs(plain.gain) + 4 * u / std::sqrt(3 * std::max(1.0, e.rows_that_see)) + (4 + e.largest_lse) * u32;
  out.why = wrong_unseeing_row(reference, found, dim);
  if (out.why.empty()) out.why = first_excess(out, e, reference, found, dim);
  out.passed = out.why.empty();
}

}  // namespace froghopper::check
