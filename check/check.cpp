// SPDX-License-Identifier: Apache-2.0
// check: a case from its inputs to a verdict, through the C interface, so that what users call is what is checked.
#include "check/check.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <optional>
#include <string_view>

#include "check/backends.hpp"
#include "check/compare.hpp"
#include "check/places.hpp"
#include "src/base/storage.hpp"
#include "src/base/text.hpp"
#include "src/problem/options.hpp"

namespace froghopper::check {

namespace {

std::string changed_input(const Inputs&, const Before&);
std::string written_outside(const Problem&, const Inputs&, const Before* refused = nullptr);
void clear_rows(const Reference&, const Views&);

}  // namespace

Result<Outcome> check_case(const Case& c, Backend backend, unsigned seed) {
  if (c.problem.phase != FH_PHASE_NONE)
    return Failure{
        FH_UNSUPPORTED,
        text("phase={}: check makes one call and gives it no o_sum or sums of dQ; tests/phases_test.cpp checks "
             "phases. Leave it out.",
             name_of(c.problem.phase))};
  const Problem& p = c.problem;
  Outcome out;
  out.backend = backend == Backend::cpu ? "cpu" : "hopper";
  auto plan = create_plan(p, out.backend);
  if (!plan) return plan.failure();
  out.plan = fh_plan_line(plan->get());

  const std::unique_ptr<Inputs> in = make_inputs(c, seed);
  const auto views = bind(p, in->tensors);
  if (!views) return views.failure();
  if (auto enough = pages_suffice(p, *views); !enough) return enough.failure();
  if (auto can = can_be_judged(c, *views); !can) return can.failure();
  const Before before(p, *in);
  std::optional<Reference> reference;  // made once something has run: what is refused costs no oracle
  const auto look = [&] {
    if (!reference) reference = make_reference(c, before.views(*in, *views), backend);
    judge(p, *reference, *views, *in, before, out);
    return out.why;
  };

  // What is wrong with a result is a string; a Failure is a call that failed.
  const auto run = [&]() -> Result<std::string> {
    if (backend == Backend::hopper) return run_in_many_ways_on_gpu(plan->get(), p, *in, look);
    const auto ran = run_on_cpu(plan->get(), *in);
    if (!ran) return ran.failure();
    return std::string();
  };
  const auto differs = run();
  if (!differs) {
    // A call that fails has written nothing: what it would write too is as it was.
    std::string wrote = changed_input(*in, before);
    if (wrote.empty()) wrote = written_outside(p, *in, &before);
    if (wrote.empty()) return differs.failure();
    return Failure{FH_INTERNAL, text("{} Yet the failed call wrote: {}", differs.failure().text, wrote)};
  }
  if (backend == Backend::cpu || bit_equal(p)) look();
  // A later run that `look` has judged says so itself.
  if (!differs->empty() && (out.passed || !bit_equal(p))) {
    out.passed = false;
    out.why = *differs;
  }
  return out;
}

void judge(const Problem& p, const Reference& reference, const Views& views, Inputs& in, const Before& before,
           Outcome& out) {
  out.passed = false;
  out.why = changed_input(in, before);
  if (!out.why.empty()) return;
  Found found;
  out.why = take_rows(reference, views, found);
  if (!out.why.empty()) return;
  clear_rows(reference, views);
  out.why = written_outside(p, in);
  if (out.why.empty()) compare(p, reference, found, out);
}

namespace {

size_t hash_of(const Inputs::Block& block) {
  return std::hash<std::string_view>{}({reinterpret_cast<const char*>(block.data()), block.size()});
}

}  // namespace

Before::Before(const Problem& p, const Inputs& in) : added_to(in.blocks.size()) {
  for (size_t i = 0; i < in.blocks.size(); ++i) {
    const Use use = tensors()[i].use(p);
    hashes.push_back(is_written(use) ? 0 : hash_of(in.blocks[i]));
    if (use == Use::added_to) added_to[i] = in.blocks[i];
  }
}

Views Before::views(const Inputs& in, Views views) const {
  for (size_t i = 0; i < added_to.size(); ++i) {
    View& view = views.*tensors()[i].view;
    if (added_to[i].empty() || !view.data) continue;
    const auto offset = view.as<const unsigned char>() - in.blocks[i].data();
    view.data = const_cast<unsigned char*>(added_to[i].data()) + offset;
  }
  return views;
}

Measures Outcome::of(const std::string& tensor) const {
  const auto found = std::ranges::find(measures, tensor, &Measures::tensor);
  return found == measures.end() ? Measures{} : *found;
}

namespace {

// Calls visit(batch, row, head) for every row of a view, in rising order.
template <class Visit>
void each_row(const View& view, Visit visit) {
  if (view.empty()) return;  // there may be any number of sequences without rows
  for (int64_t b = 0; b < view.batch; ++b)
    for (int64_t row = 0; row < view.seq; ++row)
      for (int64_t head = 0; head < view.heads; ++head) visit(b, row, head);
}

std::string changed_input(const Inputs& in, const Before& before) {
  for (size_t i = 0; i < in.blocks.size(); ++i)
    if (before.hashes[i] != 0 && before.hashes[i] != hash_of(in.blocks[i]))
      return text("{} or memory next to it was written; it is only read", tensors()[i].name);
  return {};
}

// The first byte that is not 0xff any more, or its size.
size_t first_written(const Inputs::Block& block) {
  // A block of equal bytes equals itself one byte further on; memcmp compares faster than a loop.
  if (block.empty() || (block[0] == 0xff && std::memcmp(block.data(), block.data() + 1, block.size() - 1) == 0)) {
    return block.size();
  }
  size_t i = 0;
  while (block[i] == 0xff) ++i;
  return i;
}

size_t first_difference(const Inputs::Block& one, const Inputs::Block& other) {
  return static_cast<size_t>(std::ranges::mismatch(one, other).in1 - one.begin());
}

// refused: what was there before a call that wrote nothing. Else every row has bytes 0xff again.
std::string written_outside(const Problem& p, const Inputs& in, const Before* refused) {
  for (size_t i = 0; i < in.blocks.size(); ++i) {
    const Tensor& tensor = tensors()[i];
    if (!is_written(tensor.use(p))) continue;
    const auto& block = in.blocks[i];
    const bool as_before = refused && !refused->added_to[i].empty();
    const size_t at = as_before ? first_difference(block, refused->added_to[i]) : first_written(block);
    if (at == block.size()) continue;
    const auto* const begin = static_cast<const unsigned char*>(tensor.field.get(in.tensors).data);
    return text("{}: byte {} from its start was written, which belongs to no row", tensor.name,
                block.data() + at - begin);
  }
  return {};
}

// Visits the rows that are written: visit(batch, row, head), in the order of the reference.
template <class Visit>
void each_written(const Expected& expected, const View& view, Visit visit) {
  if (!expected.others_stay) return each_row(view, visit);
  for (const RowId& id : expected.rows) visit(id.batch, id.row, id.head);
}

// Bytes 0xff in the place of every row that was written.
void clear_rows(const Reference& reference, const Views& views) {
  for (const Expected& expected : reference) {
    const View& view = views.*expected.tensor->view;
    each_written(expected, view, [&](int64_t b, int64_t row, int64_t head) {
      std::memset(view.address(b, row, head), 0xff, static_cast<size_t>(view.dim * size_of(view.element)));
    });
  }
}

// Keeps the wanted rows of one tensor.
std::string take_rows(const Expected& expected, const View& view, std::vector<double>& taken) {
  std::string why;
  auto next = expected.rows.begin();
  each_written(expected, view, [&](int64_t b, int64_t row, int64_t head) {
    const bool keep = next != expected.rows.end() && *next == RowId{b, row, head};
    const int64_t at = view.at(b, row, head);
    const bool must_stay = keep && std::isnan(expected.exact[taken.size()]);
    for (int64_t column = 0; column < view.dim; ++column) {
      const float x = load(view.data, at + column, view.element);
      if (must_stay && !std::isnan(x) && why.empty())
        why = text("batch {} row {} head {}: {} was written, and the row is of no sequence", b, row, head,
                   expected.tensor->name);
      if (!must_stay && std::isnan(x) && why.empty())
        why = text("batch {} row {} head {}{}: {} is NaN, or was not written", b, row, head,
                   view.dim > 1 ? text(" column {}", column) : "", expected.tensor->name);
      if (keep) taken.push_back(x);
    }
    next += keep;
  });
  return why;
}

}  // namespace

std::string take_rows(const Reference& reference, const Views& views, Found& found) {
  found.assign(reference.size(), {});
  for (size_t i = 0; i < reference.size(); ++i) {
    std::string why = take_rows(reference[i], views.*reference[i].tensor->view, found[i]);
    if (!why.empty()) return why;
  }
  return {};
}

}  // namespace froghopper::check
