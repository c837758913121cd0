// SPDX-License-Identifier: Apache-2.0
// Claims: a kernel file is taken whole or not at all, whoever else reads and writes it at the same time, and a cache
// that cannot be used is no error.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <thread>

#include "src/base/log.hpp"
#include "src/base/new_file.hpp"
#include "src/runtime/cache.hpp"
#include "src/runtime/trust.hpp"

namespace froghopper::runtime {
namespace {

namespace fs = std::filesystem;

class CacheTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "froghopper-cache-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder = name;
  }
  void TearDown() override { fs::remove_all(folder); }

  std::string folder;
};

Key key_of(unsigned char first) {
  Key key;
  key.bytes.fill(7);
  key.bytes[0] = first;
  return key;
}

// Different content for the same key, as long as a cubin, so that a mixture of two writers would show.
CompiledKernel kernel_of(unsigned char first, char filling) {
  CompiledKernel kernel{key_of(first), {}, std::string(100'000, filling)};
  kernel.facts.registers = 168;
  kernel.facts.smem_bytes = 1 << 17;
  return kernel;
}

void overwrite(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc).write(bytes.data(), static_cast<long>(bytes.size()));
}

TEST(kernel_file, comes_back_as_it_was) {
  const CompiledKernel kernel = kernel_of(1, 'x');
  const std::string packed = pack(kernel);
  const auto view = unpack(packed);
  ASSERT_TRUE(view);
  EXPECT_EQ(view->key, kernel.key);
  EXPECT_EQ(view->facts.registers, 168);
  EXPECT_EQ(view->facts.smem_bytes, 1 << 17);
  EXPECT_EQ(view->cubin, kernel.cubin);
}

TEST(kernel_file, shows_any_cut_and_any_changed_byte) {
  const std::string packed = pack(kernel_of(1, 'x'));
  for (const size_t bytes : {size_t{0}, size_t{7}, size_t{100}, size_t{128}, packed.size() / 2, packed.size() - 1})
    EXPECT_FALSE(unpack(std::string_view(packed).substr(0, bytes))) << bytes << " bytes of " << packed.size();
  EXPECT_FALSE(unpack(packed + "x")) << "one byte too many";
  for (size_t at = 0; at < packed.size(); at = at < 128 ? at + 1 : at + 4999) {
    std::string changed = packed;
    changed[at] ^= 1;
    EXPECT_FALSE(unpack(changed)) << "byte " << at;
  }
  EXPECT_FALSE(unpack("no kernel file at all, but longer than the header of one: " + std::string(200, '.')));
}

TEST_F(CacheTest, keeps_what_it_is_given) {
  const DiskCache cache(folder + "/made/when/needed");
  const std::string packed = pack(kernel_of(1, 'x'));
  EXPECT_FALSE(cache.load("k", key_of(1)));
  ASSERT_TRUE(cache.store("k", key_of(1), packed));
  EXPECT_EQ(cache.load("k", key_of(1)), packed);
  EXPECT_FALSE(cache.load("k", key_of(2))) << "another key";
  EXPECT_FALSE(cache.load("other", key_of(1))) << "another name";
}

TEST_F(CacheTest, does_not_trust_the_name_of_a_file) {
  const DiskCache cache(folder);
  ASSERT_TRUE(cache.store("k", key_of(1), pack(kernel_of(2, 'x'))));  // says in its header that it has another key
  EXPECT_FALSE(cache.load("k", key_of(1)));
}

TEST_F(CacheTest, replaces_a_torn_file) {
  const DiskCache cache(folder);
  const std::string packed = pack(kernel_of(1, 'x'));
  ASSERT_TRUE(cache.store("k", key_of(1), packed));
  overwrite(cache.path("k", key_of(1)), packed.substr(0, packed.size() / 2));
  EXPECT_FALSE(cache.load("k", key_of(1)));
  ASSERT_TRUE(cache.store("k", key_of(1), packed));
  EXPECT_EQ(cache.load("k", key_of(1)), packed);
}

TEST_F(CacheTest, goes_without_a_folder_that_cannot_be_written) {
  overwrite(folder + "/file", "a file where the folder should be");  // refuses the superuser too
  const DiskCache cache(folder + "/file/below");
  EXPECT_FALSE(cache.store("k", key_of(1), pack(kernel_of(1, 'x'))));
  EXPECT_FALSE(cache.load("k", key_of(1)));
  const DiskCache nowhere("");
  EXPECT_FALSE(nowhere.store("k", key_of(1), pack(kernel_of(1, 'x'))));
  EXPECT_FALSE(nowhere.load("k", key_of(1)));
}

// A pipe would be waited for, a device would fill the memory, and so would a file with a hole of a terabyte.
TEST_F(CacheTest, passes_over_what_is_no_kernel_file_and_replaces_it) {
  const DiskCache cache(folder);
  const std::string packed = pack(kernel_of(1, 'x')), target = cache.path("k", key_of(1));
  const auto pipe = [&] { return mkfifo(target.c_str(), 0600) == 0; };
  const auto device = [&] { return symlink("/dev/zero", target.c_str()) == 0; };
  const auto hole = [&] { return overwrite(target, packed), truncate(target.c_str(), int64_t{1} << 40) == 0; };
  const auto promise = [&] {  // a header that speaks of a terabyte, and a hole as large
    std::string says = packed.substr(0, packed_header_bytes);
    const uint64_t cubin_bytes = uint64_t{1} << 40;
    says.replace(16, sizeof cubin_bytes, reinterpret_cast<const char*>(&cubin_bytes), sizeof cubin_bytes);
    overwrite(target, says);
    return truncate(target.c_str(), static_cast<off_t>(packed_header_bytes + cubin_bytes)) == 0;
  };
  for (const std::function<bool()>& put : {std::function<bool()>(pipe), {device}, {hole}, {promise}}) {
    fs::remove(target);
    ASSERT_TRUE(put());
    EXPECT_FALSE(cache.load("k", key_of(1)));
    ASSERT_TRUE(cache.store("k", key_of(1), packed));
    EXPECT_EQ(cache.load("k", key_of(1)), packed);
  }
}

// To read is not to write: a file that its group may change would not be taken.
TEST_F(CacheTest, lets_others_read_as_far_as_the_umask_does) {
  const DiskCache cache(folder);
  const mode_t before = umask(0027);
  EXPECT_TRUE(cache.store("k", key_of(1), pack(kernel_of(1, 'x'))));
  umask(0002);
  EXPECT_TRUE(cache.store("k", key_of(2), pack(kernel_of(2, 'x'))));
  umask(before);
  EXPECT_EQ(fs::status(cache.path("k", key_of(1))).permissions(), fs::perms(0640));
  EXPECT_EQ(fs::status(cache.path("k", key_of(2))).permissions(), fs::perms(0644));
  EXPECT_TRUE(cache.load("k", key_of(2)));
}

// A kernel file is code for the GPU of whoever loads it, so nothing is taken that somebody else could have put there.
TEST_F(CacheTest, trusts_what_only_the_user_and_root_can_change) {
  const std::string packed = pack(kernel_of(1, 'x')), below = folder + "/a/b";
  const DiskCache cache(below);
  const mode_t before = umask(0);
  EXPECT_TRUE(cache.store("k", key_of(1), packed));
  umask(before);
  for (const char* const made : {"/a", "/a/b"})
    EXPECT_EQ(fs::status(folder + made).permissions(), fs::perms(0700)) << made;
  ASSERT_TRUE(cache.load("k", key_of(1)));

  const std::string file = cache.path("k", key_of(1));
  const auto taken = [&] { return cache.load("k", key_of(1)).has_value(); };
  for (const std::string& path : {file, below, folder + "/a"}) {
    const fs::perms right = fs::status(path).permissions();
    for (const unsigned mode : {0770u, 0722u}) {
      fs::permissions(path, fs::perms(mode));
      EXPECT_FALSE(taken()) << path << ' ' << std::oct << mode;
      if (path != file) { EXPECT_FALSE(cache.store("k2", key_of(2), packed)) << path; }
    }
    fs::permissions(path, fs::perms(0755));  // others may look
    EXPECT_TRUE(taken()) << path;
    fs::permissions(path, right);
  }
  EXPECT_FALSE(fs::exists(cache.path("k2", key_of(2))));
  fs::permissions(folder + "/a", fs::perms(01777));  // as /tmp: what is in there stays its owner's
  EXPECT_TRUE(taken());
  fs::permissions(below, fs::perms(01777));
  EXPECT_FALSE(taken());
  EXPECT_NE(why_untrusted(below).find("chmod go-w " + below), std::string::npos) << why_untrusted(below);
}

TEST_F(CacheTest, trusts_links_and_folders_of_the_user_and_root_alone) {
  const std::string packed = pack(kernel_of(1, 'x'));
  ASSERT_TRUE(DiskCache(folder + "/real").store("k", key_of(1), packed));
  fs::create_symlink("real", folder + "/link");
  fs::create_symlink(folder + "/link/../link", folder + "/far");
  const auto taken = [&](const char* name) { return DiskCache(folder + name).load("k", key_of(1)).has_value(); };
  EXPECT_TRUE(taken("/link"));
  EXPECT_TRUE(taken("/far"));
  fs::create_symlink("circle", folder + "/circle");
  EXPECT_FALSE(taken("/circle"));
  if (geteuid() != 0) GTEST_SKIP() << "only root can give files to others";
  constexpr uid_t other = 54321;
  ASSERT_EQ(lchown((folder + "/link").c_str(), other, other), 0);
  EXPECT_FALSE(taken("/link"));
  EXPECT_FALSE(taken("/far"));
  EXPECT_TRUE(taken("/real"));
  const std::string file = DiskCache(folder + "/real").path("k", key_of(1));
  for (const std::string& path : {file, folder + "/real"}) {
    ASSERT_EQ(chown(path.c_str(), other, other), 0);
    EXPECT_FALSE(taken("/real")) << path;
    ASSERT_EQ(chown(path.c_str(), 0, 0), 0);
    EXPECT_TRUE(taken("/real")) << path;
  }
}

// The user can hear why every process compiles.
TEST_F(CacheTest, says_that_it_is_not_used) {
  fs::permissions(folder, fs::perms(0777));
  std::string heard;
  set_log([](const char* line, void* user) { *static_cast<std::string*>(user) += line; }, &heard);
  EXPECT_FALSE(DiskCache(folder).load("k", key_of(1)));
  set_log(nullptr, nullptr);
  EXPECT_EQ(heard.find("cache: " + folder + " is not used: " + folder + " can be written to by others"), 0u) << heard;
}

// A link that was planted where the half-written file would be must not be followed, nor a file there be used.
TEST_F(CacheTest, writes_new_files_alone) {
  const std::string kept = folder + "/kept", link = folder + "/link";
  overwrite(kept, "as it was");
  fs::create_symlink("kept", link);
  EXPECT_EQ(create_file(kept, 0600), -1);
  EXPECT_EQ(create_file(link, 0600), -1);
  EXPECT_NE(name_beside(kept), name_beside(kept));
  EXPECT_EQ(fs::file_size(kept), 9u);
}

// One of several writers' files, whole, or nothing yet.
bool write_and_read(const std::string& folder, char filling) {
  const DiskCache cache(folder);
  const std::string mine = pack(kernel_of(1, filling));
  for (int round = 0; round < 40; ++round) {
    if (!cache.store("k", key_of(1), mine)) return false;
    const auto bytes = cache.load("k", key_of(1));
    if (!bytes) return false;
    const auto view = unpack(*bytes);
    if (!view || view->cubin != std::string(100'000, view->cubin[0])) return false;
  }
  return true;
}

TEST_F(CacheTest, holds_under_processes_with_threads) {
  std::vector<pid_t> children;
  for (char process = 0; process < 4; ++process) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      bool fine[3] = {};
      std::vector<std::thread> threads;
      for (int i = 0; i < 3; ++i)
        threads.emplace_back([&, i] { fine[i] = write_and_read(folder, static_cast<char>('a' + process * 3 + i)); });
      for (std::thread& thread : threads) thread.join();
      _exit(fine[0] && fine[1] && fine[2] ? 0 : 1);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = -1;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "a process saw half a file";
  }
  const auto files = std::distance(fs::directory_iterator(folder), fs::directory_iterator());
  EXPECT_EQ(files, 1) << "parts were left over";
}

TEST(cache_folder, is_the_first_that_the_environment_names) {
  const char* names[] = {"FROGHOPPER_CACHE", "XDG_CACHE_HOME", "HOME"};
  for (const char* name : names) unsetenv(name);
  EXPECT_EQ(DiskCache::default_folder(), "");
  setenv("HOME", "/h", 1);
  EXPECT_EQ(DiskCache::default_folder(), "/h/.cache/froghopper");
  setenv("XDG_CACHE_HOME", "/x", 1);
  EXPECT_EQ(DiskCache::default_folder(), "/x/froghopper");
  setenv("FROGHOPPER_CACHE", "/f", 1);
  EXPECT_EQ(DiskCache::default_folder(), "/f");
}

}  // namespace
}  // namespace froghopper::runtime
