// SPDX-License-Identifier: Apache-2.0
// cp: lists of rows: joined, intersected, and found again in buffers.
#include "src/cp/ranges.hpp"

namespace froghopper::cp {

std::vector<Range> joined(const std::vector<Range>& ranges) {
  std::vector<Range> all;
  for (const Range& range : ranges)
    if (!all.empty() && range.begin <= all.back().end)
      all.back().end = std::max(all.back().end, range.end);
    else
      all.push_back(range);
  return all;
}

std::vector<Range> common(const std::vector<Range>& a, const std::vector<Range>& b) {
  std::vector<Range> all;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    if (const Range range = common(a[i], b[j]); !range.empty()) all.push_back(range);
    a[i].end < b[j].end ? ++i : ++j;
  }
  return all;
}

std::vector<Part> placed(const std::vector<Range>& all, const std::vector<Range>& ranges) {
  std::vector<Part> parts;
  int64_t before = 0;
  size_t i = 0;
  for (const Range& range : ranges) {
    while (all[i].end <= range.begin) before += all[i++].rows();
    parts.push_back({range, before + range.begin - all[i].begin});
  }
  return parts;
}

std::vector<Together> together(const std::vector<Part>& a, const std::vector<Part>& b) {
  std::vector<Together> all;
  for (size_t i = 0; i < a.size(); ++i) {
    const int64_t rows = a[i].keys.rows();
    const bool follows =
        !all.empty() && all.back().a + all.back().rows == a[i].at && all.back().b + all.back().rows == b[i].at;
    if (follows)
      all.back().rows += rows;
    else
      all.push_back({a[i].at, b[i].at, rows});
  }
  return all;
}

int64_t cut_at(int64_t row, int64_t rows) {
  constexpr int64_t tile = 128;
  return rows >= 8 * tile ? row / tile * tile : row;
}

std::vector<Range> divided(const std::vector<Range>& ranges, int64_t row) {
  std::vector<Range> parts;
  for (const Range& range : ranges)
    for (const Range& side :
         {Range{range.begin, std::min(row, range.end)}, Range{std::max(row, range.begin), range.end}})
      if (!side.empty()) parts.push_back(side);
  return parts;
}

Range second_half(const std::vector<Range>& shard) {
  const Range last = shard.back();
  return shard.size() > 1 ? last : Range{last.end - cut_at(last.rows() / 2, last.rows()), last.end};
}

std::span<const Range> meeting(const std::vector<Range>& ranges, Range hull) {
  const auto first = std::partition_point(ranges.begin(), ranges.end(), [&](Range r) { return r.end <= hull.begin; });
  const auto last = std::partition_point(first, ranges.end(), [&](Range r) { return r.begin < hull.end; });
  return {first, last};
}

}  // namespace froghopper::cp
