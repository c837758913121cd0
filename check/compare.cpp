// SPDX-License-Identifier: Apache-2.0
// check: the measures and their bounds.
//
// The yardstick is e, the error of plain loops that round inputs, weights and results to the storage type and sum in
// fp32; with 8-bit q, what Hopper is measured by sums as its tensor cores do (check/tensor_core.cpp). A backend
// rounds at the same places, but other values there (its weights are relative to another maximum, its sums have
// another order), so its errors are another draw of the same size: it may be off by 2 e. Where a case has only a few
// values, the draw of the plain loops can happen to be small, down to 0; then a bound by 2 e alone would fail a right
// result. So every bound has a second term, made of u, the largest relative error of one rounding to the storage type
// (2^-11 fp16, 2^-8 bf16, 2^-24 fp32; 2^-4 where weights are e4m3), and of u32 = 2^-24:
//
//   largest error   2 e + u max|exact|     one rounding of the largest result
//   row error       2 e + u                the same, relative to the row
//   lse error       2 e + (8 + D/16) u32   scale, maximum, exponential, sum, logarithm, to base 2 and back are 7
//                                          roundings in fp32, and sums of positive values lose less than one more.
//                                          A tensor core adds the D products of a score 16 at a time and cuts each sum
//                                          off, by 0 to 2 u32 of the score: u32 on average.
//                                          Softcap c adds 8 c u32: tanh x = 1 - 2 / (e^2x + 1) there, where argument,
//                                          power, reciprocal and difference lose up to 2 u32 of 1 each.
//                                          8-bit q: a tensor core adds 32 products at a time, in about 14 bits
//                                          (DeepSeek-V3 technical report, 3.3.2), and cuts off what is behind: 2^-13 of
//                                          the largest value for each of D/32 sums.
//   max_logit error 2 e + (8 + D/16) u32   a score, which has fewer of these roundings
//   gain            2 |e| + 4 u/sqrt(3 R) + (4 + L) u32
//       The gain is the mean of R rows' relative errors along their exact result, R being the rows that are not 0. A
//       rounding error is spread evenly over +-u, so it has a standard deviation of u/sqrt(3) and the mean of R a
//       standard deviation of u/sqrt(3 R); 4 of them are left. An error with a sign, such as weights and denominator
//       that are rounded apart, does not shrink with R and shows here where every single row is within its bound.
//       Where each row of v has a scale, weights are rounded times that scale, so rows that give one key nearly all
//       their weight share its rounding: R is then the number of KV heads of all sequences, at most.
//       4 u32 is for what is systematic in fp32 itself: an exponential with a bias. At a score of size L, the
//       largest |lse|, every product is known to L u32 at best, and tensor cores cut it off there instead of rounding
//       it, which makes all scores of a row a little more alike.
//
// Some results are exact: a row that is 0 in exact arithmetic (no key is attended to) is 0, and an lse of minus
// infinity is minus infinity.
//
// Tensors are judged one after the other, each by its own values. only lse and max_logit are of another kind: the
// logarithm of a sum and a score, so their error is absolute where they are near 1 and relative where they are large.
//
// A gradient has one more second term, since it is a sum that may cancel: for a row that attends to one key it is 0 in
// exact arithmetic, weight (g.v - delta) k with g.v = delta, and what any other arithmetic leaves there is a part of
// g.v and of delta, not of 0. The oracle says for every element what was added up (oracle::Gradients):
//
//   A  (rounded)  the norm, over all that was added, of the products whose one factor, a weight or ds, is rounded to
//                 the storage type. Each rounding is evenly spread over +-u of its product: a standard deviation of
//                 u/sqrt(3), of the sum u A/sqrt(3), and 4 of them are left. A factor below the type's smallest normal
//                 number counts as that: its rounding is no smaller. Nor may a weight below that of fp32 cost
//                 anything: a GPU takes it for 0.
//   B  (summed)   the same norm where ds is replaced by weight (sum |g_c v_c| + sum |g_c o_c| + |grad_lse|). Sums in
//                 fp32 are known to a part of that: w = (8 + D_v/16) u32, as an lse. (What delta adds to grad_q is the
//                 same for all keys of the row, so it is added up, not squared.) The slope of a softcap, 1 - tanh^2, is
//                 known to a few u32 of 1 and not of itself, so B has no slope.
//
// Weights are exp(s - lse), with s and lse of size L at most, so they are known to t = (8 + 8 c + D_qk/16) (1 + L) u32.
// Together each element is known to
//
//   n = u |exact| + 4/sqrt(3) u' A + t (A + |exact|) + w (B + |exact|)
//
// with u of the gradient's own type and u' of the storage type. n takes the place of u |exact| in the bounds of the
// largest error and of a row's. The rows' errors along the exact result are independent, so the mean gain of all may
// be off by the root of the sum of squares of the rows' ||n|| ||exact||, divided by the sum of exact^2. One part of t
// is not independent: a tensor core cuts every sum of a score off, towards 0, by D_qk/16 u32 of it on average, and the
// lse that is given knows nothing of that. So all weights are off by one factor, and the gain by D_qk/16 (1 + L) u32
// more.
//
// Exact are the rows of which nothing was added up, since they attend to no key or no row attends to them: they are 0,
// or what they were before where gradients are added to it.
#include "check/compare.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "check/appended.hpp"
#include "check/quantised.hpp"
#include "src/base/storage.hpp"
#include "src/base/text.hpp"

