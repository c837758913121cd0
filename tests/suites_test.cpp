// SPDX-License-Identifier: Apache-2.0
// Claim: every shape that bench/suites and docs/performance.md measure on a Hopper GPU runs on presets alone, so that
// with them nobody waits for a compiler; except for pages and head dims above 256, which docs/6-jit.md says are
// compiled. Every shape has a plan for these GPUs, and none takes more memory than they have.
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <regex>

#include "src/plan/plan.hpp"
#include "src/problem/bytes.hpp"
#include "tests/support/preset_lists.hpp"

namespace froghopper {
namespace {

// The lines of the suites for GPUs, without the lengths that follow a colon, and every line that the document quotes.
std::set<std::string> measured_lines() {
  std::set<std::string> lines;
  for (const auto& entry : std::filesystem::directory_iterator(FROGHOPPER_SOURCE_DIR "/bench/suites")) {
    const std::string file = entry.path().filename().string();
    if (file.starts_with("cpu_")) continue;
    for (const std::string& line : test::lines_of("bench/suites/" + file))
      lines.insert(line.substr(0, line.find(" :")));
  }
  static const std::regex quoted("[`']((?:fwd|bwd) [^`']+)[`']");
  for (const std::string& line : test::lines_of("docs/performance.md"))
    for (std::sregex_iterator at(line.begin(), line.end(), quoted), end; at != end; ++at) lines.insert((*at)[1]);
  return lines;
}

// A pool counts as a whole, of which no page is left out.
TEST(Suites, FitAnH100) {
  constexpr double most_bytes = 60e9;
  size_t paged = 0;
  for (const std::string& line : measured_lines()) {
    const Problem p = *Problem::parse(line);
    const double rows = static_cast<double>(p.batches_kv()) * static_cast<double>(p.extent_kv());
    EXPECT_LE(rows * static_cast<double>(p.heads_kv * (p.dim_qk + p.dim_v)) * size_of(p.dtype_kv), most_bytes)
        << line;
    EXPECT_LE(bytes_moved(p), most_bytes) << line;
    paged += p.paged();
  }
  EXPECT_GT(paged, 100u);
}

TEST(Suites, RunOnPresetsAlone) {
  const auto presets = test::listed_presets();
  size_t shapes = 0, without = 0;
  std::set<std::string> missing;
  for (const std::string& line : measured_lines()) {
    const auto p = Problem::parse(line);
    ASSERT_TRUE(p) << line << ": " << p.failure().text;
    if (p->dtype == Dtype::f32) continue;
    const bool compiled = (p->paged() && !p->appends()) || std::max(p->dim_qk, p->dim_v) > 256;
    for (const char* const gpu : {"h100", "h200"}) {
      const auto plan = make_gpu_plan(*p, known_device(gpu));
      ASSERT_TRUE(plan) << line << ": " << plan.failure().text;
      if (compiled) continue;
      bool all = true;
      for (const Launch& launch : plan->launches)
        if (!presets.contains(launch.kernel.name)) all = false, missing.insert(launch.kernel.name + " for " + line);
      ++shapes, without += all;
    }
  }
  std::printf("%zu of %zu shapes of bench/suites and docs/performance.md run without compiling\n", without, shapes);
  EXPECT_GT(shapes, 500u);
  for (const std::string& name : missing) ADD_FAILURE() << "no preset: " << name;
}

}  // namespace
}  // namespace froghopper
