// SPDX-License-Identifier: Apache-2.0
// oracle: sums of many rows at once, as fast as plain loops over them go.
#pragma once
#include <cmath>
#include <cstdint>
#include <vector>

namespace froghopper::oracle {

// What is added to a sum: product(factor, x[c]) to its column c.
struct Term {
  double factor;
  const double* x;
};
// Terms of one sum that are added to it in one pass over its columns: with one at a time, reading and writing the sum
// would take longer than the products.
constexpr int64_t terms_at_once = 8;

// Sums of count columns. They are added to in the order of the terms; a compiler makes vectors of columns.
template <class Product>
void add(double* sums, const std::vector<Term>& terms, int64_t count, Product product) {
  const Term* of = terms.data();
  const Term* const end = of + terms.size();
  for (; end - of >= 4; of += 4)
    for (int64_t c = 0; c < count; ++c)
      sums[c] = sums[c] + product(of[0].factor, of[0].x[c]) + product(of[1].factor, of[1].x[c]) +
                product(of[2].factor, of[2].x[c]) + product(of[3].factor, of[3].x[c]);
  for (; of < end; ++of)
    for (int64_t c = 0; c < count; ++c) sums[c] += product(of->factor, of->x[c]);
}

inline double product(double factor, double x) { return factor * x; }
inline double square(double factor, double x) { return (factor * x) * (factor * x); }
inline double size(double factor, double x) { return factor * std::fabs(x); }

}  // namespace froghopper::oracle
