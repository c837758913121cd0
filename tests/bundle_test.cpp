// SPDX-License-Identifier: Apache-2.0
// Claims: what froghopper_compile packs into a bundle is read back as it was, kernel by kernel, and a bundle that is
// torn or changed gives fewer kernels, but never a wrong one.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

#include "src/base/text.hpp"
#include "src/runtime/bundle.hpp"
#include "src/runtime/kernel_file.hpp"

namespace froghopper::runtime {
namespace {

namespace fs = std::filesystem;

// Kernels that repeat each other, as those of one tile do, and so many that there are several groups.
std::map<std::string, std::string> some_kernels() {
  std::map<std::string, std::string> files;
  std::string cubin(300'000, '\0');
  unsigned random = 1;
  for (char& byte : cubin) byte = static_cast<char>((random = random * 1664525u + 1013904223u) >> 24);
  for (int i = 0; i < 16; ++i) {
    CompiledKernel kernel;
    kernel.key.bytes.fill(static_cast<unsigned char>(i));
    kernel.facts.registers = i;
    cubin[1000] = static_cast<char>(i);
    kernel.cubin = cubin.substr(0, cubin.size() - 10 * i);
    files[text("fwd.{}.d{}{}", i % 2 ? "bf16" : "f16", 64 + 8 * i, i % 3 ? ".causal" : "")] = pack(kernel);
  }
  return files;
}

class BundleTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string folder = (fs::temp_directory_path() / "froghopper-bundle-XXXXXX").string();
    ASSERT_NE(mkdtemp(folder.data()), nullptr);
    for (const auto& [name, file] : kernels) std::ofstream(folder + "/" + name + ".kernel", std::ios::binary) << file;
    const std::string command = text("{} --bundle {} {}/all.bundle", FROGHOPPER_COMPILE, folder, folder);
    ASSERT_EQ(std::system(command.c_str()), 0);
    std::ifstream made(folder + "/all.bundle", std::ios::binary);
    bytes = {std::istreambuf_iterator<char>(made), {}};
    fs::remove_all(folder);
  }

  const std::map<std::string, std::string> kernels = some_kernels();
  std::string bytes;
};

TEST_F(BundleTest, gives_back_what_was_put_in) {
  const Bundle bundle(bytes);
  std::vector<std::string> names;
  uint64_t unpacked = 0;
  for (const auto& [name, file] : kernels) {
    names.push_back(name), unpacked += file.size();
    EXPECT_TRUE(bundle.has(name));
    EXPECT_EQ(bundle.kernel(name), file) << name;
  }
  EXPECT_EQ(bundle.names(), names);
  EXPECT_EQ(bundle.unpacked_bytes(), unpacked);
  EXPECT_EQ(bundle.packed_bytes(), bytes.size());
  EXPECT_LT(bytes.size(), unpacked / 2) << "random bytes, but each kernel has the same";
  for (const char* const name : {"", "fwd", "fwd.bf16.d64.causalx", "zzz"}) {
    EXPECT_FALSE(bundle.has(name));
    EXPECT_FALSE(bundle.kernel(name));
  }
}

TEST_F(BundleTest, is_empty_where_it_is_none) {
  for (const std::string& wrong : {std::string(), std::string("fhbund01"), "x" + bytes, bytes.substr(0, 40)}) {
    EXPECT_TRUE(Bundle(wrong).empty());
    EXPECT_FALSE(Bundle(wrong).kernel(kernels.begin()->first));
  }
}

TEST_F(BundleTest, gives_no_wrong_kernel_where_it_is_torn_or_changed) {
  const auto right_or_none = [&](const std::string& changed) {
    const Bundle bundle(changed);
    int lost = 0;
    for (const auto& [name, file] : kernels) {
      const auto found = bundle.kernel(name);
      const bool whole = found && unpack(*found);
      if (whole) { EXPECT_EQ(*found, file) << name; }
      lost += !whole;
    }
    return lost;
  };
  EXPECT_EQ(right_or_none(bytes), 0);
  EXPECT_GT(right_or_none(bytes.substr(0, bytes.size() - 1)), 0);
  EXPECT_GT(right_or_none(bytes.substr(0, bytes.size() / 2)), 0);
  for (size_t at = 8; at < 400; at += 13) {  // the header, the tables
    std::string changed = bytes;
    changed[at] = static_cast<char>(changed[at] ^ 0x55);
    right_or_none(changed);
  }
  for (size_t at = 600; at < bytes.size(); at += bytes.size() / 6) {
    std::string changed = bytes;
    changed[at] = static_cast<char>(changed[at] ^ 0x10);
    right_or_none(changed);
  }
}

}  // namespace
}  // namespace froghopper::runtime
