// SPDX-License-Identifier: Apache-2.0
// cp: the C functions of cp.h but those of NCCL and CUDA.
#include <cstddef>
#include <exception>

#include "src/base/text.hpp"
#include "src/cp/errors.hpp"
#include "src/cp/plan.hpp"
#include "src/cp/ranges.hpp"
#include "src/cp/time.hpp"

namespace froghopper::cp {
namespace {

std::string& last_error() {
  thread_local std::string text;
  return text;
}

}  // namespace

fh_status failed(const char* call, const Failure& failure) noexcept {
  try {
    last_error() = text("{}: {}", call, failure.text);
  } catch (const std::exception&) { last_error().clear(); }
  return failure.status;
}

}  // namespace froghopper::cp

using namespace froghopper;
using namespace froghopper::cp;

fh_status fh_cp_plan_create(const fh_cp_problem* problem, const char* target, fh_cp_plan** plan) try {
  if (problem == nullptr || plan == nullptr)
    return failed("fh_cp_plan_create", {FH_INVALID_PROBLEM, "problem or plan is NULL."});
  *plan = nullptr;
  Result<std::unique_ptr<fh_cp_plan>> made = make_plan(*problem, target);
  if (!made) return failed("fh_cp_plan_create", made.failure());
  *plan = made->release();
  return FH_OK;
} catch (const std::exception& e) { return failed("fh_cp_plan_create", {FH_INTERNAL, e.what()}); }

void fh_cp_plan_destroy(fh_cp_plan* plan) { delete plan; }

fh_status fh_cp_plan_rows(const fh_cp_plan* plan, int64_t rank, fh_cp_range* ranges, int64_t capacity,
                          int64_t* count) try {
  if (plan == nullptr || count == nullptr || (ranges == nullptr && capacity > 0))
    return failed("fh_cp_plan_rows", {FH_INVALID_PROBLEM, "plan, ranges or count is NULL."});
  if (rank < 0 || rank >= plan->job.ranks)
    return failed("fh_cp_plan_rows",
                  {FH_INVALID_PROBLEM, text("rank is {}, but must be 0 to {}.", rank, plan->job.ranks - 1)});
  const std::vector<Range> all = joined(ranges_of(plan->job, rank));
  *count = static_cast<int64_t>(all.size());
  for (int64_t i = 0; i < *count && i < capacity; ++i)
    ranges[i] = {all[static_cast<size_t>(i)].begin, all[static_cast<size_t>(i)].end};
  return FH_OK;
} catch (const std::exception& e) { return failed("fh_cp_plan_rows", {FH_INTERNAL, e.what()}); }

fh_status fh_cp_topology_parse(const char* text, fh_cp_topology* topology) try {
  if (text == nullptr || topology == nullptr)
    return failed("fh_cp_topology_parse", {FH_INVALID_PROBLEM, "text or topology is NULL. Give both."});
  const Result<fh_cp_topology> read = parsed_topology(text);
  if (!read) return failed("fh_cp_topology_parse", read.failure());
  *topology = *read;
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
  if (problem == nullptr) return "problem is NULL";
  const Result<std::unique_ptr<fh_cp_plan>> made = make_plan(*problem, target);
  said = made ? (*made)->text : made.failure().text;
  return said.c_str();
} catch (const std::exception&) { return "out of host memory"; }

fh_status fh_cp_plan_run(const fh_cp_plan* plan, const fh_cp_transport* transport, const fh_cp_memory* memory,
                         const fh_cp_tensors* tensors, void* workspace, uint64_t workspace_bytes, void* stream) try {
  if (plan == nullptr || tensors == nullptr)
    return failed("fh_cp_plan_run", {FH_INVALID_TENSOR, "plan or tensors is NULL."});
  const Result<void> done = run(*plan, transport, memory, *tensors, workspace, workspace_bytes, stream);
  return done ? FH_OK : failed("fh_cp_plan_run", done.failure());
} catch (const std::exception& e) { return failed("fh_cp_plan_run", {FH_INTERNAL, e.what()}); }

const char* fh_cp_last_error(void) { return last_error().c_str(); }
const char* fh_cp_scheme_name(fh_cp_scheme scheme) { return name_of(scheme); }
