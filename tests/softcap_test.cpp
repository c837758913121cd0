// SPDX-License-Identifier: Apache-2.0
// The polynomial by which kernels with a softcap compute tanh, contract/softcap.h, against fp64.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "contract/softcap.h"

namespace froghopper {
namespace {

// A score of x = 1: as models have them, as tests have them, and at both ends of what the polynomial is for.
const double scales[] = {1.0, 1 / (50 * std::sqrt(128.0)), 1.0 / 30, 1 / (20 * 16.0), 0.37, 3.7, 0x1p-12, 0x1p12};

TEST(Softcap, PolynomialIsWithin23BitsOfTanh) {
  double worst = 0;
  for (const double a : scales) {
    const SoftcapParams its = softcap_params(a);
    const int steps = 200000;
    for (int i = -steps; i <= steps; ++i) {
      const float s = its.bound * static_cast<float>(i) / steps;
      worst = std::max(worst, std::abs(tanh_of(s, its) - std::tanh(a * double{s})));
      ASSERT_LE(std::abs(tanh_of(s, its)), 1.f) << s << " times " << a;
    }
    EXPECT_EQ(tanh_of(0.f, its), 0.f);
    EXPECT_NEAR(its.bound * a, tanh_bound, 1e-7);
  }
  EXPECT_LT(worst, 0x1p-23);
  EXPECT_GT(worst, 0x1p-24) << "the comment says 2^-23.2";
}

// Of all polynomials of its degree the best one errs by the same at one extreme more than it has coefficients, up and
// down in turn (Chebyshev). So a coefficient with a wrong digit would show.
TEST(Softcap, CoefficientsAreTheBest) {
  std::vector<double> extremes;  // of a stretch with one sign each
  for (int i = 1; i <= 100000; ++i) {
    const double x = tanh_bound * i / 100000;
    double p = tanh_powers[4];
    for (int k = 3; k >= 0; --k) p = p * x * x + tanh_powers[k];
    const double error = x * p - std::tanh(x);
    if (extremes.empty() || (extremes.back() > 0) != (error > 0)) extremes.push_back(error);
    if (std::abs(error) > std::abs(extremes.back())) extremes.back() = error;
  }
  ASSERT_EQ(extremes.size(), 6u);
  for (const double error : extremes) EXPECT_NEAR(std::log2(std::abs(error)), -24.975, 0.002);
}

// Powers of a factor beyond these would be infinite or lose their digits: all scores go by the exponential.
TEST(Softcap, PolynomialIsLeftOutWhereItsCoefficientsDoNotFit) {
  for (const double a : {0.0, 0x1p-13, 0x1p13}) EXPECT_LT(softcap_params(a).bound, 0) << a;
  for (const double a : scales)
    for (const float c : softcap_params(a).c) EXPECT_TRUE(std::isnormal(c)) << a;
}

}  // namespace
}  // namespace froghopper
