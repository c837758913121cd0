// SPDX-License-Identifier: Apache-2.0
// check: a case from its inputs to a verdict, through the C interface, so that what users call is what is checked.
#include "check/check.hpp"

#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <string_view>

#include "check/backends.hpp"
#include "check/compare.hpp"
#include "src/base/storage.hpp"
#include "src/base/text.hpp"

namespace froghopper::check {

namespace {

std::string changed_input(const Inputs& in, const Hashes& before);
std::string written_outside(const Inputs& in);
std::string take_rows(const Problem&, const Views&, const std::vector<RowId>& wanted, Answer& taken);

}  // namespace

Result<Outcome> check_forward(const Case& c, Backend backend, unsigned seed) {
  const Problem& p = c.problem;
  Outcome out;
  out.backend = backend == Backend::cpu ? "cpu" : "hopper";
  auto plan = create_plan(p, out.backend);
  if (!plan) return plan.failure();
  out.plan = fh_plan_line(plan->get());

  const std::unique_ptr<Inputs> in = make_inputs(c, seed);
  const auto views = bind(p, in->tensors);
  if (!views) return views.failure();
  const Hashes before = hashes_of(*in);
  const auto ran = backend == Backend::cpu ? run_on_cpu(plan->get(), *in) : run_on_gpu(plan->get(), *in);
  if (!ran) {
    // A call that fails has written nothing: o and lse too are as they were.
    out.why = changed_input(*in, before);
    if (out.why.empty()) out.why = written_outside(*in);
    if (out.why.empty()) return ran.failure();
    return Failure{FH_INTERNAL, text("{} Yet the failed call wrote: {}", ran.failure().text, out.why)};
  }
  judge(c, *views, *in, before, out);
  return out;
}

void judge(const Case& c, const Views& views, Inputs& in, const Hashes& before, Outcome& out) {
  out.why = changed_input(in, before);
  if (!out.why.empty()) return;
  const Reference reference = make_reference(c, views);
  Answer found;
  out.why = take_rows(c.problem, views, reference.rows, found);
  if (out.why.empty()) out.why = written_outside(in);
  if (out.why.empty()) compare(c.problem, reference, found, out);
}

Hashes hashes_of(const Inputs& in) {
  Hashes hashes{};
  for (int part = 0; part < parts; ++part) {
    if (part == part_o || part == part_lse) continue;
    const auto& block = in.blocks[part];
    hashes[part] = std::hash<std::string_view>{}({reinterpret_cast<const char*>(block.data()), block.size()});
  }
  return hashes;
}

Result<PlanHandle> create_plan(const Problem& p, const std::string& target) {
  const fh_problem user = p.user_struct();
  fh_plan* plan = nullptr;
  const fh_status status = fh_plan_create(&user, target.c_str(), &plan);
  if (status != FH_OK) return last_failure(status);
  return PlanHandle(plan, &fh_plan_destroy);
}

Failure last_failure(fh_status status) { return {status, fh_last_error()}; }

Result<std::vector<double>> run_on_cpu(const fh_plan* plan, Inputs& in, int repeats) {
  const size_t bytes = fh_plan_workspace_bytes(plan);
  std::vector<unsigned char> workspace = garbage_workspace(bytes);
  std::vector<double> ms;
  for (int i = 0; i < repeats; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    const fh_status status = fh_plan_run(plan, &in.tensors, workspace.data() + workspace_guard_bytes, bytes, nullptr);
    if (status != FH_OK) return last_failure(status);
    ms.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
  }
  if (!guards_intact(workspace, bytes)) return Failure{FH_INTERNAL, "memory beside the workspace was written"};
  return ms;
}

// Neither zeros nor all ones, which a counter or a flag might take for a start.
constexpr unsigned char garbage = 0xa5;

std::vector<unsigned char> garbage_workspace(size_t bytes) {
  return std::vector<unsigned char>(bytes + 2 * workspace_guard_bytes, garbage);
}

bool guards_intact(const std::vector<unsigned char>& workspace, size_t bytes) {
  for (size_t i = 0; i < workspace_guard_bytes; ++i) {
    if (workspace[i] != garbage || workspace[workspace_guard_bytes + bytes + i] != garbage) return false;
  }
  return true;
}

namespace {

std::string changed_input(const Inputs& in, const Hashes& before) {
  static constexpr const char* names[] = {
      "q", "k", "v", "o", "lse", "cu_seqlens_q", "cu_seqlens_kv", "seqused_q", "seqused_kv", "sink"};
  const auto after = hashes_of(in);
  for (int part = 0; part < parts; ++part) {
    if (after[part] != before[part]) return text("{} or memory beside it was written; it is only read", names[part]);
  }
  return {};
}

// The first byte that is not 0xff any more, or its size.
size_t first_written(const std::vector<unsigned char>& block) {
  // A block of equal bytes equals itself one byte further on; memcmp compares faster than a loop.
  if (block.empty() || (block[0] == 0xff && std::memcmp(block.data(), block.data() + 1, block.size() - 1) == 0)) {
    return block.size();
  }
  size_t i = 0;
  while (block[i] == 0xff) ++i;
  return i;
}

std::string written_outside(const Inputs& in) {
  const auto outside = [](const char* name, const std::vector<unsigned char>& block, const void* begin) {
    const size_t at = first_written(block);
    if (at == block.size()) return std::string();
    return text("{}: byte {} from its begin was written, which belongs to no row", name,
                block.data() + at - static_cast<const unsigned char*>(begin));
  };
  std::string why = outside("o", in.blocks[part_o], in.tensors.o.data);
  return why.empty() ? outside("lse", in.blocks[part_lse], in.tensors.lse) : why;
}

// Reads every row of o and lse, keeps the wanted ones, and puts bytes 0xff back in its place. All of them must be
// numbers.
std::string take_rows(const Problem& p, const Views& views, const std::vector<RowId>& wanted, Answer& taken) {
  const View& o = views.o;
  const int64_t size = size_of(p.dtype);
  auto next = wanted.begin();
  for (int64_t b = 0; b < o.batch; ++b) {
    for (int64_t row = 0; row < o.seq; ++row) {
      for (int64_t head = 0; head < o.heads; ++head) {
        const bool keep = next != wanted.end() && *next == RowId{b, row, head};
        const int64_t at = b * o.stride_batch + row * o.stride_seq + head * o.stride_head;
        for (int64_t column = 0; column < o.dim; ++column) {
          const float x = load(o.data, at + column, p.dtype);
          if (std::isnan(x)) {
            return text("batch {} row {} head {} column {}: o is NaN, or was not written", b, row, head, column);
          }
          if (keep) taken.o.push_back(x);
        }
        std::memset(static_cast<unsigned char*>(o.data) + at * size, 0xff, static_cast<size_t>(o.dim * size));
        float& lse = views.lse[b * views.lse_stride_batch + head * views.lse_stride_head + row];
        if (std::isnan(lse)) return text("batch {} row {} head {}: lse is NaN, or was not written", b, row, head);
        if (keep) taken.lse.push_back(lse);
        std::memset(&lse, 0xff, sizeof lse);
        next += keep;
      }
    }
  }
  return {};
}

}  // namespace

}  // namespace froghopper::check
