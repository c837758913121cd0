// SPDX-License-Identifier: Apache-2.0
// tests: files of lines in the sources, and the names of all presets, as presets/ lists them. A build need not have the
// presets for that.
#pragma once
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

namespace froghopper::test {

// But comments and empty lines.
inline std::vector<std::string> lines_of(const std::string& path) {
  std::ifstream in(FROGHOPPER_SOURCE_DIR "/" + path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);)
    if (!line.empty() && line[0] != '#') lines.push_back(line);
  EXPECT_FALSE(lines.empty()) << path << " is not there";
  return lines;
}

// Those of one file of presets/.
inline std::set<std::string> presets_of(const std::string& file) {
  const auto lines = lines_of("presets/" + file);
  return {lines.begin(), lines.end()};
}

inline std::set<std::string> listed_presets() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(FROGHOPPER_SOURCE_DIR "/presets")) {
    const std::string file = entry.path().filename().string();
    if (file == "registers.txt") continue;
    for (const std::string& line : lines_of("presets/" + file)) names.insert(line.substr(0, line.find(' ')));
  }
  EXPECT_GT(names.size(), 10u);
  return names;
}

}  // namespace froghopper::test
