// SPDX-License-Identifier: Apache-2.0
// api: plans that were made, for fh_attention. A model asks for the same few problems again and again, mostly for the
// same one as the call before: that costs one comparison. Else a table all threads share has it.
#include <cstddef>
#include <cstring>
#include <mutex>
#include <unordered_map>

#include "src/api/run.hpp"
#include "src/base/fork.hpp"
#include "src/base/per_thread.hpp"
#include "src/runtime/runtime.hpp"

namespace froghopper {
namespace {

using PlanPointer = std::shared_ptr<const fh_plan>;

// Two descriptions are the same where their bytes are: the struct has no padding whose bytes could differ.
static_assert(sizeof(fh_problem) == sizeof(size_t) + 18 * sizeof(int64_t) + 30 * sizeof(int32_t),
              "its fields, no gaps");

// Of Question::gpu, besides ordinals and -1 for none.
constexpr int on_host = -2;

struct Question {
  fh_problem problem;
  const char* target;
  int gpu;  // which one "auto" and "hopper" mean at this moment; on_host: "auto" means the CPU
};

std::string key_of(const Question& question) {
  std::string key(reinterpret_cast<const char*>(&question.problem), sizeof question.problem);
  key.append(reinterpret_cast<const char*>(&question.gpu), sizeof question.gpu);
  return key + question.target;
}

// What this thread asked last, and the answer.
struct Last {
  fh_problem problem{};
  std::string target;
  int gpu = -1;
  PlanPointer plan;

  bool answers(const Question& question) const {
    return plan && std::memcmp(&problem, &question.problem, sizeof problem) == 0 && target == question.target &&
           gpu == question.gpu;
  }
};
PerThread<Last> last;

// Far more than a program has problems, unless their lengths never repeat. The plans that were asked for lately are in
// `young`; where it is full it becomes `old`, and what was old goes. So a plan that a program keeps asking for stays. A
// plan takes 1.4 KB here, so both are 6 MB at most.
constexpr size_t most_young_plans = 2048;

using Table = std::unordered_map<std::string, PlanPointer>;
Table& young = *new Table;  // both live until the process ends: threads may still ask while it exits
Table& old = *new Table;
std::mutex mutex;  // of the two tables
[[maybe_unused]] const bool forks = unlocked_in_children<mutex>();

PlanPointer add(const std::string& key, PlanPointer plan) {
  Table forgotten;  // freed after the lock is
  const std::lock_guard lock(mutex);
  if (young.size() >= most_young_plans) {
    forgotten.swap(old);
    old.swap(young);
  }
  return young.emplace(key, std::move(plan)).first->second;  // the one of another thread that was faster
}

PlanPointer find(const std::string& key) {
  PlanPointer plan;
  {
    const std::lock_guard lock(mutex);
    if (const auto found = young.find(key); found != young.end()) return found->second;
    if (const auto found = old.find(key); found != old.end()) plan = found->second;
  }
  return plan ? add(key, std::move(plan)) : nullptr;
}

Result<PlanPointer> make(const Question& question) {
  auto problem = Problem::from(question.problem);
  if (!problem) return problem.failure();
  auto target = read_target(question.target);
  if (!target) return target.failure();
  const bool automatic = target->kind == Target::Kind::automatic;
  if (automatic && question.gpu == on_host) target->kind = Target::Kind::cpu;
  if (automatic) target->ordinal = question.gpu;
  auto plan = make_plan(*problem, *target);
  if (!plan) return plan.failure();  // not kept: the reason may go away, a driver be loaded
  if (automatic && question.gpu == on_host) plan->why_cpu = "the tensors are in host memory.";
  return add(key_of(question), std::make_shared<const fh_plan>(std::move(*plan)));
}

// Where the tensors are decides for "auto": the GPU that holds them, not the one that is current.
int gpu_meant(const char* target, const fh_tensors* tensors) {
  if (std::strcmp(target, "cpu") == 0) return -1;
  const bool whole = tensors && tensors->size >= offsetof(fh_tensors, lse);  // else it is refused later
  const void* data = nullptr;
  if (whole)
    for (const fh_tensor* tensor : {&tensors->q, &tensors->k, &tensors->v, &tensors->o})
      if (!data) data = tensor->data;
  if (std::strncmp(target, "auto", 4) != 0 || !data) return runtime::current_gpu();
  switch (const runtime::Home home = runtime::home_of(data); home.kind) {
    case runtime::Home::Kind::host: return on_host;
    case runtime::Home::Kind::managed: return runtime::current_gpu();
    case runtime::Home::Kind::gpu: return home.gpu;
  }
  return -1;
}

}  // namespace

Result<PlanPointer> cached_plan(const fh_problem& user, const char* target, const fh_tensors* tensors) {
  auto whole = whole_problem(user);
  if (!whole) return whole.failure();
  const char* const where = target ? target : "auto";
  const Question question{*whole, where, gpu_meant(where, tensors)};
  Last* const mine = last.make();  // null: no memory for it
  if (mine && mine->answers(question)) return mine->plan;

  PlanPointer plan = find(key_of(question));
  if (!plan) {
    auto made = make(question);
    if (!made) return made.failure();
    plan = *made;
  }
  if (mine) *mine = {question.problem, question.target, question.gpu, plan};
  return plan;
}

}  // namespace froghopper
