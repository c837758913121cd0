// SPDX-License-Identifier: Apache-2.0
// base: what the environment says, the affinity mask and the cgroups' quotas. A thread more than these allow only takes
// turns with the others.
#include "src/base/cores.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cmath>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>
#include <vector>

#include "src/base/environment.hpp"
#include "src/base/fork.hpp"
#include "src/base/log.hpp"
#include "src/base/printable.hpp"
#include "src/base/text.hpp"

namespace froghopper {
namespace {

// Processors in the affinity mask of the process's first thread; 0: the system does not say. A mask that is too small
// for the machine's processors is refused, so it grows.
int64_t affine_cores() {
  for (size_t sets = 1; sets <= 64; sets *= 2) {
    std::vector<cpu_set_t> mask(sets);
    const size_t bytes = sets * sizeof(cpu_set_t);
    if (sched_getaffinity(getpid(), bytes, mask.data()) == 0) return CPU_COUNT_S(bytes, mask.data());
  }
  return 0;
}

std::optional<std::string> read_file(const std::string& path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(file), {});
}

bool has_word(const std::string& list, const std::string& word) {  // "cpu,cpuacct" has "cpu"
  return ("," + list + ",").find("," + word + ",") != std::string::npos;
}

// Where the groups of one hierarchy are to be seen: the group `root` and those inside it, in the folder `folder`.
struct Mount {
  std::string root, folder;
};

// A line is "36 31 0:29 / /sys/fs/cgroup/cpu rw,relatime shared:1 - cgroup cgroup rw,cpu,cpuacct": the root, the
// folder, and after the dash the kind, a name and the options.
std::optional<Mount> mount_of(const std::string& mountinfo, bool version_2) {
  std::istringstream lines(mountinfo);
  for (std::string line; std::getline(lines, line);) {
    const size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::istringstream before(line), after(line.substr(dash + 3));
    std::string skipped, kind, name, options;
    Mount mount;
    before >> skipped >> skipped >> skipped >> mount.root >> mount.folder;
    after >> kind >> name >> options;
    if (version_2 ? kind == "cgroup2" : kind == "cgroup" && has_word(options, "cpu")) return mount;
  }
  return std::nullopt;
}

// A line is "4:cpu,cpuacct:/user/group", in version 2 "0::/user/group".
std::optional<std::string> group_of(const std::string& cgroup, bool version_2) {
  std::istringstream lines(cgroup);
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (version_2 ? controllers.empty() : has_word(controllers, "cpu")) return line.substr(second + 1);
  }
  return std::nullopt;
}

// A quota below 0 or of words ("max") is none.
std::optional<double> quota_in(const ReadFile& read, const std::string& folder, bool version_2) {
  std::string numbers;
  if (version_2) {
    numbers = read(folder + "/cpu.max").value_or("");  // "150000 100000"
  } else {
    numbers =
        read(folder + "/cpu.cfs_quota_us").value_or("") + ' ' + read(folder + "/cpu.cfs_period_us").value_or("");
  }
  std::istringstream words(numbers);
  double quota = 0, period = 0;
  if (words >> quota >> period && quota > 0 && period > 0) return quota / period;
  return std::nullopt;
}

// The smallest quota from the process's group up to the one that is mounted. In a container the group may lie outside
// of what is mounted there; then only the mounted one can be asked.
std::optional<double> smallest_quota(const ReadFile& read, const Mount& mount, std::string group, bool version_2) {
  if (mount.root != "/") {
    const bool inside =
        group.rfind(mount.root, 0) == 0 && (group.size() == mount.root.size() || group[mount.root.size()] == '/');
    group = inside ? group.substr(mount.root.size()) : "";
  }
  if (group == "/" || group.rfind("/..", 0) == 0) group.clear();
  std::optional<double> smallest;
  while (true) {
    const auto quota = quota_in(read, mount.folder + group, version_2);
    if (quota && (!smallest || *quota < *smallest)) smallest = quota;
    if (group.empty()) return smallest;
    group.erase(std::min(group.rfind('/'), group.size()));
  }
}

// More than the processors of any machine. Each thread has memory of its own.
constexpr int64_t most_threads = 4096;

// What a variable says of threads: whether a number above most_threads counts as that or is ignored, and whether it may
// be a list, as OMP_NUM_THREADS may, whose first number ends with a comma or a space.
struct Reading {
  bool is_bound, may_be_list;
};

// A whole number from 1 to most_threads; 0: it is not set, or has none, as the log then says.
int64_t number_in(const char* variable, Reading reading) {
  const std::string value = environment(variable);
  if (value.empty()) return 0;
  int64_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  const bool ends = end == value.data() + value.size() || (reading.may_be_list && (*end == ',' || *end == ' '));
  const bool too_long = error == std::errc::result_out_of_range && value.front() != '-';
  if (ends && too_long) number = INT64_MAX;
  const bool whole = ends && (error == std::errc() || too_long);
  if (whole && number > 0 && (number <= most_threads || reading.is_bound)) return std::min(number, most_threads);
  log(text("the environment's {} is \"{}\" and is ignored: it must be a number of threads {}.", variable,
           shown(value), reading.is_bound ? "above 0" : text("from 1 to {}", most_threads)));
  return 0;
}

int64_t count_cores() {
  if (const int64_t wanted = number_in("FROGHOPPER_THREADS", {.is_bound = false, .may_be_list = false}))
    return wanted;
  int64_t count = affine_cores();
  if (count == 0) count = std::thread::hardware_concurrency();
  if (const auto quota = cgroup_cores(read_file)) count = std::min(count, *quota);
  if (const int64_t most = number_in("OMP_NUM_THREADS", {.is_bound = true, .may_be_list = true}))
    count = std::min(count, most);
  return std::max<int64_t>(1, count);
}

std::atomic<int64_t> counted{0};
[[maybe_unused]] const bool forks = in_children([] { counted = 0; });

}  // namespace

int64_t cores() {
  if (const int64_t known = counted.load(std::memory_order_relaxed)) return known;
  const int64_t count = count_cores();
  counted = count;
  return count;
}

std::optional<int64_t> cgroup_cores(const ReadFile& read) {
  const auto cgroup = read("/proc/self/cgroup"), mountinfo = read("/proc/self/mountinfo");
  if (!cgroup || !mountinfo) return std::nullopt;
  std::optional<double> smallest;
  for (const bool version_2 : {true, false}) {
    const auto mount = mount_of(*mountinfo, version_2);
    const auto group = group_of(*cgroup, version_2);
    if (!mount || !group) continue;
    const auto quota = smallest_quota(read, *mount, *group, version_2);
    if (quota && (!smallest || *quota < *smallest)) smallest = quota;
  }
  if (!smallest) return std::nullopt;
  return static_cast<int64_t>(std::ceil(std::min(*smallest, 1e9)));
}

}  // namespace froghopper
