// SPDX-License-Identifier: Apache-2.0
// problem: where each sequence begins, how many rows it has and how many of them count. Reads cu_seqlens and seqused,
// so it is for host memory; on a GPU the kernel reads them itself.
#include "src/base/ceil_div.hpp"
#include "src/base/counted.hpp"
#include "src/base/text.hpp"
#include "src/problem/tensors.hpp"

namespace froghopper {
namespace {

// What differs between the side of the queries and the side of the keys.
struct Side {
  const char* name;  // "q", "kv"
  int64_t seq, total;
  const int32_t *cu_seqlens, *seqused;
  bool gaps = false;  // cu_seqlens says where sequences begin, and only seqused how long they are
};

Side queries(const Problem& p, const Views& v) {
  return {"q", p.seq_q, p.total_q, v.cu_seqlens_q.as<int32_t>(), v.seqused_q.as<int32_t>()};
}
Side keys(const Problem& p, const Views& v) {
  const auto *const ends = v.cu_seqlens_kv.as<int32_t>(), *const used = v.seqused_kv.as<int32_t>();
  // Gradients of rows between sequences would have to be cleared.
  return {"kv", p.seq_kv, p.total_kv, ends, used, p.op == FH_FORWARD && ends && used};
}

// Of columns that hold rows which count. Others hold anything.
std::string wrong_pages(const Problem& p, const Views& views) {
  const View& table = views.block_table;
  for (int64_t b = 0; p.paged() && b < p.batch; ++b) {
    const int64_t columns = ceil_div(rows_kv(p, views, b).used, p.page_size);
    for (int64_t column = 0; column < columns; ++column) {
      const int64_t page = table.as<int32_t>()[table.at(b, column, 0)];
      std::string wrong = wrong_page(p, b, column, page);
      if (wrong.empty()) continue;
      // Who forgets the lengths has columns that nobody filled.
      if (const size_t way_out = wrong.rfind("Use "); way_out != wrong.npos && !views.seqused_kv.data)
        wrong.insert(way_out, text("Without seqused_kv all {} of a sequence count. ", counted(p.seq_kv, "row")));
      return wrong;
    }
  }
  return {};
}

Rows rows_of(const Side& side, int64_t b) {
  Rows rows{b, 0, side.seq, 0};
  if (side.cu_seqlens) rows = {0, side.cu_seqlens[b], int64_t{side.cu_seqlens[b + 1]} - side.cu_seqlens[b], 0};
  rows.used = side.seqused ? side.seqused[b] : rows.extent;
  return rows;
}

// The sequence of which there are most, so that a bound is raised once.
int64_t where_most(const Side& side, int64_t batch, int64_t Rows::*count) {
  int64_t found = 0;
  for (int64_t b = 1; b < batch; ++b)
    if (rows_of(side, b).*count > rows_of(side, found).*count) found = b;
  return found;
}

// Small numbers of 64 bits, read as 32.
bool has_64_bits(const Side& side, int64_t batch) {
  for (int64_t b = 1; b <= batch; b += 2)
    if (side.cu_seqlens[b] != 0) return false;
  return true;
}

std::string wrong_lengths(const Side& side, int64_t batch) {
  const char* const name = side.name;
  // Then all sequences are alike and right. There may be any number of them where they have no rows.
  if (!side.cu_seqlens && !side.seqused) return {};
  if (side.gaps && side.cu_seqlens[0] < 0)
    return text("cu_seqlens_{}[0] is {}; no sequence begins before row 0. Set it to 0 or more.", name,
                side.cu_seqlens[0]);
  if (side.cu_seqlens && !side.gaps && side.cu_seqlens[0] != 0)
    return text(
        "cu_seqlens_{}[0] is {}; the first sequence begins at row 0. Set it to 0. If these are lengths, give their "
        "sums behind a 0.",
        name, side.cu_seqlens[0]);
  // Before the rules about totals: one entry that is too large makes the list fall behind it.
  for (int64_t b = 0; b < batch; ++b)
    if (const Rows rows = rows_of(side, b); rows.extent < 0)
      return text(
          "cu_seqlens_{} falls from {} to {} at entry {}; sequences lie end to end. Let it rise.{}", name, rows.first,
          rows.first + rows.extent, b + 1,
          has_64_bits(side, batch) ? " Every other one is 0; if they have 64 bits, convert them to int32." : "");
  for (int64_t b = 0; b < batch; ++b) {
    const Rows rows = rows_of(side, b);
    if (side.cu_seqlens && rows.extent > 0 && side.total == 0) {
      const Rows last = rows_of(side, batch - 1);
      return text(
          "cu_seqlens_{0}[{1}] is {2} and total_{0} is 0; it counts the rows of all sequences. Set total_{0} "
          "to {3}.",
          name, b + 1, rows.first + rows.extent, last.first + last.extent);
    }
    if (side.cu_seqlens && rows.first + rows.extent > side.total)
      return text(
          "cu_seqlens_{}[{}] is {} and total_{} is {}; no sequence reaches past the total. Give all rows, or end "
          "earlier.",
          name, b + 1, rows.first + rows.extent, name, side.total);
    if (rows.extent > side.seq && !side.gaps) {
      const int64_t longest = where_most(side, batch, &Rows::extent), most = rows_of(side, longest).extent;
      return text(
          "sequence {0} has {1} and seq_{2} is {3}; seq_{2} is an upper bound on all of them. Set seq_{2} to {4}.",
          longest, counted(most, "row"), name, side.seq, most);
    }
    if (rows.used > 0 && side.seq == 0 && !side.cu_seqlens)
      return text(
          "seqused_{0}[{1}] is {2} and seq_{0} is 0, so no sequence has rows. Set seq_{0} to the most that one may "
          "have, or use 0.",
          name, b, rows.used);
    if (rows.used < 0 || rows.used > rows.extent)
      return text("seqused_{}[{}] is {} and the sequence has {}; at most all of them count. Use {}{}.", name, b,
                  rows.used, counted(rows.extent, "row"), from_0_to(rows.extent),
                  rows.used < 0 || side.cu_seqlens ? "" : ", or a sequence of more rows");
    if (rows.used > side.seq) {
      const int64_t longest = where_most(side, batch, &Rows::used), most = rows_of(side, longest).used;
      return text(
          "seqused_{0}[{1}] is {2} and seq_{0} is {3}; seq_{0} is an upper bound on all of them. Set seq_{0} to {2}.",
          name, longest, most, side.seq);
    }
  }
  return {};
}

}  // namespace

Rows rows_q(const Problem& p, const Views& views, int64_t sequence) { return rows_of(queries(p, views), sequence); }
Rows rows_kv(const Problem& p, const Views& views, int64_t sequence) { return rows_of(keys(p, views), sequence); }

KvRows k_rows(const Views& views, const Rows& rows, int64_t sequence) {
  return {views.k, rows, views.block_table, sequence};
}
KvRows v_rows(const Views& views, const Rows& rows, int64_t sequence) {
  return {views.v, rows, views.block_table, sequence};
}

Result<void> check_lengths(const Problem& p, const Views& views) {
  if (p.appends()) {  // seqused_kv are rows that are there already
    std::string wrong = wrong_lengths(queries(p, views), p.batch);
    if (!wrong.empty()) return Failure{FH_INVALID_TENSOR, std::move(wrong)};
    return check_places(p, views);
  }
  for (const Side& side : {queries(p, views), keys(p, views)}) {
    std::string wrong = wrong_lengths(side, p.batch);
    if (!wrong.empty()) return Failure{FH_INVALID_TENSOR, std::move(wrong)};
  }
  std::string wrong = wrong_pages(p, views);
  if (!wrong.empty()) return Failure{FH_INVALID_TENSOR, std::move(wrong)};
  return {};
}

std::string wrong_page(const Problem& p, int64_t sequence, int64_t column, int64_t page) {
  if (page >= 0 && page < p.pages) return {};
  if (p.pages == 0)
    return text("block_table[{}][{}] is {} and pages is 0, so the pool has no page. Give a pool with pages.",
                sequence, column, page);
  return text("block_table[{}][{}] must name a page of the pool, of which pages are {}, but is {}. Use {}.", sequence,
              column, p.pages, page, from_0_to(p.pages - 1));
}

}  // namespace froghopper
