// SPDX-License-Identifier: Apache-2.0
// tests: tensor files on disk: what is read, what is refused before it costs anything, and that a file is written whole
// or not at all, whatever ends the process.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "files/tensor_file.hpp"
#include "src/base/text.hpp"

namespace froghopper::files {
namespace {

namespace fs = std::filesystem;

// A .safetensors or a .npy with that header and nothing after it.
std::string safetensors(const std::string& header) {
  std::string file;
  for (size_t i = 0; i < 8; ++i) file += static_cast<char>(header.size() >> 8 * i & 0xff);
  return file + header;
}

std::string npy(const std::string& header) {
  return std::string("\x93NUMPY\1\0", 8) + static_cast<char>(header.size()) + '\0' + header;
}

const std::string q4 = R"({"q":{"dtype":"F16","shape":[2],"data_offsets":[0,4]}})";

TEST(Files, are_named_in_failures_and_written_whole_or_not_at_all) {
  const std::string path = testing::TempDir() + "froghopper_tensor_file.npy";
  const auto missing = read_npy(path + ".missing");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.failure().text.find(path + ".missing: cannot be opened"), 0u) << missing.failure().text;
  EXPECT_FALSE(read_safetensors(testing::TempDir()));  // a folder

  ASSERT_TRUE(write_file(path, "not npy"));
  const auto wrong = read_npy(path);
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.failure().text.find(path + ", byte 0: "), 0u) << wrong.failure().text;

  const auto unwritable = write_file("/nonexistent/folder/x.npy", "bytes");
  ASSERT_FALSE(unwritable);
  EXPECT_EQ(unwritable.failure().status, FH_INTERNAL);
}

class Folder : public testing::Test {
 protected:
  void SetUp() override {
    folder = testing::TempDir() + "froghopper_files_" + std::to_string(getpid()) + "_" +
             testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(folder);
    fs::create_directories(folder);
  }
  void TearDown() override { fs::remove_all(folder); }

  std::string path(const std::string& name) const { return folder + "/" + name; }
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& entry : fs::directory_iterator(folder)) all.push_back(entry.path().filename());
    std::ranges::sort(all);
    return all;
  }

  std::string folder;
};

std::string contents(const std::string& path) {
  std::stringstream all;
  all << std::ifstream(path).rdbuf();
  return all.str();
}

void expect_says(const std::string& path, const std::string& says) {
  for (const std::string& why : {read_safetensors(path).failure().text, read_npy(path).failure().text}) {
    EXPECT_EQ(why.find(path), 0u) << why;
    EXPECT_NE(why.find(says), std::string::npos) << why;
  }
}

// Opening the pipe would wait forever, and reading a device would fill the memory.
TEST_F(Folder, has_other_things_than_files_and_they_are_refused_in_words) {
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  fs::create_symlink("/dev/zero", path("zeros"));
  expect_says(path("pipe"), "is a pipe; tensors are read from regular files");
  expect_says(path("zeros"), "is a device; tensors");
  expect_says(folder, "is a folder; tensors");
}

// A file with a hole of a terabyte costs nothing to make, and must cost nothing to refuse.
TEST_F(Folder, with_a_file_of_a_terabyte_costs_no_memory) {
  for (const std::string& bytes : {std::string(), safetensors(q4), npy("{'descr': '<f2'")}) {
    std::ofstream(path("huge"), std::ios::binary) << bytes;
    fs::resize_file(path("huge"), uint64_t{1} << 40);
    struct rusage before {
    }, after{};
    getrusage(RUSAGE_SELF, &before);
    EXPECT_FALSE(read_safetensors(path("huge")));
    EXPECT_FALSE(read_npy(path("huge")));
    getrusage(RUSAGE_SELF, &after);
    EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 64 << 10) << "KiB";
  }
}

// The header is short and right up to the length of the tensor: memory comes after the judgement.
TEST_F(Folder, with_half_a_gigabyte_too_much_costs_no_memory) {
  std::ofstream(path("long"), std::ios::binary) << safetensors(q4) + "1234";
  fs::resize_file(path("long"), uint64_t{1} << 29);
  struct rusage before {
  }, after{};
  getrusage(RUSAGE_SELF, &before);
  const auto read = read_safetensors(path("long"));
  getrusage(RUSAGE_SELF, &after);
  ASSERT_FALSE(read);
  EXPECT_NE(read.failure().text.find("bytes follow the last tensor"), std::string::npos) << read.failure().text;
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 64 << 10) << "KiB";
}

TEST_F(Folder, keeps_its_links_when_their_files_are_written) {
  fs::create_directories(path("below"));
  std::ofstream(path("below/file")) << "before";
  fs::create_symlink("below/file", path("link"));
  fs::create_symlink("link", path("link_to_link"));
  fs::create_symlink("below/new", path("dangling"));
  ASSERT_TRUE(write_file(path("link_to_link"), "after"));
  ASSERT_TRUE(write_file(path("dangling"), "new"));
  for (const char* const name : {"link", "link_to_link", "dangling"}) EXPECT_TRUE(fs::is_symlink(path(name))) << name;
  EXPECT_EQ(contents(path("below/file")), "after");
  EXPECT_EQ(contents(path("below/new")), "new");

  fs::create_symlink("circle", path("circle"));
  EXPECT_FALSE(write_file(path("circle"), "x"));
  fs::create_symlink("/dev/null", path("null"));
  const auto device = write_file(path("null"), "x");
  ASSERT_FALSE(device);
  EXPECT_NE(device.failure().text.find("a device, not a regular file"), std::string::npos) << device.failure().text;
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
}

// In a child that a signal ends while it writes.
int status_of(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

TEST_F(Folder, has_no_part_of_a_file_after_the_limit_on_its_size) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const struct rlimit limit { 4096, 4096 }, no_core{0, 0};
    setrlimit(RLIMIT_FSIZE, &limit);
    setrlimit(RLIMIT_CORE, &no_core);
    _exit(write_file(path("out"), std::string(1 << 20, 'x')) ? 0 : 1);
  }
  const int status = status_of(child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGXFSZ) << status;
  EXPECT_EQ(names(), std::vector<std::string>{});
}

TEST_F(Folder, has_no_part_of_a_file_after_an_interrupt) {
  for (int round = 0; round < 5; ++round) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      const std::string bytes(32 << 20, 'x');
      while (write_file(path("out"), bytes)) continue;
      _exit(1);
    }
    const std::string part = path("out") + ".part" + std::to_string(child);
    for (int i = 0; i < 10'000 && !fs::exists(part); ++i) usleep(1000);
    EXPECT_TRUE(fs::exists(part) || fs::exists(path("out")));
    kill(child, SIGINT);
    const int status = status_of(child);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT) << status;
    EXPECT_FALSE(fs::exists(part));
  }
}

}  // namespace
}  // namespace froghopper::files
