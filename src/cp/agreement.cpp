// SPDX-License-Identifier: Apache-2.0
// cp: the fields that ranks compare, each a word of 64 bits, with the user's name for it.
#include "src/cp/agreement.hpp"

#include <algorithm>
#include <bit>
#include <iterator>

#include "src/base/text.hpp"
#include "src/cp/addresses.hpp"
#include "src/cp/digest.hpp"
#include "src/cp/enumerators.hpp"
#include "src/cp/time.hpp"

namespace froghopper::cp {
namespace {

using Shown = std::string (*)(uint64_t);

struct Word {
  std::string name;
  uint64_t value;
  Shown shown;
};

std::string number(uint64_t x) { return text("{}", static_cast<int64_t>(x)); }
std::string bytes(uint64_t x) { return text("{}", x); }
std::string real(uint64_t x) { return text("{}", std::bit_cast<float>(static_cast<uint32_t>(x))); }
std::string long_real(uint64_t x) { return text("{}", std::bit_cast<double>(x)); }
std::string keys(uint64_t x) { return static_cast<int64_t>(x) == FH_ALL ? "FH_ALL" : number(x); }
std::string presence(uint64_t x) { return x != 0 ? "given" : "NULL"; }
std::string device(uint64_t x) { return x != 0 ? "a GPU" : "the CPU"; }
std::string chunks(uint64_t x) { return x == 0 ? "not set" : text("{}/{}", (x - 1) / 64, (x - 1) % 64); }
std::string interval(uint64_t x) { return x == 1 ? "0 or 1" : number(x); }

template <class Enum>
std::string enumerator(uint64_t x) {
  return c_name(static_cast<Enum>(static_cast<int64_t>(x)));
}

Word word(std::string name, int64_t value, Shown shown = number) {
  return {std::move(name), static_cast<uint64_t>(value), shown};
}

int64_t in_one(const Chunks& chunks) { return 1 + 64 * chunks.count + chunks.share; }

// All but documents that the caller gives and that change results, or what moves. Causal masks are windows by now.
std::vector<Word> given_in(const Job& job) {
  const fh_problem& p = job.whole;
  return {word("whole->op", p.op, enumerator<fh_op>),
          word("whole->dtype", p.dtype, enumerator<fh_dtype>),
          word("whole->dtype_kv", p.dtype_kv, enumerator<fh_dtype>),
          word("whole->batch", p.batch),
          word("whole->heads_q", p.heads_q),
          word("whole->heads_kv", p.heads_kv),
          word("whole->seq_q", p.seq_q),
          word("whole->dim_qk", p.dim_qk),
          word("whole->dim_v", p.dim_v),
          word("whole->window_left", p.window_left, keys),
          word("whole->window_right, which is 0 where causal is set,", p.window_right, keys),
          word("whole->scale", std::bit_cast<uint32_t>(p.scale), real),
          word("whole->softcap", std::bit_cast<uint32_t>(p.softcap), real),
          word("whole->sink", p.sink != 0),
          word("whole->alibi", p.alibi != 0),
          word("whole->deterministic", p.deterministic != 0),
          word("ranks", job.ranks),
          word("dtype_out", job.out, enumerator<fh_dtype>),
          word("transfers", job.peer_copies ? FH_CP_PEER_COPIES : FH_CP_SEND_RECV, enumerator<fh_cp_transfers>),
          word("check_interval", job.check_interval, interval),
          word("documents", job.packed() ? static_cast<int64_t>(job.documents.size()) - 1 : 0)};
}

// Follows from all of these where the caller leaves it open.
Word layout_of(const Job& job) { return word("layout", job.layout, enumerator<fh_cp_layout>); }

// What the caller gives to the choice of what `chosen_in` has. It may differ where the choice does not.
std::vector<Word> reasons_in(const fh_cp_plan& plan) {
  const Job& job = plan.job;
  std::vector<Word> words{word("scheme", job.scheme, enumerator<fh_cp_scheme>),
                          word("ranks_per_host", job.ranks_per_host),
                          {"workspace_limit", job.workspace_limit, bytes},
                          word("FROGHOPPER_CP_CHUNKS", job.set_chunks ? in_one(*job.set_chunks) : 0, chunks),
                          word("target", plan.on_gpu, device)};
  for (const auto& [name, figure] : figures_of(job.topology))
    words.push_back({text("topology (or the file of FROGHOPPER_CP_TOPOLOGY): {}", name),
                     std::bit_cast<uint64_t>(figure), long_real});
  return words;
}

std::vector<Word> chosen_in(const Job& job, fh_cp_scheme scheme) {
  return {word(job.scheme == FH_CP_AUTO ? "what FH_CP_AUTO has chosen" : "scheme", scheme, enumerator<fh_cp_scheme>),
          word("heads_ranks", job.heads_ranks), word("the chunks of the all-gather", in_one(job.chunks), chunks)};
}

std::vector<Word> given_to(const fh_cp_tensors& t) {
  return {word("tensors.call", static_cast<int64_t>(t.call)),
          word("tensors.grad_lse", t.grad_lse != nullptr, presence)};
}

// Numbers or rows that must be the same on all ranks, one by one.
struct List {
  std::string name;
  std::vector<uint64_t> values;
  Shown shown;
};

// What the host can read of tensors that all ranks give: lists of heads. On a GPU they are empty, as the host would
// have to wait for the stream.
std::vector<List> shared_by(const fh_cp_plan& plan, const fh_cp_tensors& t) {
  const fh_problem& p = plan.job.whole;
  const Scales scales = scales_of(t);
  const auto list = [&](const char* name, const float* data, int64_t count) {
    List all{name, {}, real};
    const auto bits = [](float x) { return std::bit_cast<uint32_t>(x + 0.0f); };  // 0 and -0 are the same
    if (!plan.on_gpu && data != nullptr) std::transform(data, data + count, std::back_inserter(all.values), bits);
    return all;
  };
  return {list("tensors.sink", t.sink, p.heads_q), list("tensors.alibi_slopes", t.alibi_slopes, p.heads_q),
          list("tensors.scale_k", scales.k, p.heads_kv), list("tensors.scale_v", scales.v, p.heads_kv)};
}

void add(std::vector<uint64_t>& values, const std::vector<Word>& words) {
  for (const Word& one : words) values.push_back(one.value);
}

uint64_t digest_of_first(const List& list, size_t count) {
  return digest_of({list.values.begin(), list.values.begin() + static_cast<std::ptrdiff_t>(count)});
}

size_t first_other(const std::vector<uint64_t>& of_ranks) {
  return static_cast<size_t>(std::ranges::find_if(of_ranks, [&](uint64_t x) { return x != of_ranks.front(); }) -
                             of_ranks.begin());
}

// What a round finds: "" where the word is the same on all ranks.
Result<std::string> compared(const Word& mine, const Round& round) {
  const Result<std::vector<uint64_t>> all = round(mine.value);
  if (!all) return all.failure();
  const size_t other = first_other(*all);
  if (other == all->size()) return std::string();
  return text("{} must be the same on all ranks, but is {} on rank 0 and {} on rank {}. Give all ranks the same.",
              mine.name, mine.shown(all->front()), mine.shown((*all)[other]), other);
}

Result<std::string> compared(const std::vector<Word>& words, const Round& round) {
  for (const Word& mine : words)
    if (Result<std::string> found = compared(mine, round); !found || !found->empty()) return found;
  return std::string();
}

// Of as many values on all ranks. The first that differs is looked for by halves, since there may be thousands.
Result<std::string> compared(const List& list, const Round& round) {
  size_t same = 0, different = list.values.size() + 1;  // so many entries are alike; so many are not, if any
  while (different - same > 1) {
    const size_t middle = (same + different) / 2;
    const Result<std::vector<uint64_t>> all = round(digest_of_first(list, middle));
    if (!all) return all.failure();
    (first_other(*all) == all->size() ? same : different) = middle;
  }
  if (different > list.values.size()) return std::string();
  return compared(Word{text("{}[{}]", list.name, same), list.values[same], list.shown}, round);
}

// Where a rank is on a GPU, its lists are empty: as long as all ranks have some, they are as long on all.
Result<std::string> compared_lists(const fh_cp_plan& plan, const fh_cp_tensors& tensors, const Round& round) {
  for (const List& list : shared_by(plan, tensors)) {
    const Result<std::vector<uint64_t>> lengths = round(list.values.size());
    if (!lengths) return lengths.failure();
    if (lengths->front() == 0 || first_other(*lengths) != lengths->size()) continue;
    if (Result<std::string> found = compared(list, round); !found || !found->empty()) return found;
  }
  return std::string();
}

List ends_of_documents(const Job& job) {
  return {"cu_seqlens", {job.documents.begin(), job.documents.end()}, number};
}

}  // namespace

uint64_t digest_of_plan(const Job& job, fh_cp_scheme scheme) {
  std::vector<uint64_t> values;
  add(values, given_in(job));
  add(values, {layout_of(job)});
  add(values, chosen_in(job, scheme));
  for (const int64_t begin : job.documents) values.push_back(static_cast<uint64_t>(begin));
  return digest_of(values);
}

uint64_t digest_of_run(const fh_cp_plan& plan, const fh_cp_tensors& tensors) {
  std::vector<uint64_t> values{plan.digest};
  add(values, given_to(tensors));
  for (const List& list : shared_by(plan, tensors)) values.push_back(digest_of(list.values));
  return digest_of(values);
}

Result<std::string> difference(const fh_cp_plan& plan, const fh_cp_tensors& tensors, const Round& round) {
  Result<std::string> found = compared(given_to(tensors), round);
  if (found && found->empty()) found = compared(given_in(plan.job), round);
  if (found && found->empty()) found = compared(ends_of_documents(plan.job), round);
  if (found && found->empty()) found = compared_lists(plan, tensors, round);
  if (found && found->empty()) found = compared(layout_of(plan.job), round);
  if (found && found->empty()) found = compared(reasons_in(plan), round);
  if (found && found->empty()) found = compared(chosen_in(plan.job, plan.scheme), round);
  return found;
}

}  // namespace froghopper::cp
