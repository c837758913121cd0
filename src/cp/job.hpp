// SPDX-License-Identifier: Apache-2.0
// cp: the attention over all ranks' rows as the planner sees it, and which rows each rank holds.
#pragma once
#include <froghopper/cp.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/base/result.hpp"

namespace froghopper::cp {

constexpr int64_t most_ranks = 4096;
constexpr size_t most_documents = 64;  // of an all-to-all, where each is divided

struct Range {
  int64_t begin = 0, end = 0;
  int64_t rows() const { return end - begin; }
  bool empty() const { return end <= begin; }
};

inline Range common(Range a, Range b) { return {std::max(a.begin, b.begin), std::min(a.end, b.end)}; }

// How an all-gather overlaps: keys of other ranks arrive in so many chunks, while calls on those that are there merge
// into one part of share of the rows that may merge. 0 chunks: all keys arrive before the calls, and none merge.
struct Chunks {
  int64_t count = 0, share = 1;
};

// A contradiction-free fh_cp_problem with every default filled in.
struct Job {
  fh_problem whole;  // with the windows that causal means, and dim_v
  int64_t ranks = 1;
  fh_cp_scheme scheme = FH_CP_AUTO;
  fh_cp_layout layout = FH_CP_CONTIGUOUS;
  bool layout_is_open = false;  // layout is what settle_layout has chosen
  fh_dtype out = FH_BF16;
  int32_t check_interval = 1;
  int64_t ranks_per_host = 1;
  uint64_t workspace_limit = 0;
  bool peer_copies = false;
  int64_t heads_ranks = 0;  // of a grid: ranks that exchange heads; 0: not chosen, or no grid
  Chunks chunks;            // of an all-gather
  int64_t members = 1;      // so many neighbours' shards together are one shard of this job, see grid.hpp
  fh_cp_topology topology = fh_cp_topology_init();
  std::optional<Chunks> set_chunks;  // by the environment, where there can be any
  std::string topology_from;         // who has given it; empty: nobody
  std::vector<int64_t> documents;    // where each begins, and the end of the last; empty: the rows are one sequence

  bool backward() const { return whole.op == FH_BACKWARD; }
  bool rounds() const { return out != FH_F32; }
  int64_t rows() const { return whole.seq_q; }
  size_t document_count() const { return documents.empty() ? 0 : documents.size() - 1; }
  bool packed() const { return !documents.empty(); }
  bool by_document() const { return layout == FH_CP_BY_DOCUMENT; }
  bool kv_has_8_bits() const { return whole.dtype_kv == FH_E4M3 || whole.dtype_kv == FH_E5M2; }
  int64_t element() const { return whole.dtype == FH_F32 ? 4 : 2; }       // bytes of q
  int64_t kv_element() const { return kv_has_8_bits() ? 1 : element(); }  // of k and v
  int64_t out_element() const { return out == FH_F32 ? 4 : 2; }
};

// The job, or the first thing about the problem that cannot be, in the user's names.
Result<Job> job_of(const fh_cp_problem& problem);

// Chooses the layout that FH_CP_LAYOUT_AUTO stands for, where it is open. It depends on the scheme that is asked for.
void settle_layout(Job& job);

// The rows that a rank holds, in order; none empty. At most two ranges, no two touching; or of each document.
std::vector<Range> ranges_of(const Job& job, int64_t rank);

// Those of FH_CP_BY_DOCUMENT, of so many ranks. They end where their document ends.
std::vector<Range> ranges_by_document(const Job& job, int64_t ranks, int64_t rank);

inline int64_t rows_of(const std::vector<Range>& ranges) {
  int64_t sum = 0;
  for (const Range& range : ranges) sum += range.rows();
  return sum;
}

// Some ranks, which are the same ones whoever asks: all ranks choose alike.
std::vector<int64_t> looked_at(const Job& job);

// Pairs of a query and a key that it attends to, of the ranks that are looked at, over the mean of all ranks. 1 and 1
// where there are no pairs.
struct Balance {
  double least, most;
};
Balance balance_of(const Job& job);

}  // namespace froghopper::cp
