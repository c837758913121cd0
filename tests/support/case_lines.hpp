// SPDX-License-Identifier: Apache-2.0
// tests: the lines of tests/cases.
#pragma once
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <ostream>
#include <string>
#include <vector>

#include "check/check.hpp"

namespace froghopper::test {

struct Line {
  std::string name;  // "masks_12"
  std::string text;

  // Else GoogleTest prints the bytes of each line whenever a program begins, which is once for each of its tests.
  friend void PrintTo(const Line& line, std::ostream* out) { *out << line.text; }
};

// Attention has gradients, unless its types have 8 bits, it merges, is invariant or wants the largest score.
inline bool has_gradients(const std::string& line) {
  const auto parsed = check::parse_case(line);
  if (!parsed) return true;
  const Problem& p = parsed->problem;
  if (p.op != FH_FORWARD && p.op != FH_BACKWARD) return false;
  return !(is_8_bit(p.dtype_kv) || p.merges_lse() || p.invariant || p.max_logit);
}

// The lines that are cases; backward: of all types with gradients, since a case of the forward pass is one of its
// gradients too. One that is malformed fails in its own test, by name.
inline std::vector<Line> case_lines(bool backward) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(FROGHOPPER_SOURCE_DIR "/tests/cases")) {
    if (entry.path().extension() == ".txt") paths.push_back(entry.path());
  }
  std::ranges::sort(paths);
  std::vector<Line> lines;
  for (const auto& path : paths) {
    std::ifstream file(path);
    std::string text;
    for (int number = 1; std::getline(file, text); ++number) {
      if (text.empty() || text[0] == '#' || (backward ? !has_gradients(text) : text.starts_with("bwd "))) continue;
      lines.push_back({path.stem().string() + "_" + std::to_string(number), text});
    }
  }
  return lines;
}

inline std::string describe(const check::Case& c, const check::Outcome& out) {
  return c.line() + "\n  plan " + out.plan + "\n  " + out.why + "\n  repeat: froghopper check '" + c.line() +
         "' --verbose --backend " + out.backend;
}

}  // namespace froghopper::test
