// SPDX-License-Identifier: Apache-2.0
// cp: how unequal the work of ranks is where documents are divided.
#include "src/cp/documents.hpp"

namespace froghopper::cp {
namespace {

double pairs_of(const Job& job, const std::vector<Range>& rows) {
  double sum = 0;
  for (const Run& run : runs_of(job, rows, {{0, job.rows()}}, false)) sum += run.pairs();
  return sum;
}

}  // namespace

std::vector<int64_t> looked_at(const Job& job) {
  std::vector<int64_t> ranks{0};
  if (job.ranks > 8) return {0, job.ranks / 2, job.ranks - 1};
  for (int64_t rank = 1; rank < job.ranks; ++rank) ranks.push_back(rank);
  return ranks;
}

Balance balance_of(const Job& job) {
  const double all = job.rows() > 0 ? pairs_of(job, {{0, job.rows()}}) : 0;
  if (all == 0) return {1, 1};
  Balance balance{static_cast<double>(job.ranks), 0};
  for (const int64_t rank : looked_at(job)) {
    const double share = pairs_of(job, ranges_of(job, rank)) * static_cast<double>(job.ranks) / all;
    balance = {std::min(balance.least, share), std::max(balance.most, share)};
  }
  return balance;
}

}  // namespace froghopper::cp
