// SPDX-License-Identifier: Apache-2.0
// cp: what the schemes share when they write their steps: workspace, shards, and calls on pieces.
#pragma once
#include <cstdint>
#include <vector>

#include "src/cp/documents.hpp"
#include "src/cp/piece.hpp"
#include "src/cp/steps.hpp"

namespace froghopper::cp {

constexpr uint32_t minus_infinity = 0xff800000;  // as f32

// A buffer of k or v rows of one owner, or of several: parts in order, [batch, rows, heads, dim].
struct Block {
  std::vector<Range> ranges;
  std::vector<Part> parts;
  int64_t rows = 0;
  explicit Block(const std::vector<Range>& those = {}) : ranges(those) {
    for (const Range& range : ranges) parts.push_back({range, rows}), rows += range.rows();
  }
};

struct KeyPlaces {
  Place k, v;
  int64_t rows = 0;      // of the buffer
  bool rounded = false;  // gradients that one call writes in the type of q; else f32 ones, which it adds to
};

class Builder {
 public:
  // division: the shard's rows in more ranges, each of which gets its own calls; empty: as the shard has them.
  Builder(const Job& job, int64_t rank, const std::vector<Range>& division = {});

  const Job& job;
  const fh_problem& whole;
  const int64_t rank, batch, heads_q, heads_kv, dim_qk, dim_v, element, kv_element;
  const std::vector<Range> shard, division;
  const int64_t rows;  // of the shard
  // Its rows in parts, each with its own lse: the ranges of the division, each of which has calls of its own; or with
  // documents, whose borders need not be theirs, all rows.
  std::vector<Range> parts;
  Steps made;

  int64_t peer(int64_t step) const { return (rank + step + job.ranks) % job.ranks; }  // so many ranks further
  Place workspace(int64_t bytes);
  void add(Step step) { made.steps.push_back(std::move(step)); }
  void exchange(Exchange group);
  size_t problem(const fh_problem& p);

  // Bytes of a row of k and v; element_bytes an element.
  int64_t k_row(int64_t element_bytes) const { return heads_kv * dim_qk * element_bytes; }
  int64_t v_row(int64_t element_bytes) const { return heads_kv * dim_v * element_bytes; }
  KeyPlaces keys(int64_t rows, int64_t element_bytes);  // workspace for k and v rows of all sequences
  KeyPlaces own_keys() const { return {{Buffer::k, 0}, {Buffer::v, 0}, rows}; }
  void clear(const KeyPlaces& keys);  // f32

  // Rows `range` of a [batch, rows of `ranges`, row_bytes] buffer, for each sequence a transfer.
  void move(std::vector<Transfer>& to, int64_t peer, Place buffer, const std::vector<Range>& ranges, Range range,
            int64_t row_bytes, Buffer only_with = Buffer::none) const;

  // The same of `rows` rows from row `first` on, of a buffer that has `all`.
  void move_rows(std::vector<Transfer>& to, int64_t peer, Place buffer, int64_t all, int64_t first, int64_t rows,
                 int64_t row_bytes, Buffer only_with = Buffer::none) const;

  // The same of k and v together: rows `ranges`, which lie among those of `all`, here, and among those of `there` in
  // the peer's buffer. What follows each other in both is one transfer.
  void move_keys(std::vector<Transfer>& to, int64_t peer, const KeyPlaces& keys, const std::vector<Range>& all,
                 const std::vector<Range>& there, const std::vector<Range>& ranges, int64_t element_bytes) const;

  // Rows `range` of one buffer to another.
  void copy_rows(Place to, const std::vector<Range>& to_ranges, Place from, const std::vector<Range>& from_ranges,
                 Range range, int64_t row_bytes);
  // Rows of one buffer to another, or added to it: all rows of both that are the same.
  void copy_keys(const KeyPlaces& to, const std::vector<Range>& to_ranges, const KeyPlaces& from,
                 const std::vector<Range>& from_ranges);
  void add_rows(const KeyPlaces& to, const std::vector<Range>& to_ranges, const KeyPlaces& from,
                const std::vector<Range>& from_ranges);  // f32

  // The places of o, lse and gradients while calls merge into them, and what is done before and after. first_merged:
  // calls merge in this part and those after it; forward only where it is not 0.
  void begin(bool merges, size_t first_merged = 0);
  // The calls of all rows on the keys of a block. grads: where the gradients of these go.
  void attend(const Block& block, const KeyPlaces& from, const KeyPlaces& grads);
  // The calls of the parts from `first` to before `last`.
  void attend_parts(size_t first, size_t last, const Block& block, const KeyPlaces& from,
                    const KeyPlaces& grads = {});
  // The calls of one part on own keys. A backward pass holds some of these back until gradients travel.
  void attend_own_part(size_t part, const KeyPlaces& grads = {}) {
    attend_parts(part, part + 1, Block(shard), own_keys(), grads);
  }
  // cu_seqlens of a run with several sequences, into made.tables.
  void add_tables(const Run& run, Attend& to);
  void end();
  // lse, [batch, heads, rows] from head `first` on, before the first call that merges into it: the sink, or no key.
  void begin_lse(Place lse, int64_t first, int64_t heads, int64_t rows);

  Place target(Buffer to, int64_t count);  // the caller's own memory where that is f32, else workspace
  void convert(Buffer to, Place from, int64_t count);
  // Where dK and dV of the shard are added up, f32: of its rows `its`, rounded to the caller's at the end. Those of
  // other rows one call writes there, which takes phases, and a shard of which each key is in one call.
  KeyPlaces home(Range its);
  void convert_home(const KeyPlaces& home, Range its);
  KeyPlaces home() { return home({0, rows}); }
  void convert_home(const KeyPlaces& home) { convert_home(home, {0, rows}); }
  bool may_write_home() const { return in_phases_ && division.size() == 1; }
  void convert_o();

  bool merges = false;
  Place grad_q;  // f32, with merges

 private:
  void attend(const Piece& piece, const Block& block, const KeyPlaces& from, const KeyPlaces& grads);
  void attend(const Run& run, const Block& block, const KeyPlaces& from, const KeyPlaces& grads);
  // Sets what p merges, and returns the call but for its lse and the number of p.
  Attend call(fh_problem& p, const Piece& first, bool with_sink, const Block& block, const KeyPlaces& from,
              const KeyPlaces& grads);
  void set_phases(size_t part);
  bool merges_in(size_t part) const { return merges && part >= first_merged_; }
  Place dense_grad_lse(Range its_rows);
  Place table(const std::vector<int32_t>& ends);

  size_t first_merged_ = 0;
  Place o_;  // f32, with merges: of the rows from o_first_ on
  int64_t o_first_ = 0;
  std::vector<Place> lse_, grad_lse_;  // of each part
  // The calls of a part are the phases of one (fh_phase), so that it is cleared and rounded once: where all its calls
  // have the same rows, which those of documents need not have, and results are rounded.
  bool in_phases_ = false;
  struct Call {
    size_t step;  // in made.steps
    fh_problem problem;
  };
  std::vector<std::vector<Call>> calls_;  // of each part, with phases
  std::vector<Place> grad_sinks_;         // likewise, where there is a sink
  std::vector<char> sink_counted_;
  std::vector<std::pair<Range, Place>> dense_;  // of grad_lse, what runs have used
};

// The place of a row of the whole sequence in a buffer of such ranges.
int64_t row_in(const std::vector<Range>& ranges, int64_t row);

}  // namespace froghopper::cp
