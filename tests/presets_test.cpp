// SPDX-License-Identifier: Apache-2.0
// Claims: every preset is in the library twice, from both compilers, fits the host code, and takes the registers and
// spills that presets/registers.txt says.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "src/plan/kernel.hpp"
#include "src/runtime/embedded.hpp"
#include "src/runtime/kernel_file.hpp"
#include "src/runtime/runtime.hpp"

namespace froghopper::runtime {
namespace {

struct Generation {
  const char* name;
  const EmbeddedFile* presets;
  int major;        // of the compiler
  int abi_version;  // of the cubins: a driver before CUDA 13 knows up to 7
};
const Generation generations[] = {{"cuda13", froghopper_presets13, 13, 8}, {"cuda12", froghopper_presets12, 12, 7}};

class PresetsTest : public testing::TestWithParam<Generation> {
 protected:
  void SetUp() override {
    if (GetParam().presets->name == nullptr) GTEST_SKIP() << "built with FROGHOPPER_PRESETS=OFF";
  }
};

TEST_P(PresetsTest, fit_the_host_code) {
  for (const EmbeddedFile* file = GetParam().presets; file->name != nullptr; ++file) {
    SCOPED_TRACE(file->name);
    const auto spec = kernel_named(file->name);
    ASSERT_TRUE(spec) << spec.failure().text;
    EXPECT_EQ(spec->name, file->name);
    EXPECT_TRUE(is_preset(*spec));
    const auto kernel = unpack(content(*file));
    ASSERT_TRUE(kernel);
    EXPECT_EQ(cubin_constant(kernel->cubin, "fh_smem_bytes"), spec->smem_bytes);
    EXPECT_EQ(cubin_constant(kernel->cubin, "fh_params_bytes"), spec->params_bytes);
    EXPECT_EQ(kernel->facts.smem_bytes, spec->smem_bytes);
    EXPECT_EQ(kernel->facts.serialised, 0);
    EXPECT_GT(kernel->facts.registers, 0);
  }
}

// O's way out takes shared memory that there is, and nobody else's.
TEST_P(PresetsTest, have_room_for_o_on_its_way_out) {
  std::map<WayOfO, int> with;
  for (const EmbeddedFile* file = GetParam().presets; file->name != nullptr; ++file) {
    const auto v = parse_variant<FwdVariant>("fwd", file->name);
    if (!v) continue;  // of another family
    const WayOfO way = fwd_way_of_o(*v);
    ++with[way];
    if (way == WayOfO::by_q) { EXPECT_TRUE(fwd_q_stages(*v) == 2 && v->dims.v <= v->dims.qk) << file->name; }
    const int own = way == WayOfO::by_its_own ? v->tiles.q * o_own_columns * 2 : 0;
    EXPECT_EQ(fwd_smem_bytes(*v), fwd_bytes_but_o(*v) + own) << file->name;
    EXPECT_LE(fwd_smem_bytes(*v), smem_bytes_per_cta) << file->name;
  }
  EXPECT_GT(with[WayOfO::by_q], 0);
  EXPECT_GT(with[WayOfO::by_its_own], 0);
  EXPECT_GT(with[WayOfO::by_stores], 0);
}

TEST_P(PresetsTest, are_of_the_generation_their_drivers_load) {
  for (const EmbeddedFile* file = GetParam().presets; file->name != nullptr; ++file) {
    const auto kernel = unpack(content(*file));
    ASSERT_TRUE(kernel);
    EXPECT_EQ(kernel->facts.compiler / 1000, GetParam().major) << file->name;
    EXPECT_EQ(kernel->cubin[8], GetParam().abi_version) << file->name;  // EI_ABIVERSION
  }
}

INSTANTIATE_TEST_SUITE_P(both, PresetsTest, testing::ValuesIn(generations),
                         [](const auto& info) { return info.param.name; });

TEST(presets, are_the_same_in_both_generations) {
  std::vector<std::string> newer = preset_names(), older;
  for (const EmbeddedFile* file = froghopper_presets12; file->name != nullptr; ++file) older.push_back(file->name);
  EXPECT_EQ(newer, older);
  EXPECT_TRUE(std::is_sorted(newer.begin(), newer.end()));
}

std::multiset<std::string> lines_of(std::istream& in) {
  std::multiset<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.insert(line);
  return lines;
}

std::string only_in(const std::multiset<std::string>& a, const std::multiset<std::string>& b) {
  std::string lines;
  for (const std::string& line : a)
    if (b.count(line) == 0) lines += line + "\n";
  return lines;
}

TEST(presets, take_the_registers_and_spills_of_the_checked_in_table) {
  if (preset_names().empty()) GTEST_SKIP() << "built with FROGHOPPER_PRESETS=OFF";
  const std::string command = std::string(FROGHOPPER_COMPILE) + " --table " + FROGHOPPER_PRESET_FOLDER + "/cuda13 " +
                              FROGHOPPER_PRESET_FOLDER + "/cuda12";
  FILE* pipe = popen(command.c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::string made;
  char block[4096];
  for (size_t got; (got = fread(block, 1, sizeof block, pipe)) > 0;) made.append(block, got);
  ASSERT_EQ(pclose(pipe), 0);

  std::istringstream in(made);
  std::ifstream file(FROGHOPPER_SOURCE_DIR "/presets/registers.txt");
  const auto built = lines_of(in), expected = lines_of(file);
  const std::string more = only_in(built, expected), less = only_in(expected, built);
  EXPECT_TRUE(more.empty() && less.empty())
      << "the build made\n"
      << more << "where presets/registers.txt says\n"
      << less << "if that is as it should be: cmake --build BUILD --target registers";
}

}  // namespace
}  // namespace froghopper::runtime
