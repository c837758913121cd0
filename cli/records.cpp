// SPDX-License-Identifier: Apache-2.0
// cli: lines of JSON, and the words they share.
#include "cli/records.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>

#include "src/base/cores.hpp"
#include "src/base/new_file.hpp"
#include "src/base/text.hpp"

namespace froghopper::cli {

namespace {

// Without waiting: opening a pipe that nobody reads would wait forever. -1: it cannot be opened.
int open_to_append(const std::string& path) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0666);
  if (file >= 0) fcntl(file, F_SETFL, O_APPEND);  // a full pipe is waited for
  return file;
}

}  // namespace

bool can_append(const std::string& path) {
  if (path.empty() || is_stdout(path)) return true;
  const int file = open_to_append(path);
  return file >= 0 && close(file) == 0;
}

bool append_line(const std::string& path, const nlohmann::ordered_json& record) {
  if (is_stdout(path)) return std::printf("%s\n", record.dump().c_str()) > 0;
  const int file = open_to_append(path);
  if (file < 0) return false;
  const bool written = write_all(file, record.dump() + "\n");
  return close(file) == 0 && written;
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
