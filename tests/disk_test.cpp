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

// A name for the half-written file that can be guessed could be somebody else's link to what this user may write to.
TEST_F(Folder, has_links_for_half_written_files_and_they_are_not_followed) {
  std::ofstream(path("victim")) << "as it was";
  const std::string part = path("out.part") + std::to_string(getpid());
  fs::create_symlink("victim", part);
  ASSERT_TRUE(write_file(path("out"), "new"));
  EXPECT_EQ(contents(path("victim")), "as it was");
  EXPECT_TRUE(fs::is_symlink(part));
  EXPECT_EQ(contents(path("out")), "new");
}

TEST_F(Folder, has_files_that_keep_their_rights) {
  const mode_t before = umask(0022);
  for (const unsigned rights : {0600u, 0640u, 0664u, 0700u}) {
    const std::string name = path("out" + std::to_string(rights));
    std::ofstream(name) << "before";
    fs::permissions(name, fs::perms(rights));
    ASSERT_TRUE(write_file(name, "after"));
    EXPECT_EQ(fs::status(name).permissions(), fs::perms(rights));
    EXPECT_EQ(contents(name), "after");
  }
  ASSERT_TRUE(write_file(path("new"), "after"));
  EXPECT_EQ(fs::status(path("new")).permissions(), fs::perms(0644));
  umask(before);
  if (geteuid() != 0) GTEST_SKIP() << "only root can give files to others";
  ASSERT_EQ(chown(path("new").c_str(), 54321, 54322), 0);
  ASSERT_TRUE(write_file(path("new"), "again"));
  struct stat facts {};
  ASSERT_EQ(stat(path("new").c_str(), &facts), 0);
  EXPECT_EQ(facts.st_uid, 54321u);
  EXPECT_EQ(facts.st_gid, 54322u);
}

// As a user who may write to the folder, but not to the file in it.
TEST_F(Folder, has_a_file_that_may_not_be_written_to) {
  std::ofstream(path("out")) << "before";
  fs::permissions(path("out"), fs::perms(0444));
  fs::permissions(folder, fs::perms(0777));
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (geteuid() == 0 && setuid(54321) != 0) _exit(2);
    _exit(write_file(path("out"), "after") || can_write_file(path("out")) ? 1 : 0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(contents(path("out")), "before");
}

TEST_F(Folder, can_be_asked_before_anything_is_computed) {
  EXPECT_TRUE(can_write_file(path("out")));
  std::ofstream(path("file")) << "before";
  EXPECT_TRUE(can_write_file(path("file")));
  EXPECT_EQ(contents(path("file")), "before");
  fs::create_symlink("no/folder/x", path("link"));
  for (const std::string& bad :
       {path("no/folder/out"), path("file/out"), folder, path("link"), std::string("/dev/full")})
    EXPECT_FALSE(can_write_file(bad)) << bad;
  EXPECT_EQ(names(), (std::vector<std::string>{"file", "link"}));
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
    for (int i = 0; i < 10'000 && names().empty(); ++i) usleep(1000);
    EXPECT_FALSE(names().empty());
    kill(child, SIGINT);
    const int status = status_of(child);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT) << status;
    for (const std::string& name : names()) EXPECT_EQ(name, "out");
  }
}

}  // namespace
}  // namespace froghopper::files
