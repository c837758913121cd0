// SPDX-License-Identifier: Apache-2.0
// Claim: every shape that bench/suites and docs/performance.md measure on a Hopper GPU runs on presets alone, so that
// with them nobody waits for a compiler, also with a driver of CUDA 12, whose presets are these alone, if its head dims
// are at most 256. Every shape has a plan for these GPUs, and none takes more memory than they have.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
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
  size_t shapes = 0;
  std::map<std::string, std::string> needed, needed_of_older;  // a kernel, and a shape that has it
  for (const std::string& line : measured_lines()) {
    const auto p = Problem::parse(line);
    ASSERT_TRUE(p) << line << ": " << p.failure().text;
    if (p->dtype == Dtype::f32) continue;
    for (const char* const gpu : {"h100", "h200"}) {
      const auto plan = make_gpu_plan(*p, known_device(gpu));
      ASSERT_TRUE(plan) << line << ": " << plan.failure().text;
      for (const Launch& launch : plan->launches) {
        needed.emplace(launch.kernel.name, line);
        if (std::max(p->dim_qk, p->dim_v) <= 256) needed_of_older.emplace(launch.kernel.name, line);
      }
      ++shapes;
    }
  }
  const auto presets = test::listed_presets(), older = test::presets_of("cuda12.txt");
  for (const auto& [name, line] : needed)
    EXPECT_TRUE(presets.contains(name)) << name << " is no preset; it is needed for " << line;
  for (const auto& [name, line] : needed_of_older)
    EXPECT_TRUE(older.contains(name)) << name << " is not in presets/cuda12.txt; it is needed for " << line;
  for (const std::string& name : older)
    EXPECT_TRUE(needed_of_older.contains(name))
        << name << " is in presets/cuda12.txt, but no shape needs it. Take it out.";
  EXPECT_GT(shapes, 700u);
}

}  // namespace
}  // namespace froghopper
