// SPDX-License-Identifier: Apache-2.0
// cp: the C functions of cp.h but those of NCCL and CUDA.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <exception>
#include <utility>

#include "src/base/counted.hpp"
#include "src/base/text.hpp"
#include "src/cp/errors.hpp"
#include "src/cp/plan.hpp"
#include "src/cp/ranges.hpp"
#include "src/cp/time.hpp"

namespace froghopper::cp {
namespace {

// Of this thread. The failure before the last is kept for who passes a call and fh_cp_last_error() to one printf: C may
// read the text before the call.
struct Said {
  std::string error, older;
};

Said& said() {
  thread_local Said one;
  return one;
}

}  // namespace

fh_status failed(const char* call, const Failure& failure) noexcept {
  try {
    std::string now = text("{}: {}", call, failure.text);
    said().older = std::exchange(said().error, std::move(now));
  } catch (const std::exception&) { said().error.clear(); }
  return failure.status;
}

fh_status is_null(const char* call, const char* argument, fh_status status) {
  return failed(call, {status, text("{0} must point to your {0}, but is NULL. Set it.", argument)});
}

fh_status has_no_place(const char* call, const char* result, fh_status status) {
  return failed(call, {status, text("{} must say where the result goes, but is NULL. Give the address of a variable.",
                                    result)});
}

std::string words_of_library() {
  const std::string said = fh_last_error();
  const size_t end = said.starts_with("fh_") ? said.find(": ") : std::string::npos;
  return end == std::string::npos ? said : said.substr(end + 2);
}

}  // namespace froghopper::cp

using namespace froghopper;
using namespace froghopper::cp;

fh_status fh_cp_plan_create(const fh_cp_problem* problem, const char* target, fh_cp_plan** plan) try {
  if (plan != nullptr) *plan = nullptr;  // a caller that destroys it at a common exit may do so after a failure
  if (problem == nullptr) return is_null("fh_cp_plan_create", "problem");
  if (plan == nullptr) return has_no_place("fh_cp_plan_create", "plan");
  Result<std::unique_ptr<fh_cp_plan>> made = make_plan(*problem, target);
  if (!made) return failed("fh_cp_plan_create", made.failure());
  *plan = made->release();
  return FH_OK;
} catch (const std::exception& e) { return failed("fh_cp_plan_create", {FH_INTERNAL, e.what()}); }

void fh_cp_plan_destroy(fh_cp_plan* plan) { delete plan; }

fh_status fh_cp_plan_rows(const fh_cp_plan* plan, int64_t rank, fh_cp_range* ranges, int64_t capacity,
                          int64_t* count) try {
  constexpr const char* call = "fh_cp_plan_rows";
  if (plan == nullptr) return is_null(call, "plan");
  if (count == nullptr) return has_no_place(call, "count");
  if (ranges == nullptr && capacity > 0)
    return failed(call,
                  {FH_INVALID_PROBLEM, text("ranges must have room for {}, the capacity, but is NULL. Set it, or "
                                            "let capacity be 0.",
                                            counted(capacity, "range"))});
  if (capacity < 0)
    return failed(call, {FH_INVALID_PROBLEM, text("capacity is {}, but counts ranges. Use 0 or more.", capacity)});
  if (rank < 0 || rank >= plan->job.ranks)
    return failed(call, {FH_INVALID_PROBLEM, text("rank is {}, but must be 0 to {}.", rank, plan->job.ranks - 1)});
  const std::vector<Range> all = joined(ranges_of(plan->job, rank));
  *count = static_cast<int64_t>(all.size());
  for (int64_t i = 0; i < *count && i < capacity; ++i)
    ranges[i] = {all[static_cast<size_t>(i)].begin, all[static_cast<size_t>(i)].end};
  return FH_OK;
} catch (const std::exception& e) { return failed("fh_cp_plan_rows", {FH_INTERNAL, e.what()}); }

// Writes as much as the caller's struct can hold.
fh_status fh_cp_topology_parse(const char* text, fh_cp_topology* topology) try {
  constexpr const char* call = "fh_cp_topology_parse";
  if (text == nullptr) return is_null(call, "text");
  if (topology == nullptr) return is_null(call, "topology");
  if (const Result<fh_cp_topology> given = whole_topology(*topology); !given) return failed(call, given.failure());
  const Result<fh_cp_topology> read = parsed_topology(text);
  if (!read) return failed(call, read.failure());
  const size_t size = topology->size;
  std::memcpy(static_cast<void*>(topology), &*read, std::min(size, sizeof *read));
  topology->size = size;
  return FH_OK;
} catch (const std::exception& e) { return failed("fh_cp_topology_parse", {FH_INTERNAL, e.what()}); }

uint64_t fh_cp_plan_workspace_bytes(const fh_cp_plan* plan) { return plan ? plan->workspace : 0; }
int fh_cp_plan_on_gpu(const fh_cp_plan* plan) { return plan ? plan->on_gpu : 0; }
fh_cp_scheme fh_cp_plan_scheme(const fh_cp_plan* plan) { return plan ? plan->scheme : FH_CP_AUTO; }
fh_cp_layout fh_cp_plan_layout(const fh_cp_plan* plan) { return plan ? plan->job.layout : FH_CP_LAYOUT_AUTO; }
int64_t fh_cp_plan_heads_ranks(const fh_cp_plan* plan) { return plan ? plan->job.heads_ranks : 0; }
uint64_t fh_cp_plan_bytes_in(const fh_cp_plan* plan) {
  return plan ? static_cast<uint64_t>(plan->steps.bytes_in) : 0;
}
uint64_t fh_cp_plan_bytes_out(const fh_cp_plan* plan) {
  return plan ? static_cast<uint64_t>(plan->steps.bytes_out) : 0;
}
const int32_t* fh_cp_plan_tables(const fh_cp_plan* plan, int64_t* count) {
  const bool any = plan != nullptr && !plan->steps.tables.empty();
  if (count != nullptr) *count = any ? static_cast<int64_t>(plan->steps.tables.size()) : 0;
  return any ? plan->steps.tables.data() : nullptr;
}
double fh_cp_plan_seconds(const fh_cp_plan* plan) { return plan ? plan->seconds : 0; }
const char* fh_cp_plan_text(const fh_cp_plan* plan) { return plan ? plan->text.c_str() : ""; }

const char* fh_cp_explain(const fh_cp_problem* problem, const char* target) try {
  thread_local std::string said;
  if (problem == nullptr) return "problem must point to your problem, but is NULL. Set it.";
  const Result<std::unique_ptr<fh_cp_plan>> made = make_plan(*problem, target);
  said = made ? (*made)->text : made.failure().text;
  return said.c_str();
} catch (const std::exception&) { return "out of host memory"; }

fh_status fh_cp_plan_run(const fh_cp_plan* plan, const fh_cp_transport* transport, const fh_cp_memory* memory,
                         const fh_cp_tensors* tensors, void* workspace, uint64_t workspace_bytes, void* stream) try {
  if (plan == nullptr) return is_null("fh_cp_plan_run", "plan");
  if (tensors == nullptr) return is_null("fh_cp_plan_run", "tensors", FH_INVALID_TENSOR);
  const Result<void> done = run(*plan, transport, memory, *tensors, workspace, workspace_bytes, stream);
  return done ? FH_OK : failed("fh_cp_plan_run", done.failure());
} catch (const std::exception& e) { return failed("fh_cp_plan_run", {FH_INTERNAL, e.what()}); }

const char* fh_cp_last_error(void) { return said().error.c_str(); }
const char* fh_cp_scheme_name(fh_cp_scheme scheme) { return name_of(scheme); }
