// SPDX-License-Identifier: Apache-2.0
// base: how many threads can run at once, as far as this process is allowed to.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace froghopper {

// FROGHOPPER_THREADS where that is a number from 1 to 4096; else the processors in this process's affinity mask
// (taskset, cpusets), at most as many as its cgroups let it use and as OMP_NUM_THREADS says. At least 1. Asked when
// first called, and again in a child process.
int64_t cores();

// The content of a file by its path; nothing where there is no such file.
using ReadFile = std::function<std::optional<std::string>(const std::string& path)>;

// The processors' time that the cgroups of this process may use, rounded up; nothing where there is no limit. Reads
// /proc/self/cgroup and /proc/self/mountinfo, then cpu.max (version 2) or cpu.cfs_quota_us (version 1) of the
// process's group and of those above it: the smallest holds.
std::optional<int64_t> cgroup_cores(const ReadFile&);

}  // namespace froghopper
