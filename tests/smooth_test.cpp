// SPDX-License-Identifier: Apache-2.0
// tests: means that are taken out of k and v and added again, beside the lines of tests/cases/quantise.txt and fp8.txt.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "check/compare.hpp"
#include "src/oracle/oracle.hpp"
#include "src/plan/plan.hpp"
#include "tests/support/quantised.hpp"

namespace froghopper {
namespace {

using test::Quantised;

// Two launches before it find the means; of no key they are 0, and nothing is added up.
TEST(Smooth, MeansAreFoundBeforeNumbersGet8Bits) {
  const auto kernels = [](const char* line) {
    const auto plan = make_gpu_plan(*Problem::parse(line), known_device("h200"));
    std::vector<std::string> names;
    for (const Launch& launch : plan->launches) names.push_back(launch.kernel.name);
    return names;
  };
  using Names = std::vector<std::string>;
  const std::string average = "average.bf16.d64", quantise = "quantise.bf16.e4m3.d64.smooth";
  EXPECT_EQ(kernels("quantise bf16 kv=e4m3 b1 hq1 hkv1 sq10 skv10 d64 smooth"),
            (Names{average, average, quantise, quantise}));
  EXPECT_EQ(kernels("quantise bf16 kv=e4m3 b1 hq1 hkv1 sq10 skv10 d64 scales128 smooth"),
            (Names{average, average, quantise}));
  EXPECT_EQ(kernels("quantise bf16 kv=e4m3 b1 hq1 hkv1 sq0 skv0 d64 scales128 smooth"), Names{average});
}

TEST(Smooth, TheForwardKernelAddsThem) {
  const auto plan =
      make_gpu_plan(*Problem::parse("fwd e4m3 b1 hq1 hkv1 sq10 skv10 d64 smooth"), known_device("h200"));
  ASSERT_TRUE(plan);
  EXPECT_TRUE(plan->launches.at(0).kernel.name.ends_with(".smooth")) << plan->line();
}

TEST(Smooth, MeansGoWithWhatTheyAreTakenOutOf) {
  Quantised t("quantise f32 kv=e4m3 b1 hq2 hkv2 sq30 skv130 d64 scales128 smooth");
  std::vector<float> mean_k(2 * 64), mean_v(2 * 64);
  t.tensors.mean_k = t.dense(mean_k, 2, 64);
  EXPECT_EQ(t.run(), FH_INVALID_TENSOR);
  EXPECT_STREQ(fh_last_error(),
               "fh_attention: v is set and mean_v is NULL; with smooth they go together. Set both, or none.");
  t.tensors.mean_v = t.dense(mean_v, 2, 64);
  ASSERT_EQ(t.run(), FH_OK) << fh_last_error();

  const Problem p = *Problem::parse("fwd e4m3 o=f32 b1 hq2 hkv2 sq30 skv130 d64 scales128 smooth");
  std::vector<float> o(30 * 2 * 64);
  fh_tensors fwd = fh_tensors_init();
  fwd.q = t.tensors.quantised_q, fwd.k = t.tensors.quantised_k, fwd.v = t.tensors.quantised_v;
  fwd.scale_q = t.tensors.scale_q, fwd.scale_k = t.tensors.scale_k, fwd.scale_v = t.tensors.scale_v;
  fwd.o = Quantised::dense(o, 2, 64), fwd.mean_v = t.tensors.mean_v;
  const fh_problem user = p.user_struct();
  EXPECT_EQ(fh_attention(&user, "cpu", &fwd, nullptr, 0, nullptr), FH_INVALID_TENSOR);
  EXPECT_STREQ(fh_last_error(),
               "fh_attention: mean_k.data is NULL; it has 1 x 1 x 2 x 64 elements. Point it to them.");
}

TEST(Smooth, TheJudgeSeesAMeanThatIsNone) {
  const std::string line = "quantise bf16 kv=e4m3 b2 hq2 hkv2 sq10 skv200 d64 seqused smooth rotate : used_kv=200,90";
  const auto why = [&](const std::function<void(const Views&)>& spoil) { return test::why_spoiled(line, spoil); };
  EXPECT_EQ(why([](const Views&) {}), "");
  EXPECT_NE(why([](const Views& v) { v.mean_k.as<float>()[5] += 1e-3f; }).find("mean_k is"), std::string::npos);
  EXPECT_NE(
      why([](const Views& v) { std::swap(v.mean_v.as<float>()[5], v.mean_v.as<float>()[6]); }).find("mean_v is"),
      std::string::npos);
  EXPECT_NE(why([](const Views& v) { v.quantised_v.as<uint8_t>()[7] ^= 1; }).find("quantised_v is"),
            std::string::npos);
}

// What k and v have in common in all rows costs the rounding of numbers that large; smoothed, what is left has one of
// its own size.
TEST(Smooth, SmoothingTakesBackWhatMeansCost) {
  double found[2];
  for (const bool smooth : {false, true}) {
    const std::string shape = "b1 hq2 hkv2 sq100 skv600 d64", words = smooth ? " scales128 smooth" : " scales128";
    Quantised t("quantise f32 kv=e4m3 " + shape + words + " rotate");
    for (size_t i = 0; i < t.k.size(); ++i)  // no two columns alike
      t.k[i] += static_cast<float>(i % 64) / 4 - 8, t.v[i] += static_cast<float>(i % 64) / 8 - 4;
    std::vector<float> mean_k(2 * 64), mean_v(2 * 64), o(100 * 2 * 64);
    if (smooth) t.tensors.mean_k = t.dense(mean_k, 2, 64), t.tensors.mean_v = t.dense(mean_v, 2, 64);
    ASSERT_EQ(t.run(), FH_OK) << fh_last_error();
    fh_tensors fwd = fh_tensors_init(), of_original = fh_tensors_init();
    fwd.q = t.tensors.quantised_q, fwd.k = t.tensors.quantised_k, fwd.v = t.tensors.quantised_v;
    fwd.scale_q = t.tensors.scale_q, fwd.scale_k = t.tensors.scale_k, fwd.scale_v = t.tensors.scale_v;
    fwd.mean_k = t.tensors.mean_k, fwd.mean_v = t.tensors.mean_v;
    of_original.q = t.tensors.q, of_original.k = t.tensors.k, of_original.v = t.tensors.v;
    fwd.o = of_original.o = Quantised::dense(o, 2, 64);
    const fh_problem user = Problem::parse("fwd e4m3 o=f32 " + shape + words)->user_struct();
    ASSERT_EQ(fh_attention(&user, "cpu", &fwd, nullptr, 0, nullptr), FH_OK) << fh_last_error();
    const Problem original = *Problem::parse("fwd f32 " + shape);
    const auto exact = oracle::compute(original, *bind(original, of_original))[index_of(&Views::o)];
    double squares = 0;
    for (size_t i = 0; i < o.size(); ++i) squares += (o[i] - exact[i]) * (o[i] - exact[i]);
    found[smooth] = std::sqrt(squares / static_cast<double>(o.size()));
  }
  EXPECT_LT(found[true], 0.6 * found[false]) << found[true];
}

}  // namespace
}  // namespace froghopper
