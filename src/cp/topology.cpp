// SPDX-License-Identifier: Apache-2.0
// cp: figures of the machine that its user has measured, from a struct or from lines of text.
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <fstream>
#include <sstream>

#include "src/base/environment.hpp"
#include "src/base/text.hpp"
#include "src/cp/time.hpp"

namespace froghopper::cp {
namespace {

constexpr const char* variable = "FROGHOPPER_CP_TOPOLOGY";

struct Field {
  const char* name;
  double fh_cp_topology::*number;
  double least;  // that it is where it is not 0
};
constexpr Field fields[] = {{"latency", &fh_cp_topology::latency, 0},
                            {"bandwidth", &fh_cp_topology::bandwidth, 0},
                            {"gather_bandwidth", &fh_cp_topology::gather_bandwidth, 0},
                            {"slowdown", &fh_cp_topology::slowdown, 1},
                            {"copy_latency", &fh_cp_topology::copy_latency, 0},
                            {"copy_bandwidth", &fh_cp_topology::copy_bandwidth, 0},
                            {"copy_gather_bandwidth", &fh_cp_topology::copy_gather_bandwidth, 0},
                            {"copy_slowdown", &fh_cp_topology::copy_slowdown, 1},
                            {"far_latency", &fh_cp_topology::far_latency, 0},
                            {"far_bandwidth", &fh_cp_topology::far_bandwidth, 0},
                            {"memory", &fh_cp_topology::memory, 0},
                            {"call", &fh_cp_topology::call, 0},
                            {"forward_flops", &fh_cp_topology::forward_flops, 0},
                            {"backward_flops", &fh_cp_topology::backward_flops, 0}};

Result<void> check(const fh_cp_topology& t) {
  for (const Field& field : fields) {
    const double x = t.*field.number;
    if (x != 0 && !(std::isfinite(x) && x > 0 && x >= field.least))
      return Failure{FH_INVALID_PROBLEM,
                     text("topology.{} is {}, but must be 0 or a finite number{}. Set it to 0 if it is not known.",
                          field.name, x, field.least > 0 ? " from 1 on" : " above 0")};
  }
  return {};
}

}  // namespace

Result<fh_cp_topology> parsed_topology(const std::string& lines) {
  fh_cp_topology t = fh_cp_topology_init();
  std::istringstream all(lines);
  std::string line;
  for (int number = 1; std::getline(all, line); ++number) {
    std::istringstream words(line.substr(0, line.find('#')));
    std::string name, value, more;
    if (!(words >> name)) continue;
    const Field* field = nullptr;
    for (const Field& one : fields)
      if (name == one.name) field = &one;
    if (field == nullptr)
      return Failure{FH_INVALID_PROBLEM,
                     text("line {} of the topology begins with \"{}\", but must begin with a field "
                          "of fh_cp_topology. Measure again with this version.",
                          number, name)};
    words >> value;
    double& x = t.*field->number;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), x);
    if (error != std::errc() || end != value.data() + value.size() || words >> more)
      return Failure{FH_INVALID_PROBLEM,
                     text("line {} of the topology is \"{}\", but must be a name and a number, as "
                          "in \"bandwidth 3.8e+11\". Measure again.",
                          number, line)};
  }
  if (Result<void> checked = check(t); !checked) return checked.failure();
  return t;
}

Result<void> take_topology(const fh_cp_problem& problem, Job& job) {
  if (problem.topology != nullptr) {
    std::memcpy(&job.topology, problem.topology, std::min(problem.topology->size, sizeof job.topology));
    job.topology_from = "the caller's topology";
    return check(job.topology);
  }
  const std::string path = environment(variable);
  if (path.empty()) return {};
  std::ostringstream lines;
  if (std::ifstream file(path); !(file && lines << file.rdbuf()))
    return Failure{FH_INVALID_PROBLEM,
                   text("{} names {}, which cannot be read or is empty. Name a file that probe has "
                        "written, or unset it.",
                        variable, path)};
  Result<fh_cp_topology> read = parsed_topology(lines.str());
  if (!read) return Failure{FH_INVALID_PROBLEM, text("{}: {}", path, read.failure().text)};
  job.topology = *read;
  job.topology_from = path;
  return {};
}

std::string topology_line(const Job& job, bool on_gpu) {
  if (job.topology_from.empty()) return {};
  const Rates r = rates_of(job, on_gpu);
  return text(
      "  times by {}: {:.1f} us and {:.3g} bytes/s within a host, {:.1f} us and {:.3g} bytes/s between hosts, "
      "a call that overlaps with them {:.2f} times as long\n",
      job.topology_from, r.latency * 1e6, r.bandwidth, r.far_latency * 1e6, r.far_bandwidth, r.slowdown);
}

}  // namespace froghopper::cp
