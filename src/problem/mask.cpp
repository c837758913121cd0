// SPDX-License-Identifier: Apache-2.0
// problem: the mask rule of contract/mask.h for problems, whose windows may be as wide as 64 bits allow.
#include "src/problem/mask.hpp"

#include <algorithm>

namespace froghopper {
namespace {

int64_t bound(int64_t keys) { return keys == all_keys ? no_bound<int64_t> : std::min(keys, no_bound<int64_t>); }

}  // namespace

// Rows and keys stay below 2^53 (Problem::from, reach), so no sum with a bound of 2^62 overflows.
MaskRule<Mask::window, int64_t> mask_rule(const Problem& problem, int64_t rows_q, int64_t rows_kv) {
  return {.keys = rows_kv,
          .diagonal = problem.diagonal(rows_q, rows_kv),
          .left = bound(problem.window_left),
          .right = bound(problem.window_right)};
}

namespace {

// What `ask` says of the rule, chunks included.
template <class Ask>
auto by_rule(const Problem& problem, int64_t rows_q, int64_t rows_kv, const Ask& ask) {
  const auto rule = mask_rule(problem, rows_q, rows_kv);
  if (problem.attention_chunk == 0) return ask(rule);
  return ask(MaskRule<Mask::chunk, int64_t>{rule.keys, rule.diagonal, rule.left, rule.right,
                                            bound(problem.attention_chunk)});
}

}  // namespace

TileSequence<int64_t> tiles_attended(const Problem& problem, int64_t rows_q, int64_t rows_kv, int64_t first,
                                     int64_t last, int64_t tile_kv) {
  return by_rule(problem, rows_q, rows_kv, [&](const auto& rule) { return rule.tiles(first, last, tile_kv); });
}

Range<int64_t> q_tiles_that_attend(const Problem& problem, int64_t rows_q, int64_t rows_kv, int64_t first,
                                   int64_t last, int64_t tile_q) {
  return by_rule(problem, rows_q, rows_kv,
                 [&](const auto& rule) { return rule.q_tiles(first, last, rows_q, tile_q); });
}

Visible visible_keys(const Problem& problem, int64_t rows_q, int64_t rows_kv, int64_t row) {
  return by_rule(problem, rows_q, rows_kv, [&](const auto& rule) -> Visible {
    return {std::min(rule.begin(row), rows_kv), std::max<int64_t>(rule.end(row), 0)};
  });
}

}  // namespace froghopper
