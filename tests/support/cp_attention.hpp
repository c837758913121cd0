// SPDX-License-Identifier: Apache-2.0
// tests: one attention, on one rank by the library, in fp64 by the oracle, and over ranks.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "src/oracle/oracle.hpp"
#include "tests/support/cp_ranks.hpp"

namespace froghopper::test {

struct CpPlanForget {
  void operator()(fh_cp_plan* plan) const { fh_cp_plan_destroy(plan); }
};
using CpPlan = std::unique_ptr<fh_cp_plan, CpPlanForget>;

struct CpCase {
  fh_problem whole = fh_problem_init();  // forward
  int64_t ranks = 1;
  fh_cp_scheme scheme = FH_CP_RING;
  fh_cp_layout layout = FH_CP_LAYOUT_AUTO;
  fh_dtype out = FH_USUAL;
  bool grad_lse = false;
  fh_cp_transfers transfers = FH_CP_SEND_RECV;
  std::vector<int64_t> documents = {};  // cu_seqlens; empty: the rows are one sequence
  int64_t heads_ranks = 0;
};

// Makes and ends the transport of a rank; the first is called by all ranks once all have a workspace.
struct CpTransports {
  std::function<fh_cp_transport(int64_t rank, void* workspace)> make;
  std::function<void(fh_cp_transport*)> end = [](fh_cp_transport*) {};
};

inline Element element_of_c(fh_dtype t) {
  return t == FH_F16    ? Element::f16
         : t == FH_BF16 ? Element::bf16
         : t == FH_E4M3 ? Element::e4m3
         : t == FH_E5M2 ? Element::e5m2
                        : Element::f32;
}

// All tensors of one attention, of the whole sequence or of a shard.
struct CpTensors {
  Numbers q, k, v, o, lse, sink, slopes, grad_o, grad_lse, grad_q, grad_k, grad_v, grad_sink;
  Numbers scale_k, scale_v;         // of each head, where k and v have 8 bits
  std::vector<int32_t> cu_seqlens;  // of the whole, where it is packed
};

inline Layout layout_of(const fh_problem& p, const Numbers CpTensors::*member) {
  const int64_t dim_v = p.dim_v ? p.dim_v : p.dim_qk;
  if (member == &CpTensors::q || member == &CpTensors::grad_q) return {p.batch, p.seq_q, p.heads_q * p.dim_qk, false};
  if (member == &CpTensors::k || member == &CpTensors::grad_k)
    return {p.batch, p.seq_q, p.heads_kv * p.dim_qk, false};
  if (member == &CpTensors::v || member == &CpTensors::grad_v) return {p.batch, p.seq_q, p.heads_kv * dim_v, false};
  if (member == &CpTensors::lse || member == &CpTensors::grad_lse) return {p.batch, p.seq_q, p.heads_q, true};
  return {p.batch, p.seq_q, p.heads_q * dim_v, false};
}
inline Numbers empty_whole(const fh_problem& p, const Numbers CpTensors::*member, Element type) {
  const Layout l = layout_of(p, member);
  return Numbers(type, l.batch * l.rows * l.width);
}

inline CpTensors inputs(const CpCase& c) {
  const fh_problem& p = c.whole;
  const Element e = element_of_c(p.dtype), of_kv = p.dtype_kv ? element_of_c(p.dtype_kv) : e;
  CpTensors t;
  t.cu_seqlens.assign(c.documents.begin(), c.documents.end());
  uint32_t seed = 1;
  for (Numbers CpTensors::*x : {&CpTensors::q, &CpTensors::k, &CpTensors::v, &CpTensors::grad_o})
    (t.*x = empty_whole(p, x, x == &CpTensors::k || x == &CpTensors::v ? of_kv : e)).draw(seed++);
  for (Numbers CpTensors::*x : {&CpTensors::scale_k, &CpTensors::scale_v}) {
    if (of_kv == e) break;
    t.*x = Numbers(Element::f32, p.heads_kv);
    for (int64_t h = 0; h < p.heads_kv; ++h) (t.*x).set(h, std::ldexp(1.3f, static_cast<int>(h % 3)));
  }
  if (c.grad_lse) (t.grad_lse = empty_whole(p, &CpTensors::grad_lse, Element::f32)).draw(seed++);
  if (p.sink) (t.sink = Numbers(Element::f32, p.heads_q)).draw(seed++);
  if (p.alibi) t.slopes = Numbers(Element::f32, p.heads_q);
  for (int64_t h = 0; p.alibi && h < p.heads_q; ++h) t.slopes.set(h, std::ldexp(1.0f, static_cast<int>(-1 - h)));
  return t;
}

inline fh_tensors c_tensors(const fh_problem& p, CpTensors& t) {
  const int64_t dim_v = p.dim_v ? p.dim_v : p.dim_qk;
  const auto dense = [&](Numbers& x, int64_t heads, int64_t dim) {
    return x.data() ? fh_tensor{x.data(), p.seq_q * heads * dim, heads * dim, dim} : fh_tensor{};
  };
  const auto list = [](Numbers& x) { return static_cast<float*>(x.data()); };
  fh_tensors x = fh_tensors_init();
  x.q = dense(t.q, p.heads_q, p.dim_qk), x.k = dense(t.k, p.heads_kv, p.dim_qk), x.v = dense(t.v, p.heads_kv, dim_v);
  x.o = dense(t.o, p.heads_q, dim_v), x.lse = list(t.lse), x.sink = list(t.sink);
  if (p.alibi) x.alibi_slopes = {t.slopes.data(), 0, 0, 1};
  if (t.scale_k.data()) x.scale_k = {t.scale_k.data(), 0, 0, 1}, x.scale_v = {t.scale_v.data(), 0, 0, 1};
  if (p.varlen) x.cu_seqlens_q = x.cu_seqlens_kv = t.cu_seqlens.data();
  if (p.op == FH_BACKWARD) {
    x.grad_o = dense(t.grad_o, p.heads_q, dim_v), x.grad_lse = list(t.grad_lse);
    x.grad_q = dense(t.grad_q, p.heads_q, p.dim_qk), x.grad_k = dense(t.grad_k, p.heads_kv, p.dim_qk);
    x.grad_v = dense(t.grad_v, p.heads_kv, dim_v), x.grad_sink = list(t.grad_sink);
  }
  return x;
}

inline fh_problem with_op(fh_problem p, fh_op op) { return p.op = op, p; }

// As one rank computes it by itself.
inline fh_problem alone_problem(const CpCase& c, fh_op op) {
  fh_problem p = with_op(c.whole, op);
  if (c.documents.empty()) return p;
  p.varlen = 1, p.batch = static_cast<int64_t>(c.documents.size()) - 1, p.total_q = p.total_kv = p.seq_q;
  return p;
}

// o, lse and gradients on one rank. o is rounded to the type of the whole.
inline void run_alone(const CpCase& c, CpTensors& t) {
  const Element e = element_of_c(c.whole.dtype);
  t.o = empty_whole(c.whole, &CpTensors::o, e), t.lse = empty_whole(c.whole, &CpTensors::lse, Element::f32);
  const fh_problem forward = alone_problem(c, FH_FORWARD), backward = alone_problem(c, FH_BACKWARD);
  fh_tensors x = c_tensors(forward, t);
  ASSERT_EQ(fh_attention(&forward, "cpu", &x, nullptr, 0, nullptr), FH_OK) << fh_last_error();
  if (t.scale_k.data()) return;  // 8-bit k and v have no gradients
  for (Numbers CpTensors::*g : {&CpTensors::grad_q, &CpTensors::grad_k, &CpTensors::grad_v})
    t.*g = empty_whole(c.whole, g, e);
  if (c.whole.sink) t.grad_sink = Numbers(Element::f32, c.whole.heads_q);
  x = c_tensors(backward, t);
  ASSERT_EQ(fh_attention(&backward, "cpu", &x, nullptr, 0, nullptr), FH_OK) << fh_last_error();
}

inline CpPlan planned(const fh_cp_problem& p, const char* target) {
  fh_cp_plan* plan = nullptr;
  EXPECT_EQ(fh_cp_plan_create(&p, target, &plan), FH_OK) << fh_cp_last_error();
  return CpPlan(plan);
}

inline CpPlan plan_of(const CpCase& c, fh_op op, int64_t rank, const char* target = "cpu") {
  const fh_problem whole = with_op(c.whole, op);
  fh_cp_problem p = fh_cp_problem_init();
  p.whole = &whole, p.ranks = c.ranks, p.rank = rank;
  p.scheme = c.scheme, p.layout = c.layout, p.dtype_out = c.out, p.transfers = c.transfers;
  p.heads_ranks = c.heads_ranks;
  if (!c.documents.empty())
    p.cu_seqlens = c.documents.data(), p.documents = static_cast<int32_t>(c.documents.size()) - 1;
  return planned(p, target);
}

inline std::vector<fh_cp_range> rows_held(const fh_cp_plan* plan, int64_t rank) {
  std::vector<fh_cp_range> ranges(2);
  int64_t count = 0;
  for (int call = 0; call < 2; ++call) {  // by document there may be more
    EXPECT_EQ(fh_cp_plan_rows(plan, rank, ranges.data(), static_cast<int64_t>(ranges.size()), &count), FH_OK);
    ranges.resize(static_cast<size_t>(count));
  }
  return ranges;
}

inline fh_cp_tensors cp_tensors(CpTensors& t, fh_op op) {
  const auto list = [](Numbers& x) { return static_cast<float*>(x.data()); };
  fh_cp_tensors x = fh_cp_tensors_init();
  x.q = t.q.data(), x.k = t.k.data(), x.v = t.v.data(), x.o = t.o.data(), x.lse = list(t.lse);
  x.sink = list(t.sink), x.alibi_slopes = list(t.slopes);
  x.scale_k = list(t.scale_k), x.scale_v = list(t.scale_v);
  if (op == FH_BACKWARD) {
    x.grad_o = t.grad_o.data(), x.grad_lse = list(t.grad_lse), x.grad_q = t.grad_q.data();
    x.grad_k = t.grad_k.data(), x.grad_v = t.grad_v.data(), x.grad_sink = list(t.grad_sink);
  }
  return x;
}

// Of which each rank has a shard.
using Members = std::vector<Numbers CpTensors::*>;
inline Members inputs_of(const CpCase& c, fh_op op) {
  Members all = {&CpTensors::q, &CpTensors::k, &CpTensors::v};
  if (op == FH_BACKWARD) all.insert(all.end(), {&CpTensors::o, &CpTensors::lse, &CpTensors::grad_o});
  if (op == FH_BACKWARD && c.grad_lse) all.push_back(&CpTensors::grad_lse);
  return all;
}

// One op over ranks: `t` has the inputs of the whole and gets its results. Returns what the ranks' transport moved.
inline uint64_t run_ranks(const CpCase& c, fh_op op, CpTensors& t, const CpTransports& transports = {}) {
  Ranks ranks(c.ranks);
  std::mutex mutex;
  const Element out = element_of_c(c.out == FH_USUAL ? c.whole.dtype : c.out);
  const Members given = inputs_of(c, op);
  Members written = {&CpTensors::o, &CpTensors::lse};
  if (op == FH_BACKWARD) written = {&CpTensors::grad_q, &CpTensors::grad_k, &CpTensors::grad_v};
  CpTensors results;
  for (Numbers CpTensors::*x : written)
    results.*x = empty_whole(c.whole, x, x == &CpTensors::lse ? Element::f32 : out);
  std::vector<double> sink(static_cast<size_t>(c.whole.heads_q), 0);
  uint64_t planned = 0;
  on_all_ranks(c.ranks, [&](int64_t rank) {
    const CpPlan plan = plan_of(c, op, rank);
    ASSERT_NE(plan, nullptr);
    const std::vector<fh_cp_range> held = rows_held(plan.get(), rank);
    CpTensors mine;
    for (Numbers CpTensors::*x : given) mine.*x = shard_of(t.*x, layout_of(c.whole, x), held);
    for (Numbers CpTensors::*x : written) mine.*x = shard_of(results.*x, layout_of(c.whole, x), held);
    mine.sink = t.sink, mine.slopes = t.slopes, mine.scale_k = t.scale_k, mine.scale_v = t.scale_v;
    if (c.whole.sink) mine.grad_sink = Numbers(Element::f32, c.whole.heads_q);
    if (op == FH_FORWARD) mine.grad_sink = {};
    fh_cp_tensors x = cp_tensors(mine, op);
    float nothing = 0;
    if (op == FH_BACKWARD && c.grad_lse && x.grad_lse == nullptr) x.grad_lse = &nothing;  // a shard without rows
    const Workspace workspace(fh_cp_plan_workspace_bytes(plan.get()));
    fh_cp_transport transport = transports.make ? transports.make(rank, workspace.data()) : ranks.transport(rank);
    ASSERT_EQ(fh_cp_plan_run(plan.get(), &transport, nullptr, &x, workspace.data(), workspace.bytes(), nullptr),
              FH_OK)
        << fh_cp_last_error() << "\n"
        << fh_cp_plan_text(plan.get());
    if (transports.make) transports.end(&transport);
    const std::lock_guard lock(mutex);
    planned += fh_cp_plan_bytes_out(plan.get());
    for (Numbers CpTensors::*y : written) put_back(results.*y, mine.*y, layout_of(c.whole, y), held);
    for (int64_t h = 0; h < mine.grad_sink.count(); ++h) sink[static_cast<size_t>(h)] += mine.grad_sink.at(h);
  });
  if (!transports.make && (op == FH_FORWARD || c.grad_lse)) { EXPECT_EQ(ranks.bytes_moved, planned); }
  for (Numbers CpTensors::*x : written) t.*x = results.*x;
  if (op == FH_BACKWARD && c.whole.sink) {
    t.grad_sink = Numbers(Element::f32, c.whole.heads_q);
    for (int64_t h = 0; h < c.whole.heads_q; ++h)
      t.grad_sink.set(h, static_cast<float>(sink[static_cast<size_t>(h)]));
  }
  return ranks.bytes_moved;
}

// The oracle's answer, in the order of the tensors of the whole.
inline std::vector<double> exact(const CpCase& c, fh_op op, CpTensors& t, View Views::*which) {
  const fh_problem whole = alone_problem(c, op);
  const Problem problem = *Problem::from(whole);
  fh_tensors x = c_tensors(whole, t);
  return oracle::compute(problem, *bind(problem, x))[index_of(which)];
}

}  // namespace froghopper::test
