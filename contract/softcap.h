// SPDX-License-Identifier: Apache-2.0
// contract: tanh of small values by a polynomial, for softcap. A score s has x = a s, a = scale / softcap, and
//
//   tanh(x) = s (c0 + u (c1 + u (c2 + u (c3 + u c4)))), u = s^2, where |x| <= tanh_bound
//
// with a^(2k+1) in c_k, so that nothing is spent on x itself. Six instructions of the FMA pipe; by the exponential and
// the reciprocal it is three, and two of the special function unit, which has an eighth of their rate and which the
// softmax needs too.
#pragma once

namespace froghopper {

// Chosen by Remez's exchange for the least absolute error on [0, tanh_bound], which is 2^-24.97 with exact arithmetic.
// With fp32's it is 2^-23.2 (tests/softcap_test.cpp); that of the way by the exponential is 2^-22.4 at best. Up to 0.75
// the best of this degree would leave 2^-22.4, and one power of u less up to 0.625 2^-20.2.
constexpr double tanh_bound = 0.625;
constexpr double tanh_powers[] = {0.99999945874, -0.333304827041, 0.132910312852, -0.0513628590347, 0.0145300590048};

struct SoftcapParams {
  float bound;  // scores up to this may go by the polynomial; negative: none
  float c[5];
};

// Where powers of a would leave the range of fp32, no score goes by the polynomial.
constexpr SoftcapParams softcap_params(double a) {
  SoftcapParams params = {-1.f, {}};
  if (a < 0x1p-12 || a > 0x1p12) return params;
  params.bound = static_cast<float>(tanh_bound / a);
  double power = a;
  for (int k = 0; k < 5; ++k, power *= a * a) params.c[k] = static_cast<float>(tanh_powers[k] * power);
  return params;
}

constexpr float tanh_of(float s, const SoftcapParams& params) {
  const float u = s * s;
  float p = params.c[4];
  for (int k = 3; k >= 0; --k) p = p * u + params.c[k];
  return s * p;
}

}  // namespace froghopper
