// SPDX-License-Identifier: Apache-2.0
// Claims: cores() counts the processors that the process may use, by its affinity mask and by the quotas of its cgroups
// and of those above them, in both versions, and by FROGHOPPER_THREADS and OMP_NUM_THREADS. What these have that is no
// number of threads is logged.
#include "src/base/cores.hpp"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <string>

#include "src/base/log.hpp"

namespace froghopper {
namespace {

using Files = std::map<std::string, std::string>;

std::optional<int64_t> cores_of(const Files& files) {
  return cgroup_cores([&](const std::string& path) -> std::optional<std::string> {
    const auto found = files.find(path);
    return found == files.end() ? std::nullopt : std::optional(found->second);
  });
}

// As a machine with systemd has it.
Files version_2(Files more) {
  more["/proc/self/cgroup"] = "0::/user.slice/job 1/step\n";
  more["/proc/self/mountinfo"] =
      "25 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
      "31 25 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
  return more;
}

TEST(cores, no_cgroups_no_limit) {
  EXPECT_EQ(cores_of({}), std::nullopt);
  EXPECT_EQ(cores_of({{"/proc/self/cgroup", ""}, {"/proc/self/mountinfo", ""}}), std::nullopt);
  EXPECT_EQ(cores_of({{"/proc/self/cgroup", "nonsense\n:\n0:\n"}, {"/proc/self/mountinfo", "nonsense - \n"}}),
            std::nullopt);
}

TEST(cores, quota_of_version_2_in_every_group_above) {
  const std::string at = "/sys/fs/cgroup";
  EXPECT_EQ(cores_of(version_2({})), std::nullopt);
  EXPECT_EQ(cores_of(version_2({{at + "/user.slice/job 1/step/cpu.max", "max 100000\n"}})), std::nullopt);
  EXPECT_EQ(cores_of(version_2({{at + "/user.slice/job 1/step/cpu.max", "400000 100000\n"}})), 4);
  EXPECT_EQ(cores_of(version_2({{at + "/user.slice/job 1/cpu.max", "150000 100000\n"}})), 2);  // rounded up
  EXPECT_EQ(cores_of(version_2({{at + "/user.slice/cpu.max", "10000 100000\n"}})), 1);
  EXPECT_EQ(cores_of(version_2({{at + "/cpu.max", "300000 100000\n"}})), 3);
  EXPECT_EQ(cores_of(version_2({{at + "/cpu.max", "300000 100000\n"},
                                {at + "/user.slice/cpu.max", "200000 100000\n"},
                                {at + "/user.slice/job 1/step/cpu.max", "800000 100000\n"}})),
            2);
  EXPECT_EQ(cores_of(version_2({{at + "/cpu.max", "0 0\n"}})), std::nullopt);
}

TEST(cores, quota_of_version_1) {
  const std::string at = "/sys/fs/cgroup/cpu,cpuacct";
  Files files{{"/proc/self/cgroup", "9:cpuset:/a\n4:cpu,cpuacct:/a/b\n1:name=systemd:/c\n0::/c\n"},
              {"/proc/self/mountinfo",
               "32 25 0:29 / /sys/fs/cgroup/cpuset rw shared:9 - cgroup cgroup rw,cpuset\n"
               "33 25 0:30 / /sys/fs/cgroup/cpu,cpuacct rw shared:10 - cgroup cgroup rw,cpu,cpuacct\n"
               "34 25 0:31 / /sys/fs/cgroup/unified rw shared:11 - cgroup2 cgroup2 rw\n"},
              {at + "/a/b/cpu.cfs_quota_us", "-1\n"},
              {at + "/a/b/cpu.cfs_period_us", "100000\n"}};
  EXPECT_EQ(cores_of(files), std::nullopt);
  files[at + "/a/cpu.cfs_quota_us"] = "250000\n";
  EXPECT_EQ(cores_of(files), std::nullopt);  // of what period?
  files[at + "/a/cpu.cfs_period_us"] = "50000\n";
  EXPECT_EQ(cores_of(files), 5);
  files["/sys/fs/cgroup/unified/c/cpu.max"] = "100000 50000";
  EXPECT_EQ(cores_of(files), 2);
}

// A container sees its own group as the root of what is mounted, or not at all.
TEST(cores, quota_inside_a_container) {
  const std::string folder = "/sys/fs/cgroup";
  const auto seen = [&](const std::string& group, const std::string& root) {
    return cores_of({{"/proc/self/cgroup", "0::" + group + "\n"},
                     {"/proc/self/mountinfo", "31 25 0:26 " + root + " " + folder + " ro - cgroup2 cgroup ro\n"},
                     {folder + "/cpu.max", "300000 100000\n"},
                     {folder + "/inner/cpu.max", "100000 100000\n"}});
  };
  EXPECT_EQ(seen("/", "/"), 3);
  EXPECT_EQ(seen("/docker/1", "/docker/1"), 3);
  EXPECT_EQ(seen("/docker/1/inner", "/docker/1"), 1);
  EXPECT_EQ(seen("/docker/12/inner", "/docker/1"), 3);
  EXPECT_EQ(seen("/../other", "/"), 3);
}

TEST(cores, of_the_affinity_mask) {
  cpu_set_t mask;
  ASSERT_EQ(sched_getaffinity(0, sizeof mask, &mask), 0);
  const int64_t allowed = CPU_COUNT(&mask);
  EXPECT_GE(cores(), 1);
  EXPECT_LE(cores(), allowed);
  const pid_t child = fork();
  if (child == 0) {
    int first = 0;
    while (!CPU_ISSET(first, &mask)) ++first;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    _exit(sched_setaffinity(0, sizeof one, &one) == 0 && cores() == 1 ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

// cores() with these variables in a process of its own, where nobody has counted yet, and what it logs.
std::string counted_with(const char* threads, const char* omp) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    static std::string logged;
    threads == nullptr ? unsetenv("FROGHOPPER_THREADS") : setenv("FROGHOPPER_THREADS", threads, 1);
    omp == nullptr ? unsetenv("OMP_NUM_THREADS") : setenv("OMP_NUM_THREADS", omp, 1);
    set_log([](const char* line, void*) { logged += std::string(" ") + line; }, nullptr);
    const std::string found = std::to_string(cores()) + logged;
    _exit(write(ends[1], found.data(), found.size()) == static_cast<ssize_t>(found.size()) ? 0 : 1);
  }
  close(ends[1]);
  std::string found(4096, '\0');
  const ssize_t bytes = read(ends[0], found.data(), found.size());
  close(ends[0]);
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  found.resize(static_cast<size_t>(std::max<ssize_t>(0, bytes)));
  return found;
}

TEST(cores, of_the_environment) {
  const std::string usual = counted_with(nullptr, nullptr);
  EXPECT_EQ(counted_with("7", nullptr), "7");
  EXPECT_EQ(counted_with("7", "1"), "7");
  EXPECT_EQ(counted_with(nullptr, "1"), "1");
  EXPECT_EQ(counted_with(nullptr, "1,4"), "1");
  EXPECT_EQ(counted_with("", ""), usual);
  EXPECT_EQ(counted_with("4096", nullptr), "4096");
  const auto ignored = [&](const std::string& variable, const std::string& value) {
    return usual + " the environment's " + variable + " is \"" + value +
           "\" and is ignored: it must be a number of threads " +
           (variable == "FROGHOPPER_THREADS" ? "from 1 to 4096." : "above 0.");
  };
  for (const char* wrong : {"abc", "4abc", "0", "-3", "4097", "1000000000", "99999999999999999999",
                            "-99999999999999999999", "1e3", "1.5", "2,3"}) {
    EXPECT_EQ(counted_with(wrong, nullptr), ignored("FROGHOPPER_THREADS", wrong));
    EXPECT_EQ(counted_with("2", wrong), "2");  // not asked for
  }
  for (const char* wrong : {"many", "-99999999999999999999", "99999999999999999999x"})
    EXPECT_EQ(counted_with(nullptr, wrong), ignored("OMP_NUM_THREADS", wrong));
  for (const char* no_bound : {"1000000000", "99999999999999999999", "99999999999999999999,2"})
    EXPECT_EQ(counted_with(nullptr, no_bound), usual);
}

}  // namespace
}  // namespace froghopper
