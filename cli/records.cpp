// SPDX-License-Identifier: Apache-2.0
// cli: lines of JSON, and the words they share.
#include "cli/records.hpp"

#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>

#include "src/base/cores.hpp"
#include "src/base/text.hpp"

namespace froghopper::cli {

bool can_append(const std::string& path) { return path.empty() || std::ofstream(path, std::ios::app); }

bool append_line(const std::string& path, const nlohmann::ordered_json& record) {
  std::ofstream file(path, std::ios::app);
  file << record.dump() + "\n";
  return static_cast<bool>(file.flush());
}

std::string now(const char* form) {
  const std::time_t seconds = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  char spelled[40];
  return {spelled, std::strftime(spelled, sizeof spelled, form, &utc)};
}

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  std::string name = "CPU", line;
  while (std::getline(file, line)) {
    if (line.rfind("model name", 0) != 0 || line.find(": ") == std::string::npos) continue;
    name = line.substr(line.find(": ") + 2);
    break;
  }
  return text("{}, {} threads", name, cores());
}

std::string without_problem(const std::string& plan_line) {
  const size_t arrow = plan_line.find(" -> ");
  return arrow == std::string::npos ? plan_line : plan_line.substr(arrow + 4);
}

}  // namespace froghopper::cli
