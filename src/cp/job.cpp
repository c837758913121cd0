// SPDX-License-Identifier: Apache-2.0
// cp: what a user describes becomes a Job, or a message about what cannot be.
#include "src/cp/job.hpp"

#include <array>
#include <cstddef>
#include <cstring>

#include "src/base/counted.hpp"
#include "src/base/sized.hpp"
#include "src/base/text.hpp"
#include "src/cp/chunks.hpp"
#include "src/cp/enumerators.hpp"
#include "src/cp/errors.hpp"
#include "src/cp/grid.hpp"
#include "src/cp/schemes.hpp"
#include "src/cp/time.hpp"

namespace froghopper::cp {
namespace {

constexpr double most_work = 1.1;  // of a rank, over the mean, that FH_CP_LAYOUT_AUTO leaves to a zigzag

Failure refused(fh_status status, std::string text) { return Failure{status, std::move(text)}; }

// Options of the whole problem that no scheme takes over a border between ranks.
const char* unsupported_option(const fh_problem& p) {
  if (p.seqused) return "seqused";
  if (p.accumulate) return "accumulate";
  if (p.phase != FH_PHASE_NONE) return "phase";
  if (p.attention_chunk) return "attention_chunk";
  if (p.page_size) return "page_size";
  if (p.max_logit) return "max_logit";
  if (p.invariant) return "invariant";
  if (p.gate) return "gate";
  if (p.smooth) return "smooth";
  if (p.scale_tokens) return "scale_tokens";
  if (p.scale_rows) return "scale_rows";
  if (p.scale_v_columns) return "scale_v_columns";
  return nullptr;
}

Result<void> check_whole(const fh_problem& p) {
  if (p.op != FH_FORWARD && p.op != FH_BACKWARD)
    return refused(FH_UNSUPPORTED, text("whole->op is {}, but must be FH_FORWARD or FH_BACKWARD.", c_name(p.op)));
  if (p.dtype != FH_F16 && p.dtype != FH_BF16 && p.dtype != FH_F32)
    return refused(FH_UNSUPPORTED, text("whole->dtype is {}, but must be FH_F16, FH_BF16 or FH_F32. Of 8 bits "
                                        "only k and v may be: whole->dtype_kv.",
                                        c_name(p.dtype)));
  const bool same_type = p.dtype_kv == FH_USUAL || p.dtype_kv == p.dtype;
  if (!same_type && p.dtype_kv != FH_E4M3 && p.dtype_kv != FH_E5M2)
    return refused(
        FH_UNSUPPORTED,
        text("whole->dtype_kv is {}, but must be FH_E4M3, FH_E5M2 or FH_USUAL, the type of q.", c_name(p.dtype_kv)));
  if (!same_type && p.op == FH_BACKWARD)
    return refused(FH_UNSUPPORTED,
                   "whole->dtype_kv has 8 bits, but k and v of a backward pass must have the type of q. Set it to "
                   "FH_USUAL.");
  if (p.dtype_o != FH_USUAL && p.dtype_o != p.dtype)
    return refused(FH_UNSUPPORTED,
                   text("whole->dtype_o is {}, but must be FH_USUAL, as dtype_out of fh_cp_problem says the type of "
                        "results. Set it to FH_USUAL, and dtype_out to FH_F32 for results that are not rounded.",
                        c_name(p.dtype_o)));
  // What one rank demands of the same problem.
  if (const fh_status status = fh_problem_print(&p, nullptr, 0, nullptr); status != FH_OK)
    return refused(status, text("of whole, {}", words_of_library()));
  if (p.varlen)
    return refused(
        FH_UNSUPPORTED,
        "whole->varlen is set, but documents over ranks are described by fh_cp_problem itself. Set documents "
        "and cu_seqlens there, and let whole be one sequence of all rows.");
  if (const char* option = unsupported_option(p))
    return refused(FH_UNSUPPORTED,
                   text("whole->{} is set, and it does not go over ranks yet. Leave it out, or run on "
                        "one rank with froghopper itself.",
                        option));
  if (p.seq_q != p.seq_kv)
    return refused(FH_UNSUPPORTED, text("whole->seq_q is {} and seq_kv {}, but must be equal: rows of q, k and v are "
                                        "spread alike. Set both to the number of rows of all ranks.",
                                        p.seq_q, p.seq_kv));
  const double most =
      static_cast<double>(p.batch) * static_cast<double>(p.seq_q) * static_cast<double>(p.heads_q) * 1024;
  if (most > 0x1p56)
    return refused(FH_UNSUPPORTED,
                   text("whole has batch {}, seq {} and heads_q {}: more than 2^46 rows, whose places do "
                        "not fit into 64 bits. Split the batch.",
                        p.batch, p.seq_q, p.heads_q));
  return {};
}

// Of an end of a document that only two ends of 32 bits can be.
std::string two_in_one(int64_t place, int64_t end, int64_t rows) {
  const int64_t first = end & UINT32_MAX, second = end >> 32;
  if (second < 1 || first > second || second > rows) return {};
  return text(
      "cu_seqlens[{}] is {}, which looks like two numbers of 32 bits, {} and {}, but cu_seqlens are int64, not "
      "int32. "
      "Give an array of int64.",
      place, end, first, second);
}

// What must hold of the documents of one row of `rows` tokens, in the order in which a user would look.
Result<void> check_documents(const fh_cp_problem& p, const fh_problem& whole) {
  if (p.documents < 1)
    return refused(
        FH_INVALID_PROBLEM,
        text("documents is {}, but must be 1 or more with cu_seqlens. Set it to the number of documents, or "
             "cu_seqlens to NULL.",
             p.documents));
  if (whole.batch != 1)
    return refused(FH_UNSUPPORTED,
                   text("whole->batch is {}, but must be 1 with cu_seqlens: documents are packed into one sequence. "
                        "Plan each sequence by itself.",
                        whole.batch));
  if (whole.seq_q > INT32_MAX)
    return refused(
        FH_UNSUPPORTED,
        text("whole->seq_q is {}, but must be at most 2147483647 with cu_seqlens, whose places in a call have "
             "32 bits. Pack fewer documents.",
             whole.seq_q));
  const int64_t* const ends = p.cu_seqlens;
  for (int64_t i = 0; i <= p.documents; ++i)
    if (std::string wrong = two_in_one(i, ends[i], whole.seq_q); !wrong.empty())
      return refused(FH_INVALID_PROBLEM, std::move(wrong));
  if (ends[0] != 0)
    return refused(
        FH_INVALID_PROBLEM,
        text("cu_seqlens[0] is {}, but must be 0: the first document begins at row 0. Set it to 0.", ends[0]));
  for (int64_t i = 0; i < p.documents; ++i)
    if (ends[i + 1] < ends[i])
      return refused(
          FH_INVALID_PROBLEM,
          text("cu_seqlens falls from {} to {} after document {}, but must rise: documents lie end to end. "
               "Let it rise.",
               ends[i], ends[i + 1], i));
  if (ends[p.documents] != whole.seq_q)
    return refused(
        FH_INVALID_PROBLEM,
        text("cu_seqlens[{}] is {}, but must be {}, the rows of all ranks: each row is in a document. Let the "
             "last document end there.",
             p.documents, ends[p.documents], whole.seq_q));
  return {};
}

std::string rule_of_results(fh_dtype whole) {
  if (whole == FH_F32)
    return "whole->dtype is FH_F32, and its results are not rounded to another type. Set it to FH_USUAL.";
  return text("results have whole->dtype, {}, or are not rounded. Set it to FH_USUAL for {}, or to FH_F32.",
              c_name(whole), c_name(whole));
}

// Last of all, as the way out depends on everything else.
Result<void> check_heads_ranks(const Job& job) {
  if (job.heads_ranks == 0) return {};
  if (job.scheme != FH_CP_AUTO && !on_grid(job.scheme))
    return refused(FH_INVALID_PROBLEM,
                   text("heads_ranks is {}, but must be 0 with {}, which has no groups of ranks. {}", job.heads_ranks,
                        c_name(job.scheme), way_out(job)));
  if (job.heads_ranks < 0 || job.ranks % job.heads_ranks != 0)
    return refused(FH_INVALID_PROBLEM, text("heads_ranks is {}, but must divide ranks, {}. {}", job.heads_ranks,
                                            job.ranks, way_out(job)));
  return {};
}

// What the layout gives one of so many ranks: ranges that are not empty.
std::vector<Range> chunks_of(const Job& job, int64_t ranks, int64_t rank) {
  if (job.by_document()) return ranges_by_document(job, ranks, rank);
  const int64_t rows = job.rows();
  const int64_t chunks = job.layout == FH_CP_ZIGZAG ? 2 * ranks : ranks;
  // Without overflow: rows = whole chunks' rows and a rest that is spread.
  const auto cut = [&](int64_t i) { return rows / chunks * i + rows % chunks * i / chunks; };
  std::vector<Range> ranges{{cut(rank), cut(rank + 1)}};
  if (job.layout == FH_CP_ZIGZAG) ranges.push_back({cut(chunks - 1 - rank), cut(chunks - rank)});
  std::erase_if(ranges, [](const Range& range) { return range.empty(); });
  return ranges;
}

bool begins_document(const Job& job, int64_t row) {
  return std::binary_search(job.documents.begin(), job.documents.end(), row);
}

}  // namespace

Result<Job> job_of(const fh_cp_problem& given) {
  const Result<fh_cp_problem> known =
      whole_struct(&given, fh_cp_problem_init(), offsetof(fh_cp_problem, rank) + sizeof given.rank,
                   FH_INVALID_PROBLEM, "fh_cp_problem");
  if (!known) return known.failure();
  const fh_cp_problem& p = *known;
  if (p.whole == nullptr)
    return refused(FH_INVALID_PROBLEM, "whole must be the problem of all rows, but is NULL. Set it.");
  if (p.ranks < 1 || p.ranks > most_ranks)
    return refused(FH_INVALID_PROBLEM, text("ranks is {}, but must be 1 to {}.", p.ranks, most_ranks));
  if (p.rank < 0 || p.rank >= p.ranks)
    return refused(FH_INVALID_PROBLEM,
                   text("rank is {}, but must be 0 to ranks - 1, which is {}.", p.rank, p.ranks - 1));
  for (std::string& wrong : std::array{no_name(p.scheme), no_name(p.layout), no_name(p.transfers)})
    if (!wrong.empty()) return refused(FH_INVALID_PROBLEM, std::move(wrong));
  if (p.layout == FH_CP_BY_DOCUMENT && p.cu_seqlens == nullptr)
    return refused(FH_INVALID_PROBLEM,
                   "layout is FH_CP_BY_DOCUMENT, but cu_seqlens is NULL. Set documents and cu_seqlens, or use "
                   "FH_CP_ZIGZAG.");
  if (p.transfers == FH_CP_PEER_COPIES && p.ranks_per_host != 0 && p.ranks_per_host < p.ranks)
    return refused(
        FH_UNSUPPORTED,
        text("transfers is FH_CP_PEER_COPIES, which takes all ranks on one host, but ranks_per_host is {} of "
             "{} ranks. Use FH_CP_SEND_RECV.",
             p.ranks_per_host, p.ranks));
  if (p.check_interval < -1)
    return refused(
        FH_INVALID_PROBLEM,
        text("check_interval must be -1 or more, but is {}. Set it to 0 for every call.", p.check_interval));
  if (p.ranks_per_host < 0)
    return refused(FH_INVALID_PROBLEM,
                   text("ranks_per_host must be 0 or more, but is {}. Set it to 0 for all.", p.ranks_per_host));
  const Result<fh_problem> rows_of_all =
      whole_struct(p.whole, fh_problem_init(), offsetof(fh_problem, total_q), FH_INVALID_PROBLEM, "fh_problem");
  if (!rows_of_all) return rows_of_all.failure();
  Job job;
  job.whole = *rows_of_all;
  if (Result<void> checked = check_whole(job.whole); !checked) return checked.failure();
  if (p.cu_seqlens != nullptr) {
    if (Result<void> checked = check_documents(p, job.whole); !checked) return checked.failure();
    job.documents.assign(p.cu_seqlens, p.cu_seqlens + p.documents + 1);
  } else if (given.size >= offsetof(fh_cp_problem, cu_seqlens) + sizeof given.cu_seqlens && p.documents != 0) {
    return refused(FH_INVALID_PROBLEM,
                   text("documents is {}, but cu_seqlens is NULL. Set cu_seqlens, or documents to 0.", p.documents));
  }
  fh_problem& whole = job.whole;
  if (whole.dim_v == 0) whole.dim_v = whole.dim_qk;
  if (whole.causal) whole.window_right = 0, whole.causal = 0;
  // check_whole takes no other type of o, and calls that merge refuse it by name. Ranks may name types or not.
  whole.dtype_o = FH_USUAL;
  if (!job.kv_has_8_bits()) whole.dtype_kv = FH_USUAL;
  whole.align = FH_BOTTOM_RIGHT;  // as many queries as keys: both mean the same
  job.ranks = p.ranks;
  job.scheme = p.scheme;
  job.heads_ranks = p.heads_ranks;
  job.out = p.dtype_out == FH_USUAL ? whole.dtype : p.dtype_out;
  if (job.out != whole.dtype && job.out != FH_F32)
    return refused(c_name(p.dtype_out).starts_with("FH_") ? FH_UNSUPPORTED : FH_INVALID_PROBLEM,
                   text("dtype_out is {}, but {}", c_name(p.dtype_out), rule_of_results(whole.dtype)));
  job.check_interval = p.check_interval == 0 ? 1 : p.check_interval;
  job.ranks_per_host = p.ranks_per_host == 0 ? p.ranks : p.ranks_per_host;
  job.workspace_limit = p.workspace_limit;
  job.peer_copies = p.transfers == FH_CP_PEER_COPIES;
  job.layout = p.layout, job.layout_is_open = p.layout == FH_CP_LAYOUT_AUTO;
  settle_layout(job);
  if (Result<void> taken = take_topology(p, job); !taken) return taken.failure();
  if (Result<void> taken = take_chunks(job); !taken) return taken.failure();
  if (Result<void> checked = check_heads_ranks(job); !checked) return checked.failure();
  return job;
}

std::vector<Range> ranges_of(const Job& job, int64_t rank) {
  std::vector<Range> all, held;
  for (int64_t i = 0; i < job.members; ++i)
    for (const Range& range : chunks_of(job, job.ranks * job.members, rank * job.members + i)) all.push_back(range);
  std::sort(all.begin(), all.end(), [](Range a, Range b) { return a.begin < b.begin; });
  for (const Range& range : all) {
    const bool goes_on = !held.empty() && held.back().end == range.begin;
    if (goes_on && !(job.by_document() && begins_document(job, range.begin)))
      held.back().end = range.end;
    else
      held.push_back(range);
  }
  return held;
}

void settle_layout(Job& job) {
  if (!job.layout_is_open) return;
  const bool plain_causal = job.whole.window_right == 0 && job.whole.window_left == FH_ALL;
  job.layout = plain_causal ? FH_CP_ZIGZAG : FH_CP_CONTIGUOUS;
  // The work of an all-to-all does not depend on the layout, and it moves undivided rows in fewer pieces.
  const bool may_divide =
      job.scheme != FH_CP_ALL_TO_ALL && (!on_grid(job.scheme) || job.document_count() <= most_documents);
  if (plain_causal && may_divide && job.packed() && balance_of(job).most > most_work) job.layout = FH_CP_BY_DOCUMENT;
}

}  // namespace froghopper::cp
