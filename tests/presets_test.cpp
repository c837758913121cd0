// SPDX-License-Identifier: Apache-2.0
// Claims: every preset is in the library from the compiler of CUDA 13, those of presets/cuda12.txt also from that of
// CUDA 12; each fits the host code, takes the registers and spills that presets/registers.txt says, and is unpacked in
// a moment. For builds with FROGHOPPER_PRESETS=ON and both compilers alone.
#include <gtest/gtest.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "contract/fwd_legality.h"
#include "src/plan/kernel.hpp"
#include "src/runtime/kernel_file.hpp"
#include "src/runtime/modules.hpp"
#include "src/runtime/presets.hpp"
#include "src/runtime/runtime.hpp"
#include "tests/support/preset_lists.hpp"

namespace froghopper::runtime {
namespace {

struct Generation {
  int major;        // of the compiler, and of CUDA
  int abi_version;  // of the cubins: a driver before CUDA 13 knows up to 7
};
const Generation generations[] = {{13, 8}, {12, 7}};

class PresetsTest : public testing::TestWithParam<Generation> {
 protected:
  // Every kernel of the generation, unpacked.
  void for_each(const std::function<void(const std::string& name, const std::string& file)>& look) {
    const Bundle& bundle = presets(GetParam().major);
    ASSERT_FALSE(bundle.empty()) << "its compiler was not found when this was built";
    for (const std::string& name : bundle.names()) {
      SCOPED_TRACE(name);
      const auto file = bundle.kernel(name);
      ASSERT_TRUE(file);
      look(name, *file);
    }
  }
};

TEST_P(PresetsTest, are_those_of_the_lists) {
  const auto names = presets(GetParam().major).names();
  EXPECT_TRUE(std::is_sorted(names.begin(), names.end()));
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()),
            GetParam().major == 12 ? test::presets_of("cuda12.txt") : test::listed_presets());
}

TEST_P(PresetsTest, fit_the_host_code) {
  for_each([](const std::string& name, const std::string& file) {
    const auto spec = kernel_named(name);
    ASSERT_TRUE(spec) << spec.failure().text;
    EXPECT_EQ(spec->name, name);
    EXPECT_TRUE(is_preset(*spec));
    const auto kernel = unpack(file);
    ASSERT_TRUE(kernel);
    EXPECT_EQ(cubin_constant(kernel->cubin, "fh_smem_bytes"), spec->smem_bytes);
    EXPECT_EQ(cubin_constant(kernel->cubin, "fh_params_bytes"), spec->params_bytes);
    EXPECT_EQ(kernel->facts.smem_bytes, spec->smem_bytes);
    EXPECT_EQ(kernel->facts.serialised, 0);
    EXPECT_GT(kernel->facts.registers, 0);
  });
}

// O's way out takes shared memory that there is, and nobody else's.
TEST_P(PresetsTest, have_room_for_o_on_its_way_out) {
  std::map<OStore, int> with;
  for (const std::string& name : presets(GetParam().major).names()) {
    const auto v = parse_variant<FwdVariant>("fwd", name);
    if (!v) continue;  // of another family
    const OStore way = fwd_o_store(*v);
    ++with[way];
    if (way == OStore::through_q) { EXPECT_TRUE(fwd_q_stages(*v) == 2 && v->dims.v <= v->dims.qk) << name; }
    const int own = way == OStore::through_own_smem ? v->tiles.q * o_own_columns * 2 : 0;
    EXPECT_EQ(fwd_smem_bytes(*v), fwd_bytes_but_o(*v) + own) << name;
    EXPECT_LE(fwd_smem_bytes(*v), smem_bytes_per_cta) << name;
  }
  EXPECT_GT(with[OStore::through_q], 0);
  EXPECT_GT(with[OStore::through_own_smem], 0);
  EXPECT_GT(with[OStore::from_registers], 0);
}

TEST_P(PresetsTest, are_of_the_generation_their_drivers_load) {
  for_each([](const std::string&, const std::string& file) {
    const auto kernel = unpack(file);
    ASSERT_TRUE(kernel);
    EXPECT_EQ(kernel->facts.compiler / 1000, GetParam().major);
    EXPECT_EQ(kernel->cubin[8], GetParam().abi_version);  // EI_ABIVERSION
  });
}

double seconds_of_this_thread() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// What a first call waits for. Others may use the machine meanwhile, so a slow one is tried again: only a kernel that
// is slow every time fails.
TEST_P(PresetsTest, are_unpacked_in_five_milliseconds) {
  constexpr double limit = 5e-3;
  constexpr int tries = 20;
  const Bundle& bundle = presets(GetParam().major);
  double worst = 0;
  for_each([&](const std::string& name, const std::string&) {
    double best = 1;
    for (int i = 0; i < tries && best > limit; ++i) {
      const double began = seconds_of_this_thread();
      const auto file = bundle.kernel(name);
      ASSERT_TRUE(file && unpack(*file));
      best = std::min(best, seconds_of_this_thread() - began);
    }
    worst = std::max(worst, best);
  });
  EXPECT_LE(worst, limit);
  RecordProperty("microseconds", static_cast<int>(worst * 1e6));
  std::printf("the slowest is unpacked in %.2f ms; %.1f of %.1f MB\n", worst * 1e3,
              static_cast<double>(bundle.packed_bytes()) / 1e6, static_cast<double>(bundle.unpacked_bytes()) / 1e6);
}

INSTANTIATE_TEST_SUITE_P(both, PresetsTest, testing::ValuesIn(generations),
                         [](const auto& info) { return "cuda" + std::to_string(info.param.major); });

TEST(presets, of_cuda_12_are_some_of_those_of_cuda_13) {
  for (const std::string& name : presets(12).names()) EXPECT_TRUE(presets(13).has(name)) << name;
  EXPECT_EQ(preset_names(), presets(13).names());
}

// The shared library has both, and nothing else of that size.
TEST(presets, leave_the_library_small) {
  const auto library = std::filesystem::file_size(FROGHOPPER_LIBRARY);
  EXPECT_GT(library, presets(13).packed_bytes() + presets(12).packed_bytes());
  EXPECT_LE(library, 20'000'000u);
}

TEST(presets, are_used_where_there_is_one) {
  setenv("FROGHOPPER_NVRTC", "/nowhere/libnvrtc.so", 1);
  const auto spec = kernel_named(presets(12).names().front());
  ASSERT_TRUE(spec);
  const auto newer = kernel_bytes(*spec, 13000), older = kernel_bytes(*spec, 12090);
  ASSERT_TRUE(newer && older && is_preset(*spec));
  EXPECT_EQ(newer->origin, "preset cuda13");
  EXPECT_EQ(older->origin, "preset cuda12");
  setenv("FROGHOPPER_LINE_INFO", "1", 1);
  EXPECT_FALSE(kernel_bytes(*spec, 13000)) << "presets have no line numbers";
  EXPECT_FALSE(is_preset(*spec));
  unsetenv("FROGHOPPER_LINE_INFO"), unsetenv("FROGHOPPER_NVRTC");
}

std::multiset<std::string> all_lines(std::istream& in) {
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
  const auto built = all_lines(in), expected = all_lines(file);
  const std::string more = only_in(built, expected), less = only_in(expected, built);
  EXPECT_TRUE(more.empty() && less.empty())
      << "the build made\n"
      << more << "where presets/registers.txt says\n"
      << less << "if that is as it should be: cmake --build BUILD --target registers";
}

}  // namespace
}  // namespace froghopper::runtime
