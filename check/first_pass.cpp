// SPDX-License-Identifier: Apache-2.0
// check: the forward pass that a backward problem begins with. Exact and rounded, so that the gradients' errors are
// their own.
#include "check/first_pass.hpp"

#include <cstring>

#include "check/backends.hpp"
#include "src/base/storage.hpp"
#include "src/oracle/oracle.hpp"

namespace froghopper::check {

namespace {

// Calls visit(batch, row, head) for the query rows that count, or for all the others.
template <class Visit>
void each_row_q(const Problem& p, const Views& views, bool counts, Visit visit) {
  if (views.o.empty()) return;
  std::vector<bool> used(static_cast<size_t>(views.o.batch * views.o.seq));
  for (int64_t b = 0; b < p.batch; ++b) {
    const Rows rows = rows_q(p, views, b);
    for (int64_t i = 0; i < rows.used; ++i)
      used[static_cast<size_t>(rows.batch * views.o.seq + rows.first + i)] = true;
  }
  for (int64_t b = 0; b < views.o.batch; ++b)
    for (int64_t row = 0; row < views.o.seq; ++row)
      if (used[static_cast<size_t>(b * views.o.seq + row)] == counts)
        for (int64_t head = 0; head < views.o.heads; ++head) visit(b, row, head);
}

void put_exact_forward(const Problem& p, const Views& views) {
  const oracle::Answers answers = oracle::compute(p.forward(), views);
  for (View Views::*const tensor : {&Views::o, &Views::lse}) {
    const View& x = views.*tensor;
    const std::vector<double>& answer = answers[index_of(tensor)];
    each_row_q(p, views, true, [&](int64_t b, int64_t row, int64_t head) {
      const auto dense = static_cast<size_t>(((b * x.seq + row) * x.heads + head) * x.dim);
      for (int64_t column = 0; column < x.dim; ++column)
        store(x.data, x.at(b, row, head) + column, x.element,
              static_cast<float>(answer[dense + static_cast<size_t>(column)]));
    });
  }
}

// The library also writes rows that do not count; those are NaN again afterwards.
void put_forward_of_library(const Problem& p, const Inputs& in, const Views& views) {
  const auto plan = create_plan(p.forward(), "cpu");
  if (!plan) return;  // o stays NaN, which no result survives
  const fh_tensors tensors = tensors_of(p.forward(), in.tensors);
  if (fh_plan_run(plan->get(), &tensors, nullptr, 0, nullptr) != FH_OK) return;
  each_row_q(p, views, false, [&](int64_t b, int64_t row, int64_t head) {
    for (const View& x : {views.o, views.lse})
      std::memset(x.address(b, row, head), 0xff, static_cast<size_t>(x.dim * size_of(x.element)));
  });
}

}  // namespace

void put_first_pass(const Case& c, const Inputs& in, const Views& views) {
  if (c.sample_rows) return put_forward_of_library(c.problem, in, views);
  put_exact_forward(c.problem, views);
}

}  // namespace froghopper::check
