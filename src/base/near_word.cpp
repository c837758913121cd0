// SPDX-License-Identifier: Apache-2.0
// base: the distance of two words is counted as in Damerau's and Levenshtein's papers, by rows of a table of which
// three are kept.
#include "src/base/near_word.hpp"

#include <algorithm>
#include <cctype>
#include <vector>

namespace froghopper {
namespace {

bool same(char a, char b) {
  return std::tolower(static_cast<unsigned char>(a)) == std::tolower(static_cast<unsigned char>(b));
}

size_t changes(std::string_view from, std::string_view to) {
  std::vector<size_t> before(to.size() + 1), above(to.size() + 1), row(to.size() + 1);
  for (size_t j = 0; j <= to.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= from.size(); ++i) {
    before.swap(above), above.swap(row);
    row[0] = i;
    for (size_t j = 1; j <= to.size(); ++j) {
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + !same(from[i - 1], to[j - 1])});
      const bool exchanged = i > 1 && j > 1 && same(from[i - 1], to[j - 2]) && same(from[i - 2], to[j - 1]);
      if (exchanged) row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row[to.size()];
}

}  // namespace

std::string_view near_word(std::string_view word, std::span<const std::string_view> known) {
  constexpr size_t short_word = 2, long_word = 6;
  std::string_view near;
  if (word.size() <= short_word) return near;
  size_t fewest = word.size() >= long_word ? 3 : 2;
  for (const std::string_view candidate : known) {
    // Each byte that one has more is a change, and a word may have a million.
    if (std::max(word.size(), candidate.size()) - std::min(word.size(), candidate.size()) >= fewest) continue;
    if (const size_t count = changes(word, candidate); count < fewest) fewest = count, near = candidate;
  }
  return near;
}

}  // namespace froghopper
