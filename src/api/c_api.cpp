// SPDX-License-Identifier: Apache-2.0
// api: the functions of froghopper.h. Each checks its pointers, hands over, and keeps what went wrong for
// fh_last_error. No exception gets past here.
#include <algorithm>
#include <cstring>
#include <exception>
#include <new>
#include <utility>

#include "src/api/run.hpp"
#include "src/base/interrupt.hpp"
#include "src/base/log.hpp"
#include "src/base/per_thread.hpp"
#include "src/base/text.hpp"
#include "src/problem/line_words.hpp"
#include "src/runtime/runtime.hpp"

namespace froghopper {
namespace {

// What fh_last_error and fh_explain have returned to this thread. The failure before the last is kept for who passes a
// call and fh_last_error() to one printf: C may read the text before the call.
struct Said {
  std::string error, older, explanation;
};
PerThread<Said> said;

fh_status failed(const char* call, const Failure& failure) {
  Said* const mine = said.make();
  if (!mine) return failure.status;
  std::string now = text("{}: {}", call, failure.text);
  mine->older = std::exchange(mine->error, std::move(now));
  return failure.status;
}

// Runs the body of a call: a Failure becomes its status, an exception FH_INTERNAL.
template <class Body>
fh_status answer(const char* call, Body body) noexcept {
  try {
    try {
      const Result<void> result = body();
      return result ? FH_OK : failed(call, result.failure());
    } catch (const std::bad_alloc&) {
      return failed(call, {FH_INTERNAL, "host memory ran out. Free some and call again."});
    } catch (const std::exception& error) {
      return failed(call, {FH_INTERNAL, text("{}. This is a bug of froghopper; please report it.", error.what())});
    }
  } catch (...) {  // Not even the message could be made. This one is short enough to need no memory.
    if (Said* const mine = said.make()) mine->error = "out of memory";
    return FH_INTERNAL;
  }
}

Failure is_null(const char* argument, fh_status status = FH_INVALID_PROBLEM) {
  return {status, text("{0} must point to your {0}, but is NULL. Set it.", argument)};
}

Failure has_no_place(const char* result) {
  return {FH_INVALID_PROBLEM,
          text("{} must say where the result goes, but is NULL. Give the address of a variable.", result)};
}

Result<void> create(const fh_problem* user, const char* target, fh_plan** plan) {
  if (plan) *plan = nullptr;  // a caller that destroys it at a common exit may do so after a failure
  if (!user) return is_null("problem");
  if (!plan) return has_no_place("plan");
  auto problem = Problem::from(*user);
  if (!problem) return problem.failure();
  auto where = read_target(target);
  if (!where) return where.failure();
  auto made = make_plan(*problem, *where);
  if (!made) return made.failure();
  *plan = new fh_plan(std::move(*made));
  return {};
}

Result<void> attention(const fh_problem* problem, const char* target, const fh_tensors* tensors, void* workspace,
                       size_t workspace_bytes, void* stream) {
  if (!problem) return is_null("problem");
  if (!tensors) return is_null("tensors", FH_INVALID_TENSOR);
  auto plan = cached_plan(*problem, target, tensors);
  if (!plan) return plan.failure();
  return run(**plan, *tensors, workspace, workspace_bytes, stream);
}

Result<void> workspace_of(const fh_problem* problem, const char* target, size_t* bytes) {
  if (bytes) *bytes = 0;
  if (!problem) return is_null("problem");
  if (!bytes) return has_no_place("bytes");
  auto plan = cached_plan(*problem, target, nullptr);
  if (!plan) return plan.failure();
  *bytes = (*plan)->workspace_bytes();
  return {};
}

// Writes as much as the user's struct can hold; what it cannot hold must be a default.
Result<void> parse(const char* line, fh_problem* problem) {
  if (!line) return is_null("line");
  if (!problem) return is_null("problem");
  auto sized = whole_problem(*problem);
  if (!sized) return sized.failure();
  auto parsed = Problem::parse(line);
  if (!parsed) return Failure{parsed.failure().status, in_words_of_lines(parsed.failure().text)};

  const size_t size = problem->size, known = std::min(size, sizeof(fh_problem));
  fh_problem full = parsed->user_struct(), plain = fh_problem_init();
  const auto* const rest = reinterpret_cast<const unsigned char*>(&full) + known;
  if (std::memcmp(rest, reinterpret_cast<const unsigned char*>(&plain) + known, sizeof full - known) != 0)
    return Failure{FH_INVALID_PROBLEM, text("the line needs fields after byte {} of fh_problem, where yours ends. "
                                            "Compile with the header of this library.",
                                            size)};
  full.size = size;
  std::memcpy(static_cast<void*>(problem), &full, known);
  return {};
}

Result<void> print(const fh_problem* user, char* line, size_t bytes, size_t* length) {
  if (!user) return is_null("problem");
  if (!line && bytes > 0) return has_no_place("line");
  auto problem = Problem::from(*user);
  if (!problem) return problem.failure();
  const std::string whole = problem->line();
  if (length) *length = whole.size();
  if (bytes == 0) return {};
  const size_t shown = std::min(whole.size(), bytes - 1);
  std::memcpy(line, whole.data(), shown);
  line[shown] = '\0';
  return {};
}

std::string explanation(const fh_problem* user, const char* target) {
  if (!user) return is_null("problem").text;
  auto problem = Problem::from(*user);
  if (!problem) return problem.failure().text;
  auto where = read_target(target);
  return where ? explain(*problem, *where).text : where.failure().text;
}

}  // namespace
}  // namespace froghopper