namespace froghopper::check {

namespace {

// A measure and where it was largest.
struct Largest {
  double value = 0;
  size_t row = 0, column = 0;
  void offer(double candidate, size_t at_row, size_t at_column = 0) {
    if (std::isnan(value)) return;  // a NaN stays
    if (!(candidate <= value)) *this = {candidate, at_row, at_column};
  }
};

constexpr double minus_infinity = -std::numeric_limits<double>::infinity();

size_t dim_of(const Expected& expected) {
  return expected.rows.empty() ? 1 : expected.exact.size() / expected.rows.size();
}

std::string name_of(const Expected& expected, size_t i) {
  const RowId& id = expected.rows[i];
  return text("batch {} row {} head {}", id.batch, id.row, id.head);
}

// ---- lse and max_logit ----

struct LogitErrors {
  Largest error;
  double largest = 0;  // L above
};

LogitErrors measure_logits(const Expected& expected, const std::vector<double>& found) {
  LogitErrors e;
  for (size_t i = 0; i < expected.exact.size(); ++i) {
    const double exact = expected.exact[i];
    if (std::isinf(exact)) continue;  // see wrong_infinity()
    e.error.offer(std::fabs(found[i] - exact) / (1 + std::fabs(exact)), i);
    e.largest = std::max(e.largest, std::fabs(exact));
  }
  return e;
}

std::string wrong_infinity(const Expected& expected, const std::vector<double>& found) {
  for (size_t i = 0; i < expected.exact.size(); ++i)
    if (const double exact = expected.exact[i]; std::isinf(exact) && found[i] != exact)
      return text("{} {}: {} must be {} and is {}", name_of(expected, i),
                  exact < 0 ? "attends to no key" : "has an infinite logit", expected.tensor->name, exact, found[i]);
  return {};
}

// Fills in the measures; returns what is wrong, or nothing.
std::string judge_logits(const Problem& p, const Expected& expected, const std::vector<double>& found, Measures& m) {
  const LogitErrors e = measure_logits(expected, found), plain = measure_logits(expected, expected.same_precision);
  m.error = e.error.value;
  m.plain_error = plain.error.value;
  const double tensor_core =
      is_8_bit(p.dtype) ? static_cast<double>(p.dim_qk) / 32 * 0x1p11 : static_cast<double>(p.dim_qk) / 16;
  m.allowed = 2 * plain.error.value + (8 * (1 + p.softcap) + tensor_core) * unit_roundoff(Element::f32);
  std::string why = wrong_infinity(expected, found);
  if (why.empty() && !(m.error <= m.allowed))  // written so that a NaN is an excess
    why = text("{}: {} is {}, exact {}", name_of(expected, e.error.row), m.tensor, found[e.error.row],
               expected.exact[e.error.row]);
  return why;
}

// ---- Every other tensor ----

struct Errors {
  Largest error, row;
  double relative = 0, rmse = 0, gain = 0;
  double largest = 0;   // max|size|
  double not_zero = 0;  // rows: R above
  double noise = 0;     // of the gain, where the size is known to 1 part
};

// What errors are relative to: |exact|, or n/u of gradients.
std::vector<double> sizes_of(const Problem& p, const Expected& expected) {
  const double u32 = unit_roundoff(Element::f32);
  const double u = unit_roundoff(expected.tensor->shape(p).element);
  const bool sink = expected.tensor->view == &Views::grad_sink;  // fp32 from end to end
  const double u_factor = sink ? u32 : unit_roundoff(element_of(p.dtype));
  const double t = (8 * (1 + p.softcap) + static_cast<double>(p.dim_qk) / 16) * (1 + expected.largest_lse) * u32;
  const double w = (8 + static_cast<double>(p.dim_v) / 16) * u32;
  std::vector<double> sizes;
  for (size_t i = 0; i < expected.exact.size(); ++i) {
    const double exact = std::fabs(expected.exact[i]);
    sizes.push_back(exact);
    if (expected.rounded.empty()) continue;
    const double a = expected.rounded[i], b = expected.summed[i];
    sizes.back() += (4 / std::sqrt(3) * u_factor * a + t * (a + exact) + w * (b + exact)) / u;
  }
  return sizes;
}

// Of one rounding to the storage type. Of o: the larger one of its own type and of that which weights have as operand.
double roundoff_of(const Problem& p, const Expected& expected) {
  const double own = unit_roundoff(expected.tensor->shape(p).element);
  if (p.backward()) return own;
  return std::max(own, unit_roundoff(is_8_bit(p.dtype) ? Element::e4m3 : element_of(p.dtype)));
}

Errors measure(const Expected& expected, const std::vector<double>& sizes, const std::vector<double>& found) {
  Errors e;
  const size_t dim = dim_of(expected);
  double all_error = 0, all_norm = 0, all_along = 0, all_noise = 0;
  for (size_t i = 0; i < expected.rows.size(); ++i) {
    double row_error = 0, row_norm = 0, row_size = 0;
    for (size_t c = 0; c < dim; ++c) {
      const double exact = expected.exact[i * dim + c], off = found[i * dim + c] - exact;
      e.error.offer(std::fabs(off), i, c);
      e.largest = std::max(e.largest, sizes[i * dim + c]);
      row_error += off * off;
      row_norm += exact * exact;
      row_size += sizes[i * dim + c] * sizes[i * dim + c];
      all_along += off * exact;
    }
    if (row_size > 0) e.row.offer(std::sqrt(row_error / row_size), i);
    all_noise += row_size * row_norm;
    e.not_zero += row_norm > 0;
    all_error += row_error;
    all_norm += row_norm;
  }
  if (all_norm > 0) {
    e.relative = std::sqrt(all_error / all_norm);
    e.gain = all_along / all_norm;
    e.noise = std::sqrt(all_noise) / all_norm;
  }
  if (!found.empty()) e.rmse = std::sqrt(all_error / static_cast<double>(found.size()));
  return e;
}

// Whether nothing was added up to a row.
bool is_empty(const Expected& expected, size_t begin, size_t end) {
  const bool gradient = !expected.rounded.empty();
  for (size_t i = begin; i < end; ++i)
    if ((gradient ? expected.rounded[i] + expected.summed[i] : expected.exact[i]) != 0) return false;
  return true;
}

std::string wrong_empty_row(const Expected& expected, const std::vector<double>& found) {
  const size_t dim = dim_of(expected);
  for (size_t i = 0; i < expected.rows.size(); ++i) {
    if (!is_empty(expected, i * dim, (i + 1) * dim)) continue;
    for (size_t c = 0; c < dim; ++c)
      if (const double x = found[i * dim + c], exact = expected.exact[i * dim + c]; x != exact)
        return text("{}: {} must be {} in column {}, as in exact arithmetic, and is {}", name_of(expected, i),
                    expected.tensor->name, exact, c, x);
  }
  return {};
}

std::string first_excess(const Expected& expected, const std::vector<double>& found, const Errors& e,
                         const Measures& m) {
  // Written so that a NaN is an excess.
  if (!(m.error <= m.allowed)) {
    const size_t at = e.error.row * dim_of(expected) + e.error.column;
    return text("{} column {}: {} is {}, exact {}", name_of(expected, e.error.row), e.error.column, m.tensor,
                found[at], expected.exact[at]);
  }
  if (!(m.row_error <= m.row_allowed))
    return text("{}: relative error of the row of {} is {:.2g}, allowed {:.2g}", name_of(expected, e.row.row),
                m.tensor, m.row_error, m.row_allowed);
  if (!(std::fabs(m.mean_gain) <= m.gain_allowed))
    return text("mean gain of {} is {:.2g}, allowed {:.2g}: errors have a common sign", m.tensor, m.mean_gain,
                m.gain_allowed);
  return {};
}

// Fills in the measures; returns what is wrong, or nothing.
std::string judge_rows(const Problem& p, const Expected& expected, const std::vector<double>& found,
                       double largest_lse, Measures& m) {
  const std::vector<double> sizes = sizes_of(p, expected);
  const Errors e = measure(expected, sizes, found), plain = measure(expected, sizes, expected.same_precision);
  const double u32 = unit_roundoff(Element::f32);
  const double u = roundoff_of(p, expected);
  m.error = e.error.value;
  m.plain_error = plain.error.value;
  m.allowed = 2 * plain.error.value + u * e.largest;
  m.row_error = e.row.value;
  m.row_allowed = 2 * plain.row.value + u;
  m.relative = e.relative;
  m.rmse = e.rmse;
  m.mean_gain = e.gain;
  const double heads = static_cast<double>(p.batch) * static_cast<double>(p.heads_kv);
  const double independent = p.scale_tokens ? std::min(e.not_zero, heads) : e.not_zero;
  const double spread = expected.rounded.empty() ? 4 * u / std::sqrt(3 * std::max(1.0, independent)) : u * e.noise;
  const double cut_off = expected.rounded.empty() ? 0 : static_cast<double>(p.dim_qk) / 16 * (1 + largest_lse);
  m.gain_allowed = 2 * std::fabs(plain.gain) + spread + (4 + largest_lse + cut_off) * u32;
  std::string why = wrong_empty_row(expected, found);
  return why.empty() ? first_excess(expected, found, e, m) : why;
}

double largest_lse(const Reference& reference) {
  for (const Expected& expected : reference)
    if (expected.tensor->view == &Views::lse) return measure_logits(expected, expected.exact).largest;
  return reference.empty() ? 0 : reference.front().largest_lse;
}

}  // namespace

void compare(const Problem& p, const Reference& reference, const Found& found, Outcome& out) {
  out.measures.clear();
  out.why.clear();
  if (p.quantises()) return compare_quantised(p, reference, found, out);
  if (p.appends()) return compare_appended(p, reference, found, out);
  const double largest = largest_lse(reference);
  for (size_t i = 0; i < reference.size(); ++i) {
    const Expected& expected = reference[i];
    Measures& m = out.measures.emplace_back();
    m.tensor = expected.tensor->name;
    const bool is_logit = expected.tensor->view == &Views::lse || expected.tensor->view == &Views::max_logit;
    const std::string why =
        is_logit ? judge_logits(p, expected, found[i], m) : judge_rows(p, expected, found[i], largest, m);
    if (out.why.empty()) out.why = why;
  }
  out.passed = out.why.empty();
}

}  // namespace froghopper::check
