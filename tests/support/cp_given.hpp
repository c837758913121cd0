// SPDX-License-Identifier: Apache-2.0
// tests: calls of several ranks, each of which a test may spoil, and what every rank gets.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "tests/support/cp_attention.hpp"

namespace froghopper::test {

inline CpCase small_of(fh_cp_scheme scheme) {
  CpCase c;
  c.whole.dtype = FH_F32;
  c.whole.batch = 1, c.whole.heads_q = 4, c.whole.heads_kv = 2, c.whole.seq_q = c.whole.seq_kv = 30;
  c.whole.dim_qk = 16, c.whole.causal = 1, c.whole.max_sms = 1;
  c.ranks = 4, c.scheme = scheme;
  return c;
}

// What one rank gives to the call; a test spoils some of it.
struct Given {
  CpCase c;
  fh_cp_tensors tensors;
  fh_cp_transport transport;
  fh_cp_problem problem = fh_cp_problem_init();  // with the problem, ranks and scheme of c
};
struct Outcome {
  fh_status status = FH_OK;
  std::string text;
  Numbers o;
};

inline std::vector<Outcome> run_given(const CpCase& c, fh_op op, Ranks& ranks,
                                      const std::function<void(int64_t rank, Given&)>& spoil) {
  CpTensors whole = inputs(c);
  run_alone(c, whole);
  std::vector<Outcome> outcomes(static_cast<size_t>(c.ranks));
  on_all_ranks(c.ranks, [&](int64_t rank) {
    Outcome& mine = outcomes[static_cast<size_t>(rank)];
    Given given{c, {}, ranks.transport(rank)};
    const std::vector<fh_cp_range> held = rows_held(plan_of(c, op, rank).get(), rank);
    CpTensors t;
    for (Numbers CpTensors::*x : {&CpTensors::q, &CpTensors::k, &CpTensors::v, &CpTensors::o, &CpTensors::lse,
                                  &CpTensors::grad_o, &CpTensors::grad_q, &CpTensors::grad_k, &CpTensors::grad_v})
      if ((whole.*x).count() > 0) t.*x = shard_of(whole.*x, layout_of(c.whole, x), held);
    if (op == FH_FORWARD) t.o = Numbers(Element::f32, t.o.count());
    given.tensors = cp_tensors(t, op);
    spoil(rank, given);
    fh_cp_problem& p = given.problem;
    given.c.whole.op = op;
    p.whole = &given.c.whole, p.ranks = c.ranks, p.rank = rank, p.scheme = given.c.scheme;
    if (!given.c.documents.empty())
      p.cu_seqlens = given.c.documents.data(), p.documents = static_cast<int32_t>(given.c.documents.size()) - 1;
    fh_cp_plan* made = nullptr;
    mine.status = fh_cp_plan_create(&p, "cpu", &made);
    mine.o = t.o;
    if (mine.status != FH_OK) {
      mine.text = fh_cp_last_error();
      return given.transport.cancel(given.transport.context);
    }
    const CpPlan plan(made);
    const Workspace workspace(fh_cp_plan_workspace_bytes(made));
    mine.status =
        fh_cp_plan_run(made, &given.transport, nullptr, &given.tensors, workspace.data(), workspace.bytes(), nullptr);
    if (mine.status != FH_OK) mine.text = fh_cp_last_error();
    mine.o = t.o;
  });
  return outcomes;
}

inline bool untouched(const Numbers& x) {
  for (int64_t i = 0; i < x.count(); ++i)
    if (!std::isnan(x.at(i))) return false;
  return true;
}

}  // namespace froghopper::test
