// SPDX-License-Identifier: Apache-2.0
// cli: results as lines of JSON, appended to a file or on stdout: what `check` and `bench` measured, on which machine
// and when.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace froghopper::cli {

// The path of --json that is no file but stdout. Only lines of JSON are printed there then, no table.
inline bool is_stdout(const std::string& path) { return path == "-"; }

// The file of --json can be appended to. "" asks for no file.
bool can_append(const std::string& path);
bool append_line(const std::string& path, const nlohmann::ordered_json& record);  // false: writing failed

std::string now(const char* form);  // in UTC, as strftime prints it
inline constexpr const char* date_and_time = "%Y-%m-%dT%H:%M:%SZ";
std::string cpu_name();                                     // "Intel(R) Xeon(R) Processor, 2 threads"
std::string without_problem(const std::string& plan_line);  // what follows "PROBLEM -> "

}  // namespace froghopper::cli
