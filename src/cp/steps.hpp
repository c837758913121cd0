// SPDX-License-Identifier: Apache-2.0
// cp: what a rank does, as a list of plain steps. The planner writes it, and it is run, timed and printed.
#pragma once
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "src/cp/job.hpp"

namespace froghopper::cp {

enum class Buffer {
  none,
  workspace,
  q,
  k,
  v,
  o,
  lse,
  sink,
  slopes,
  grad_o,
  grad_lse,
  grad_q,
  grad_k,
  grad_v,
  grad_sink,
  tables,
  scale_k,
  scale_v
};
constexpr size_t buffer_count = static_cast<size_t>(Buffer::scale_v) + 1;

// Parts of the workspace begin at multiples of this, as fh_plan_run demands of its workspace.
template <class Bytes>
constexpr Bytes aligned(Bytes bytes) {
  constexpr Bytes alignment = 256;
  return (bytes + alignment - 1) / alignment * alignment;
}

// A place in a buffer, in bytes from its beginning.
struct Place {
  Buffer buffer = Buffer::none;
  int64_t bytes = 0;
  Place operator+(int64_t more) const { return {buffer, bytes + more}; }
};

// only_with: the step or transfer is left out where the caller has not given that tensor.
struct Transfer {
  int64_t peer;
  Place place;
  int64_t bytes;
  Buffer only_with = Buffer::none;
  int64_t peer_offset = 0;  // of a send, with Job::peer_copies: where in the peer's workspace the data go
};
struct Exchange {
  const char* what;
  std::vector<Transfer> sends, recvs;
};
struct Wait {};  // for the oldest exchange that was not waited for
struct Fill {
  Place to;
  uint32_t value;
  int64_t words;
};
struct Copy {
  Place to;
  int64_t to_pitch;
  Place from;
  int64_t from_pitch, bytes, rows;
  Buffer only_with = Buffer::none;
};
struct Add {
  Place into, from;
  int64_t count;
};
struct Convert {
  Place to, from;
  int64_t count;
};
struct Spread {
  Place to, from;
  int64_t rows, columns;
};

// A dense tensor's part: rows from `place` on, of a buffer of which `batch_rows` rows are one sequence.
struct Operand {
  Place place;
  int64_t batch_rows = 0;
};
struct Attend {
  size_t problem;            // in Steps.problems
  int64_t rows;              // queries that it computes, of one head
  double pairs;              // query rows times keys that they attend to, of one head of one sequence
  int64_t row = 0, key = 0;  // where they are in the whole sequence, to be printed
  Operand q, k, v, o, o_sum, grad_o, grad_q, grad_k, grad_v;
  Place lse, grad_lse;
  int64_t lse_rows = 0;  // values from one head of lse to the next, where these are not the call's rows
  Place sink, slopes, grad_sink;
  Place scale_k, scale_v;             // of the first head, where k and v have 8 bits
  Place cu_seqlens_q, cu_seqlens_kv;  // of several documents
  Place seqused_q, seqused_kv;        // where rows or keys lie between them that are not theirs
  // Which workspace of attention's own it has together with the other calls of its rows, which are its phases; -1: what
  // is left in it does not matter.
  int64_t slot = -1;
};

using Step = std::variant<Exchange, Wait, Fill, Copy, Add, Convert, Spread, Attend>;

struct Steps {
  std::vector<Step> steps;
  std::vector<fh_problem> problems;
  std::vector<int32_t> tables;  // cu_seqlens of calls, one after the other
  int64_t workspace = 0;        // bytes, without what attention itself needs
  int64_t slots = 0;            // workspaces of attention's own that several calls have together
  int64_t bytes_in = 0, bytes_out = 0;
};

Steps ring_steps(const Job& job, int64_t rank);
Steps gather_steps(const Job& job, int64_t rank);
Steps gather_in_chunks_steps(const Job& job, int64_t rank);
Steps all_to_all_steps(const Job& job, fh_cp_scheme scheme, int64_t rank);
Steps steps_of(const Job& job, fh_cp_scheme scheme, int64_t rank);

// Sets the sends' peer_offset.
Result<void> find_peer_places(const Job& job, fh_cp_scheme scheme, int64_t rank, Steps& steps);

}  // namespace froghopper::cp
