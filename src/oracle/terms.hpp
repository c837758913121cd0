// SPDX-License-Identifier: Apache-2.0
// oracle: sums of many rows at once, as fast as plain loops over them go.
#pragma once
#include <cmath>
#include <cstdint>
#include <span>

namespace froghopper::oracle {

// What is added to a sum: product(factor, x[c]) to its column c.
template <class Real>
struct Term {
  Real factor;
  const Real* x;
};
// Terms of one sum that are added to it in one pass over its columns: with one at a time, reading and writing the sum
// would take longer than the products.
constexpr int64_t terms_at_once = 8;

// Sums of count columns. They are added to in the order of the terms; a compiler makes vectors of columns.
template <class Real, class Product>
void add(Real* sums, std::span<const Term<Real>> terms, int64_t count, Product product) {
  const Term<Real>* of = terms.data();
  const Term<Real>* const end = of + terms.size();
  for (; end - of >= 4; of += 4) {
    const Term<Real> a = of[0], b = of[1], c = of[2], d = of[3];
    for (int64_t i = 0; i < count; ++i)
      sums[i] = sums[i] + product(a.factor, a.x[i]) + product(b.factor, b.x[i]) + product(c.factor, c.x[i]) +
                product(d.factor, d.x[i]);
  }
  for (; of < end; ++of) {
    const Term<Real> a = *of;
    for (int64_t i = 0; i < count; ++i) sums[i] += product(a.factor, a.x[i]);
  }
}

// Objects, so that each is compiled into the loop that it is given to.
constexpr auto product = [](auto factor, auto x) { return factor * x; };
constexpr auto square = [](double factor, double x) { return (factor * x) * (factor * x); };
constexpr auto size = [](double factor, double x) { return factor * std::fabs(x); };

}  // namespace froghopper::oracle
