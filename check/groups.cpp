// SPDX-License-Identifier: Apache-2.0
// check: which parts of a large backward problem are compared, and the oracle's answers for them.
#include "check/groups.hpp"

#include <algorithm>

#include "check/data.hpp"
#include "src/oracle/oracle.hpp"
#include "src/problem/mask.hpp"

namespace froghopper::check {

namespace {

// Pairs of a query and a key that it attends to, times the head dim: the oracle goes through 3e8 in a second of one
// core. One group may be large; of several, as many as fit into half a second.
constexpr double most_products = 1e9, enough_products = 1.5e8;

double products(const Problem& p, const Views& views, const Group& group) {
  const int64_t rows = rows_q(p, views, group.sequence).used, keys = rows_kv(p, views, group.sequence).used;
  double pairs = 0;
  for (int64_t i = 0; i < rows; ++i) {
    const Visible visible = visible_keys(p, rows, keys, i);
    pairs += static_cast<double>(std::max<int64_t>(0, visible.end - visible.begin));
  }
  return pairs * static_cast<double>((p.heads_q / p.heads_kv) * (p.dim_qk + p.dim_v));
}

View part_of(const View& x, int64_t batch, int64_t first, int64_t rows, int64_t head, int64_t heads) {
  View part = x;
  if (part.data) part.data = x.address(batch, first, head);
  part.batch = 1, part.seq = rows, part.heads = heads;
  part.stride_batch = 0;
  return part;
}

struct GroupProblem {
  Problem problem;
  Views views;
};

GroupProblem problem_of(const Problem& p, const Views& views, const Group& group) {
  const Rows q = rows_q(p, views, group.sequence), kv = rows_kv(p, views, group.sequence);
  const int64_t heads = p.heads_q / p.heads_kv;
  GroupProblem part{p, {}};
  Problem& one = part.problem;
  one.batch = one.heads_kv = 1;
  one.heads_q = heads;
  one.seq_q = q.used, one.seq_kv = kv.used;
  one.varlen = one.seqused = false;
  one.total_q = one.total_kv = 0;
  for (View Views::*const x : {&Views::q, &Views::o, &Views::lse, &Views::grad_o, &Views::grad_lse, &Views::grad_q,
                               &Views::gate, &Views::grad_gate})
    part.views.*x = part_of(views.*x, q.batch, q.first, q.used, group.head_kv * heads, heads);
  for (View Views::*const x : {&Views::k, &Views::v, &Views::grad_k, &Views::grad_v})
    part.views.*x = part_of(views.*x, kv.batch, kv.first, kv.used, group.head_kv, 1);
  for (View Views::*const x : {&Views::sink, &Views::grad_sink})
    part.views.*x = part_of(views.*x, 0, 0, 1, group.head_kv * heads, heads);
  part.views.alibi_slopes = part_of(views.alibi_slopes, group.sequence, 0, 1, group.head_kv * heads, heads);
  return part;
}

// A row of a tensor, and where the answers for it are.
struct Source {
  RowId id;
  size_t group, begin;  // in the answers of that group
};

// The rows of the groups that count, in rising order.
std::vector<Source> sources_of(const Problem& p, const Views& views, const std::vector<Group>& groups,
                               const Tensor& tensor) {
  const bool of_q = tensor.view == &Views::grad_q || tensor.view == &Views::grad_gate;
  const int64_t heads = of_q ? p.heads_q / p.heads_kv : 1, dim = tensor.shape(p).dim;
  std::vector<Source> rows;
  for (size_t g = 0; g < groups.size(); ++g) {
    const auto& [sequence, head_kv] = groups[g];
    const Rows side = of_q ? rows_q(p, views, sequence) : rows_kv(p, views, sequence);
    for (int64_t i = 0; i < side.used; ++i)
      for (int64_t h = 0; h < heads; ++h)
        rows.push_back(
            {{side.batch, side.first + i, head_kv * heads + h}, g, static_cast<size_t>((i * heads + h) * dim)});
  }
  std::ranges::sort(rows, {}, &Source::id);
  return rows;
}

}  // namespace

std::vector<Group> some_groups(const Problem& p, const Views& views) {
  constexpr uint64_t most = 64, tries = 256;
  std::vector<Group> groups;
  if (p.rows_q() == 0 && p.rows_kv() == 0) return groups;
  const auto all = static_cast<uint64_t>(p.batch) * static_cast<uint64_t>(p.heads_kv);
  double taken = 0;
  for (uint64_t i = 0; i < std::min(tries, all) && groups.size() < most; ++i) {
    // The last one lies farthest from the tensors' begin.
    const uint64_t at = i == 0 ? all - 1 : all <= tries ? i - 1 : random_bits(9, i) % all;
    const Group group{static_cast<int64_t>(at) / p.heads_kv, static_cast<int64_t>(at) % p.heads_kv};
    const double size = products(p, views, group);
    if (taken + size > (groups.empty() ? most_products : enough_products) ||
        std::ranges::any_of(
            groups, [&](const Group& g) { return g.sequence == group.sequence && g.head_kv == group.head_kv; }))
      continue;
    taken += size;
    groups.push_back(group);
  }
  return groups;
}

Reference gradients_of_groups(const Problem& p, const Views& views) {
  const std::vector<Group> groups = some_groups(p, views);
  std::vector<oracle::Gradients> gradients(groups.size());
  std::vector<oracle::Answers> same_precision(groups.size());
  oracle::for_each(static_cast<int64_t>(groups.size()), [&](int64_t i) {
    const GroupProblem part = problem_of(p, views, groups[static_cast<size_t>(i)]);
    gradients[static_cast<size_t>(i)] = oracle::compute_gradients(part.problem, part.views);
    same_precision[static_cast<size_t>(i)] = oracle::compute_same_precision(part.problem, part.views);
  });

  Reference r = written_tensors(p);
  for (Expected& expected : r) {
    const Tensor& tensor = *expected.tensor;
    expected.largest_lse = largest_lse(p, views);
    if (tensor.view == &Views::grad_sink) continue;
    const size_t t = index_of(tensor.view), dim = static_cast<size_t>(tensor.shape(p).dim);
    const std::vector<Source> sources = sources_of(p, views, groups, tensor);
    for (auto* const values : {&expected.exact, &expected.same_precision, &expected.rounded, &expected.summed})
      values->reserve(sources.size() * dim);
    for (const auto& [id, g, begin] : sources) {
      expected.rows.push_back(id);
      const auto append = [&, at = static_cast<std::ptrdiff_t>(begin), n = static_cast<std::ptrdiff_t>(dim)](
                              std::vector<double>& to, const std::vector<double>& from) {
        to.insert(to.end(), from.begin() + at, from.begin() + at + n);
      };
      append(expected.exact, gradients[g].exact[t]);
      append(expected.same_precision, same_precision[g][t]);
      append(expected.rounded, gradients[g].rounded[t]);
      append(expected.summed, gradients[g].summed[t]);
    }
  }
  return r;
}

}  // namespace froghopper::check