using namespace froghopper;

fh_status fh_plan_create(const fh_problem* problem, const char* target, fh_plan** plan) {
  return answer("fh_plan_create", [&] { return create(problem, target, plan); });
}

void fh_plan_destroy(fh_plan* plan) { delete plan; }

size_t fh_plan_workspace_bytes(const fh_plan* plan) { return plan ? plan->workspace_bytes() : 0; }

int fh_plan_on_gpu(const fh_plan* plan) { return plan && plan->gpu() ? 1 : 0; }

const char* fh_plan_line(const fh_plan* plan) { return plan ? plan->line.c_str() : ""; }

fh_status fh_plan_run(const fh_plan* plan, const fh_tensors* tensors, void* workspace, size_t workspace_bytes,
                      void* stream) {
  return answer("fh_plan_run", [&]() -> Result<void> {
    if (!plan) return is_null("plan");
    if (!tensors) return is_null("tensors", FH_INVALID_TENSOR);
    return run(*plan, *tensors, workspace, workspace_bytes, stream);
  });
}

fh_status fh_attention(const fh_problem* problem, const char* target, const fh_tensors* tensors, void* workspace,
                       size_t workspace_bytes, void* stream) {
  return answer("fh_attention",
                [&] { return attention(problem, target, tensors, workspace, workspace_bytes, stream); });
}

fh_status fh_workspace_bytes(const fh_problem* problem, const char* target, size_t* bytes) {
  return answer("fh_workspace_bytes", [&] { return workspace_of(problem, target, bytes); });
}

// These two are for libfroghopper-cp of the same build and for nobody else: it has no kernels of its own, nor a
// compiler for them. The symbols have a version that only this build has (cmake/exports.map.in), and no header.
extern "C" FH_API fh_status fh_private_elementwise(int op, fh_dtype dtype, const ElementwiseParams* params,
                                                   void* stream) {
  return answer("sums over ranks", [&] {
    return runtime::elementwise({static_cast<ElementwiseOp>(op), static_cast<Dtype>(dtype)}, *params, stream);
  });
}

extern "C" FH_API fh_status fh_private_prepare_elementwise(void) {
  return answer("kernels for sums over ranks", [] { return runtime::prepare_elementwise(); });
}

fh_status fh_problem_parse(const char* line, fh_problem* problem) {
  return answer("fh_problem_parse", [&] { return parse(line, problem); });
}

fh_status fh_problem_print(const fh_problem* problem, char* line, size_t bytes, size_t* length) {
  return answer("fh_problem_print", [&] { return print(problem, line, bytes, length); });
}

const char* fh_explain(const fh_problem* problem, const char* target) {
  try {
    if (Said* const mine = said.make()) return (mine->explanation = explanation(problem, target)).c_str();
  } catch (...) {}
  return "host memory ran out";
}

const char* fh_last_error(void) {
  if (said.lost()) return "out of memory";
  const Said* const mine = said.find();
  return mine ? mine->error.c_str() : "";
}

const char* fh_status_name(fh_status status) {
  switch (static_cast<int>(status)) {
    case FH_OK: return "FH_OK";
    case FH_INVALID_PROBLEM: return "FH_INVALID_PROBLEM";
    case FH_UNSUPPORTED: return "FH_UNSUPPORTED";
    case FH_INVALID_TENSOR: return "FH_INVALID_TENSOR";
    case FH_NO_DEVICE: return "FH_NO_DEVICE";
    case FH_COMPILE_FAILED: return "FH_COMPILE_FAILED";
    case FH_LAUNCH_FAILED: return "FH_LAUNCH_FAILED";
    case FH_INTERNAL: return "FH_INTERNAL";
    case FH_INTERRUPTED: return "FH_INTERRUPTED";
  }
  return "no fh_status";
}

const char* fh_version(void) { return FROGHOPPER_VERSION; }

void fh_set_log(fh_log_function function, void* user) {
  try {
    set_log(function, user);
  } catch (...) {  // No memory for it: the former function stays.
  }
}

void fh_watch_interrupts(int wanted) { watch_interrupts(wanted != 0); }
