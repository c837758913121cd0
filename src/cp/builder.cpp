// SPDX-License-Identifier: Apache-2.0
// cp: the parts of a list of steps that all schemes have.
#include "src/cp/builder.hpp"

#include <cstring>

#include "src/cp/ranges.hpp"

namespace froghopper::cp {
namespace {

// Which key of the whole sequence lies in a row of a buffer.
int64_t key_in(const std::vector<Part>& parts, int64_t row) {
  for (const Part& part : parts)
    if (row >= part.at && row < part.at + part.keys.rows()) return part.keys.begin + row - part.at;
  return 0;
}

// Which row of the whole sequence is that row of a shard.
int64_t row_at(const std::vector<Range>& shard, int64_t row) {
  for (const Range& range : shard) {
    if (row < range.rows()) return range.begin + row;
    row -= range.rows();
  }
  return row;
}

}  // namespace

Builder::Builder(const Job& j, int64_t r, const std::vector<Range>& ranges)
    : job(j),
      whole(j.whole),
      rank(r),
      batch(j.whole.batch),
      heads_q(j.whole.heads_q),
      heads_kv(j.whole.heads_kv),
      dim_qk(j.whole.dim_qk),
      dim_v(j.whole.dim_v),
      element(j.element()),
      kv_element(j.kv_element()),
      shard(ranges_of(j, r)),
      division(ranges.empty() ? shard : ranges),
      rows(rows_of(shard)) {
  int64_t first = 0;
  for (const Range& range : division) parts.push_back({first, first + range.rows()}), first += range.rows();
  if (job.packed() && rows > 0) parts = {{0, rows}};
}

Place Builder::workspace(int64_t bytes) {
  const Place place{Buffer::workspace, made.workspace};
  made.workspace += aligned(bytes);
  return place;
}

void Builder::exchange(Exchange group) {
  for (const Transfer& t : group.recvs) made.bytes_in += t.bytes;
  for (const Transfer& t : group.sends) made.bytes_out += t.bytes;
  add(std::move(group));
}

size_t Builder::problem(const fh_problem& p) {
  for (size_t i = 0; i < made.problems.size(); ++i)
    if (std::memcmp(&made.problems[i], &p, sizeof p) == 0) return i;
  made.problems.push_back(p);
  return made.problems.size() - 1;
}

KeyPlaces Builder::keys(int64_t count, int64_t element_bytes) {
  const Place k = workspace(batch * count * k_row(element_bytes));
  return {k, workspace(batch * count * v_row(element_bytes)), count};
}

int64_t row_in(const std::vector<Range>& ranges, int64_t row) {
  int64_t before = 0;
  for (const Range& range : ranges) {
    if (row >= range.begin && row < range.end) return before + row - range.begin;
    before += range.rows();
  }
  return before;
}

void Builder::move(std::vector<Transfer>& to, int64_t peer, Place buffer, const std::vector<Range>& ranges,
                   Range range, int64_t row_bytes, Buffer only_with) const {
  if (!range.empty())
    move_rows(to, peer, buffer, rows_of(ranges), row_in(ranges, range.begin), range.rows(), row_bytes, only_with);
}

void Builder::move_rows(std::vector<Transfer>& to, int64_t peer, Place buffer, int64_t all, int64_t first,
                        int64_t its_rows, int64_t row_bytes, Buffer only_with) const {
  if (its_rows == 0 || row_bytes == 0) return;
  for (int64_t b = 0; b < batch; ++b)
    to.push_back({peer, buffer + (b * all + first) * row_bytes, its_rows * row_bytes, only_with});
}

void Builder::move_keys(std::vector<Transfer>& to, int64_t peer, const KeyPlaces& keys, const std::vector<Range>& all,
                        const std::vector<Range>& there, const std::vector<Range>& ranges,
                        int64_t element_bytes) const {
  const int64_t count = rows_of(all);
  for (const Together& part : together(placed(all, ranges), placed(there, ranges))) {
    move_rows(to, peer, keys.k, count, part.a, part.rows, k_row(element_bytes));
    move_rows(to, peer, keys.v, count, part.a, part.rows, v_row(element_bytes));
  }
}

void Builder::clear(const KeyPlaces& keys) {
  add(Fill{keys.k, 0, batch * keys.rows * heads_kv * dim_qk});
  add(Fill{keys.v, 0, batch * keys.rows * heads_kv * dim_v});
}

void Builder::copy_rows(Place to, const std::vector<Range>& to_ranges, Place from,
                        const std::vector<Range>& from_ranges, Range range, int64_t row_bytes) {
  const int64_t to_rows = rows_of(to_ranges), from_rows = rows_of(from_ranges);
  add(Copy{to + row_in(to_ranges, range.begin) * row_bytes, to_rows * row_bytes,
           from + row_in(from_ranges, range.begin) * row_bytes, from_rows * row_bytes, range.rows() * row_bytes,
           batch});
}

void Builder::copy_keys(const KeyPlaces& to, const std::vector<Range>& to_ranges, const KeyPlaces& from,
                        const std::vector<Range>& from_ranges) {
  const int64_t to_rows = rows_of(to_ranges), from_rows = rows_of(from_ranges);
  const auto copy = [&](Place into, Place part, const Together& its, int64_t row) {
    add(Copy{into + its.a * row, to_rows * row, part + its.b * row, from_rows * row, its.rows * row, batch});
  };
  const std::vector<Range> ranges = common(to_ranges, from_ranges);
  for (const Together& its : together(placed(to_ranges, ranges), placed(from_ranges, ranges))) {
    copy(to.k, from.k, its, k_row(kv_element));
    copy(to.v, from.v, its, v_row(kv_element));
  }
}

void Builder::add_rows(const KeyPlaces& to, const std::vector<Range>& to_ranges, const KeyPlaces& from,
                       const std::vector<Range>& from_ranges) {
  const int64_t to_rows = rows_of(to_ranges), from_rows = rows_of(from_ranges);
  const auto add_to = [&](Place into, Place part, const Together& its, int64_t row) {
    for (int64_t b = 0; b < batch; ++b)
      add(Add{into + (b * to_rows + its.a) * row * 4, part + (b * from_rows + its.b) * row * 4, its.rows * row});
  };
  const std::vector<Range> ranges = common(to_ranges, from_ranges);
  for (const Together& its : together(placed(to_ranges, ranges), placed(from_ranges, ranges))) {
    add_to(to.k, from.k, its, heads_kv * dim_qk);
    add_to(to.v, from.v, its, heads_kv * dim_v);
  }
}

Place Builder::target(Buffer to, int64_t count) { return job.rounds() ? workspace(count * 4) : Place{to, 0}; }

void Builder::convert(Buffer to, Place from, int64_t count) {
  if (job.rounds() && count > 0) add(Convert{{to, 0}, from, count});
}

KeyPlaces Builder::home(Range its) {
  const Place k = target(Buffer::grad_k, batch * its.rows() * heads_kv * dim_qk);
  const KeyPlaces made_home{k, target(Buffer::grad_v, batch * its.rows() * heads_kv * dim_v), its.rows()};
  clear(made_home);
  return made_home;
}

void Builder::convert_home(const KeyPlaces& home, Range its) {
  const auto convert_rows = [&](Buffer to, Place from, int64_t row) {
    if (its.rows() == rows) return convert(to, from, batch * rows * row);
    for (int64_t b = 0; b < batch && !its.empty(); ++b)
      add(Convert{
          {to, (b * rows + its.begin) * row * job.out_element()}, from + b * its.rows() * row * 4, its.rows() * row});
  };
  convert_rows(Buffer::grad_k, home.k, heads_kv * dim_qk);
  convert_rows(Buffer::grad_v, home.v, heads_kv * dim_v);
}

void Builder::begin_lse(Place lse, int64_t first, int64_t heads, int64_t its_rows) {
  if (whole.sink)
    for (int64_t b = 0; b < batch; ++b)
      add(Spread{lse + b * heads * its_rows * 4, {Buffer::sink, first * 4}, heads, its_rows});
  else
    add(Fill{lse, minus_infinity, batch * heads * its_rows});
}

void Builder::begin(bool with_merging, size_t first_merged) {
  merges = with_merging && first_merged < parts.size();
  in_phases_ = merges && !job.packed() && job.rounds();
  first_merged_ = first_merged;
  sink_counted_.assign(parts.size(), 0), calls_.resize(parts.size());
  if (job.backward() && whole.sink) add(Fill{{Buffer::grad_sink, 0}, 0, heads_q});
  const int64_t lines = batch * heads_q;
  for (size_t part = 0; part < parts.size(); ++part) {
    const Range range = parts[part];
    const int64_t words = lines * range.rows();
    const bool one_call = parts.size() == 1 && (job.backward() || !merges);
    lse_.push_back(one_call ? Place{Buffer::lse, 0} : workspace(words * 4));
    grad_lse_.push_back(one_call || !job.backward() ? Place{Buffer::grad_lse, 0} : workspace(words * 4));
    if (job.backward() && !one_call) {
      add(Copy{lse_.back(), range.rows() * 4, {Buffer::lse, range.begin * 4}, rows * 4, range.rows() * 4, lines});
      add(Copy{grad_lse_.back(),
               range.rows() * 4,
               {Buffer::grad_lse, range.begin * 4},
               rows * 4,
               range.rows() * 4,
               lines,
               Buffer::grad_lse});
    } else if (!job.backward() && merges_in(part) && !in_phases_) {
      begin_lse(lse_.back(), 0, heads_q, range.rows());
    }
  }
  if (!merges || rows == 0) return;
  for (size_t part = 0; part < parts.size() && in_phases_ && job.backward(); ++part) {
    ++made.slots;
    if (whole.sink) grad_sinks_.push_back(workspace(heads_q * 4));
  }
  if (in_phases_ && job.backward()) return;
  const int64_t dim = job.backward() ? dim_qk : dim_v;
  if (job.rounds()) o_first_ = parts[first_merged].begin;
  const int64_t words = batch * (rows - o_first_) * heads_q * dim;
  (job.backward() ? grad_q : o_) = target(job.backward() ? Buffer::grad_q : Buffer::o, words);
  if (!in_phases_) add(Fill{job.backward() ? grad_q : o_, 0, words});
}

void Builder::attend(const Block& block, const KeyPlaces& from, const KeyPlaces& grads) {
  if (job.packed())
    for (const Run& run : runs_of(job, shard, block.ranges, merges && job.by_document()))
      attend(run, block, from, grads);
  else
    for (const Piece& piece : pieces_of(whole, division, block.parts)) attend(piece, block, from, grads);
}

// One call. Its sink is in the denominator once: without merging there is one call for each row, with it lse begins
// with the sink, and the sink's gradient is taken in one call for each row.
Attend Builder::call(fh_problem& p, const Piece& first, bool with_sink, const Block& block, const KeyPlaces& from,
                     const KeyPlaces& grads) {
  const bool merged = merges_in(first.part), is_phase = merged && in_phases_;
  p.accumulate = merged && (job.backward() ? !grads.rounded : !is_phase);
  if (merged && !is_phase) p.sink = whole.sink && job.backward() && with_sink;
  const int64_t q_row = heads_q * dim_qk, o_row = heads_q * dim_v;
  const auto own = [&](Buffer buffer, int64_t row_values, int64_t element_bytes) {
    return Operand{{buffer, first.row * row_values * element_bytes}, rows};
  };
  Attend a{};
  a.row = row_at(shard, first.row), a.key = key_in(block.parts, first.key);
  a.q = own(Buffer::q, q_row, element);
  a.k = {from.k + first.key * k_row(kv_element), from.rows};
  a.v = {from.v + first.key * v_row(kv_element), from.rows};
  if (job.kv_has_8_bits()) a.scale_k = {Buffer::scale_k, 0}, a.scale_v = {Buffer::scale_v, 0};
  if (p.sink) a.sink = {Buffer::sink, 0};
  if (whole.alibi) a.slopes = {Buffer::slopes, 0};
  if (!job.backward()) {
    const Operand sum{o_ + (first.row - o_first_) * o_row * 4, rows - o_first_};
    if (is_phase) a.o_sum = sum;
    a.o = merged && !is_phase ? sum : own(Buffer::o, o_row, element);
  } else {
    const int64_t element_bytes = merges && !grads.rounded ? 4 : element;
    a.o = own(Buffer::o, o_row, element), a.grad_o = own(Buffer::grad_o, o_row, element);
    a.grad_q =
        merges && !is_phase ? Operand{grad_q + first.row * q_row * 4, rows} : own(Buffer::grad_q, q_row, element);
    if (is_phase) a.slot = static_cast<int64_t>(first.part);
    a.grad_k = {grads.k + first.key * k_row(element_bytes), grads.rows};
    a.grad_v = {grads.v + first.key * v_row(element_bytes), grads.rows};
    if (p.sink) a.grad_sink = is_phase ? grad_sinks_[first.part] : Place{Buffer::grad_sink, 0};
  }
  return a;
}

void Builder::attend_parts(size_t first, size_t last, const Block& block, const KeyPlaces& from,
                           const KeyPlaces& grads) {
  for (const Piece& piece : pieces_of(whole, division, block.parts))
    if (piece.part >= first && piece.part < last) attend(piece, block, from, grads);
}

void Builder::attend(const Piece& piece, const Block& block, const KeyPlaces& from, const KeyPlaces& grads) {
  fh_problem p = problem_of(whole, piece);
  Attend a = call(p, piece, !sink_counted_[piece.part], block, from, grads);
  sink_counted_[piece.part] = 1;
  a.lse = lse_[piece.part], a.grad_lse = grad_lse_[piece.part];
  a.rows = batch * piece.rows, a.pairs = piece.pairs();
  if (in_phases_ && merges_in(piece.part))
    calls_[piece.part].push_back({made.steps.size(), p});
  else
    a.problem = problem(p);
  add(a);
}

// Which calls of a part are its first, middle and last ones is known when all are there.
void Builder::set_phases(size_t part) {
  const std::vector<Call>& calls = calls_[part];
  for (size_t i = 0; i < calls.size(); ++i) {
    Attend& a = std::get<Attend>(made.steps[calls[i].step]);
    fh_problem p = calls[i].problem;
    const bool is_first = i == 0, is_last = i + 1 == calls.size();
    p.phase = is_first && is_last ? FH_PHASE_ONLY
              : is_first          ? FH_PHASE_FIRST
              : is_last           ? FH_PHASE_LAST
                                  : FH_PHASE_MIDDLE;
    if (is_first && is_last) a.o_sum = {};
    if (!is_last && !job.backward()) a.o = {};
    if (!is_last) a.grad_q = {}, a.grad_sink = {};
    a.problem = problem(p);
  }
}

void Builder::attend(const Run& run, const Block& block, const KeyPlaces& from, const KeyPlaces& grads) {
  const Range its_rows{run.row, run.row + run.rows()};
  const bool all = its_rows.rows() == rows;
  fh_problem p = problem_of(whole, run);
  Attend a = call(p, run.sequences.front(), run.own, block, from, grads);
  a.problem = problem(p);
  a.lse = lse_[0] + run.row * 4;
  if (!all) a.lse_rows = rows;
  if (job.backward()) a.grad_lse = all ? grad_lse_[0] : dense_grad_lse(its_rows);
  a.rows = run.used_rows(), a.pairs = run.pairs();
  add_tables(run, a);
  add(a);
}

// grad_lse has no strides.
Place Builder::dense_grad_lse(Range its_rows) {
  for (const auto& [range, place] : dense_)
    if (range.begin == its_rows.begin && range.end == its_rows.end) return place;
  const int64_t bytes = its_rows.rows() * 4;
  const Place place = workspace(heads_q * bytes);
  add(Copy{place, bytes, grad_lse_[0] + its_rows.begin * 4, rows * 4, bytes, heads_q, Buffer::grad_lse});
  dense_.emplace_back(its_rows, place);
  return place;
}

void Builder::add_tables(const Run& run, Attend& to) {
  if (run.sequences.size() == 1) return;
  to.cu_seqlens_q = table(query_ends(run)), to.cu_seqlens_kv = table(key_ends(run));
  if (run.gaps()) to.seqused_q = table(used_queries(run)), to.seqused_kv = table(used_keys(run));
}

// Its place there: where it lies already, or at the end.
Place Builder::table(const std::vector<int32_t>& ends) {
  std::vector<int32_t>& all = made.tables;
  auto at = std::search(all.begin(), all.end(), ends.begin(), ends.end());
  const int64_t first = at - all.begin();
  if (at == all.end()) all.insert(at, ends.begin(), ends.end());
  return {Buffer::tables, first * int64_t{sizeof(int32_t)}};
}

// Rows of a sequence that calls have merged follow those that one call has written.
void Builder::convert_o() {
  const int64_t row = heads_q * dim_v, merged = (rows - o_first_) * row;
  if (o_first_ == 0) return convert(Buffer::o, o_, batch * merged);
  for (int64_t b = 0; b < batch; ++b)
    add(Convert{{Buffer::o, (b * rows + o_first_) * row * job.out_element()}, o_ + b * merged * 4, merged});
}

void Builder::end() {
  for (size_t part = 0; part < parts.size() && in_phases_; ++part) set_phases(part);
  for (size_t part = 0; part < grad_sinks_.size(); ++part)
    if (!calls_[part].empty()) add(Add{{Buffer::grad_sink, 0}, grad_sinks_[part], heads_q});
  if (job.backward()) {
    if (merges && !in_phases_) convert(Buffer::grad_q, grad_q, batch * rows * heads_q * dim_qk);
    return;
  }
  if (merges && !in_phases_) convert_o();
  for (size_t i = 0; i < parts.size(); ++i)
    if (lse_[i].buffer == Buffer::workspace)
      add(Copy{{Buffer::lse, parts[i].begin * 4},
               rows * 4,
               lse_[i],
               parts[i].rows() * 4,
               parts[i].rows() * 4,
               batch * heads_q,
               Buffer::lse});
}

}  // namespace froghopper::cp
