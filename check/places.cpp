// SPDX-License-Identifier: Apache-2.0
// check: the lengths of sequences, the pages, slots and positions of their rows.
#include "check/places.hpp"

#include <algorithm>
#include <numeric>

#include "check/data.hpp"
#include "src/base/ceil_div.hpp"
#include "src/base/text.hpp"

namespace froghopper::check {

namespace {

void put(const View& list, const std::vector<int64_t>& numbers) {
  for (size_t i = 0; i < numbers.size(); ++i) list.as<int32_t>()[i] = static_cast<int32_t>(numbers[i]);
}

// [0, lens[0], lens[0] + lens[1], ...]
void put_ends(const View& list, const std::vector<int64_t>& lens) {
  std::vector<int64_t> ends{0};
  for (const int64_t rows : lens) ends.push_back(ends.back() + rows);
  put(list, ends);
}

// Lengths where the case gives none: up to the longest allowed, each fifth empty, some rows of the tensor left over at
// the end.
std::vector<int64_t> draw_lengths(uint64_t stream, int64_t batch, int64_t longest, int64_t total) {
  std::vector<int64_t> lens;
  for (int64_t b = 0; b < batch; ++b) {
    const uint64_t bits = random_bits(stream, static_cast<uint64_t>(b));
    const int64_t most = std::min(longest, total);
    lens.push_back(bits % 5 == 4 ? 0
                                 : most - static_cast<int64_t>((bits >> 8) % static_cast<uint64_t>(most / 2 + 1)));
    total -= lens.back();
  }
  return lens;
}

// A number of rows, of all that a sequence has.
int64_t draw_rows(uint64_t stream, int64_t sequence, int64_t rows) {
  return static_cast<int64_t>(random_bits(stream, static_cast<uint64_t>(sequence)) % static_cast<uint64_t>(rows + 1));
}

// For each sequence a pseudo-random number of its rows.
std::vector<int64_t> draw_used(uint64_t stream, const Problem& p, const View& cu, int64_t extent) {
  std::vector<int64_t> used;
  const auto* const ends = cu.as<int32_t>();
  for (int64_t b = 0; b < p.batch; ++b)
    used.push_back(draw_rows(stream, b, ends ? int64_t{ends[b + 1]} - ends[b] : extent));
  return used;
}

// 0, 1, 2, ... in another order.
std::vector<int64_t> shuffled(uint64_t stream, int64_t count) {
  std::vector<int64_t> numbers(static_cast<size_t>(count));
  std::iota(numbers.begin(), numbers.end(), 0);
  for (size_t i = numbers.size(); i > 1; --i) std::swap(numbers[i - 1], numbers[random_bits(stream, i) % i]);
  return numbers;
}

// Rows that a sequence has in the cache: those that come included.
int64_t rows_in_cache(const Problem& p, const Views& views, int64_t b) {
  if (!p.appends()) return rows_kv(p, views, b).used;
  const int64_t before = views.seqused_kv.data ? views.seqused_kv.as<int32_t>()[b] : 0;
  return before + rows_q(p, views, b).used;
}

}  // namespace

void put_cu_seqlens_q(const Case& c, const Views& v, uint64_t stream) {
  const Problem& p = c.problem;
  put_ends(v.cu_seqlens_q, c.lens_q.empty() ? draw_lengths(stream, p.batch, p.seq_q, p.total_q) : c.lens_q);
}

void put_cu_seqlens_kv(const Case& c, const Views& v, uint64_t stream) {
  const Problem& p = c.problem;
  put_ends(v.cu_seqlens_kv, c.lens_kv.empty() ? draw_lengths(stream, p.batch, p.seq_kv, p.total_kv) : c.lens_kv);
}

void put_seqused_q(const Case& c, const Views& v, uint64_t stream) {
  put(v.seqused_q, c.used_q.empty() ? draw_used(stream, c.problem, v.cu_seqlens_q, c.problem.seq_q) : c.used_q);
}

void put_seqused_kv(const Case& c, const Views& v, uint64_t stream) {
  const Problem& p = c.problem;
  std::vector<int64_t> used = c.used_kv;
  if (used.empty() && !p.appends()) used = draw_used(stream, p, v.cu_seqlens_kv, p.seq_kv);
  for (int64_t b = 0; c.used_kv.empty() && p.appends() && b < p.batch; ++b)
    used.push_back(draw_rows(stream, b, std::max<int64_t>(0, p.seq_kv - rows_q(p, v, b).used)));
  put(v.seqused_kv, used);
}

Result<void> pages_suffice(const Problem& p, const Views& views) {
  int64_t needed = 0;
  for (int64_t b = 0; p.paged() && b < views.block_table.batch; ++b)
    needed += ceil_div(std::clamp<int64_t>(rows_in_cache(p, views, b), 0, p.seq_kv), p.page_size);
  if (needed <= p.pages) return {};
  return Failure{FH_INVALID_PROBLEM,
                 text("pages must be at least {}, as the sequences of this case have so many with rows, but are {}. "
                      "Write pages{}.",
                      needed, p.pages, needed)};
}

void put_pages(const Case& c, const Views& views, uint64_t stream) {
  constexpr int32_t no_page = 2147480000;
  const Problem& p = c.problem;
  const View& table = views.block_table;
  std::vector<int64_t> free = shuffled(stream, p.pages);
  for (int64_t b = 0; b < table.batch; ++b)
    for (int64_t column = 0; column < table.seq; ++column) {
      const bool counts = column * p.page_size < rows_in_cache(p, views, b) && !free.empty();
      table.as<int32_t>()[table.at(b, column, 0)] = counts ? static_cast<int32_t>(free.back()) : no_page;
      if (counts) free.pop_back();
    }
}

void put_slots(const Case& c, const Views& views, uint64_t stream) {
  const Problem& p = c.problem;
  std::vector<int64_t> free = shuffled(stream, p.batches_kv() * p.extent_kv());
  for (int64_t row = 0; row < p.rows_q(); ++row) {
    const bool padding = row % 5 == 3 || free.empty();
    views.slot_mapping.as<int64_t>()[row] = padding ? -1 - row : free.back();
    if (!padding) free.pop_back();
  }
}

void put_positions(const Case& c, const Views& views, uint64_t stream) {
  for (int64_t row = 0; row < c.problem.rows_q(); ++row)
    views.positions.as<int64_t>()[row] = draw_rows(stream, row, c.problem.rotary_rows - 1);
}

}  // namespace froghopper::check
