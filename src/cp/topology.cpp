// SPDX-License-Identifier: Apache-2.0
// cp: figures of the machine that its user has measured, from a struct or from lines of text.
#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <fstream>
#include <iterator>
#include <sstream>

#include "src/base/environment.hpp"
#include "src/base/near_word.hpp"
#include "src/base/sized.hpp"
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

const Field* field_of(const std::string& name) {
  const auto* const found = std::ranges::find(fields, name, &Field::name);
  return found == std::end(fields) ? nullptr : found;
}

// Of a line whose first word names no field: "bandwith", "bandwidth=3e11", "BANDWIDTH".
std::string meant_field(std::string name) {
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  name.resize(std::min(name.find_first_not_of("abcdefghijklmnopqrstuvwxyz_"), name.size()));
  std::array<std::string_view, std::size(fields)> known;
  std::ranges::transform(fields, known.begin(), &Field::name);
  const std::string near = field_of(name) != nullptr ? name : std::string(near_word(name, known));
  if (near.empty()) return "Measure again with this version.";
  return text("Did you mean {0}? Write {0}, a blank and the number.", near);
}

}  // namespace

Result<fh_cp_topology> whole_topology(const fh_cp_topology& given) {
  return whole_struct(&given, fh_cp_topology_init(), offsetof(fh_cp_topology, backward_flops) + sizeof(double),
                      FH_INVALID_PROBLEM, "fh_cp_topology");
}

Result<fh_cp_topology> parsed_topology(const std::string& lines) {
  fh_cp_topology t = fh_cp_topology_init();
  std::istringstream all(lines);
  std::array<int, std::size(fields)> line_of{};  // 0: none has had the field yet
  std::string line;
  for (int number = 1; std::getline(all, line); ++number) {
    std::istringstream words(line.substr(0, line.find('#')));
    std::string name, value, more;
    if (!(words >> name)) continue;
    const Field* const field = field_of(name);
    if (field == nullptr)
      return Failure{FH_INVALID_PROBLEM,
                     text("line {} of the topology begins with \"{}\", but must begin with a field "
                          "of fh_cp_topology. {}",
                          number, name, meant_field(name))};
    int& before = line_of[static_cast<size_t>(field - fields)];
    if (before != 0)
      return Failure{FH_INVALID_PROBLEM,
                     text("line {} of the topology is of {}, which line {} has already. Leave one "
                          "of them.",
                          number, name, before)};
    before = number;
    words >> value;
    double& x = t.*field->number;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), x);
    if (error != std::errc() || end != value.data() + value.size() || words >> more)
      return Failure{FH_INVALID_PROBLEM,
                     text("line {} of the topology is \"{}\", but must be a name and a number, as in \"bandwidth "
                          "3.8e+11\". Write seconds, bytes a second or FLOP a second, without the unit.",
                          number, line)};
  }
  if (Result<void> checked = check(t); !checked) return checked.failure();
  return t;
}

Result<void> take_topology(const fh_cp_problem& problem, Job& job) {
  if (problem.topology != nullptr) {
    const Result<fh_cp_topology> given = whole_topology(*problem.topology);
    if (!given) return given.failure();
    job.topology = *given;
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

std::vector<std::pair<const char*, double>> figures_of(const fh_cp_topology& topology) {
  std::vector<std::pair<const char*, double>> all;
  for (const Field& field : fields) all.emplace_back(field.name, topology.*field.number);
  return all;
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
