// SPDX-License-Identifier: Apache-2.0
// cp: every tensor of a shard is dense, so that its bytes are one interval.
#include "src/cp/addresses.hpp"

#include <array>
#include <cstddef>

#include "src/base/text.hpp"

namespace froghopper::cp {
namespace {

struct Tensor {
  const char* name;
  const void* data;
  int64_t bytes, multiple;  // of the address
  bool written;

  bool there() const { return data != nullptr && bytes > 0; }
  uintptr_t begin() const { return reinterpret_cast<uintptr_t>(data); }
  uintptr_t end() const { return begin() + static_cast<uintptr_t>(bytes); }
};

std::array<Tensor, 16> all_of(const fh_cp_plan& plan, const fh_cp_tensors& t, const void* workspace) {
  const Job& job = plan.job;
  const fh_problem& p = job.whole;
  const Scales scales = scales_of(t);
  const int64_t rows = p.batch * rows_of(ranges_of(job, plan.rank));
  const auto of_size = [&](const char* name, const void* data, int64_t heads, int64_t dim, int64_t size,
                           bool written) {
    return Tensor{name, data, rows * heads * dim * size, plan.on_gpu ? 16 : size, written};
  };
  const auto tensor = [&](const char* name, const void* data, int64_t heads, int64_t dim, bool written) {
    return of_size(name, data, heads, dim, written ? job.out_element() : job.element(), written);
  };
  const auto list = [](const char* name, const void* data, int64_t count, bool written) {
    return Tensor{name, data, count * int64_t{sizeof(float)}, sizeof(float), written};
  };
  return {tensor("q", t.q, p.heads_q, p.dim_qk, false),
          of_size("k", t.k, p.heads_kv, p.dim_qk, job.kv_element(), false),
          of_size("v", t.v, p.heads_kv, p.dim_v, job.kv_element(), false),
          tensor("o", t.o, p.heads_q, p.dim_v, !job.backward()),
          list("lse", t.lse, rows * p.heads_q, !job.backward()),
          list("sink", t.sink, p.heads_q, false),
          list("alibi_slopes", t.alibi_slopes, p.heads_q, false),
          tensor("grad_o", t.grad_o, p.heads_q, p.dim_v, false),
          list("grad_lse", t.grad_lse, rows * p.heads_q, false),
          tensor("grad_q", t.grad_q, p.heads_q, p.dim_qk, true),
          tensor("grad_k", t.grad_k, p.heads_kv, p.dim_qk, true),
          tensor("grad_v", t.grad_v, p.heads_kv, p.dim_v, true),
          list("grad_sink", t.grad_sink, p.heads_q, true),
          list("scale_k", scales.k, p.heads_kv, false),
          list("scale_v", scales.v, p.heads_kv, false),
          Tensor{"workspace", workspace, static_cast<int64_t>(plan.workspace), 1, true}};
}

}  // namespace

Scales scales_of(const fh_cp_tensors& t) { return {t.scale_k, t.scale_v}; }

std::string refused_addresses(const fh_cp_plan& plan, const fh_cp_tensors& tensors, const void* workspace) {
  const std::array<Tensor, 16> all = all_of(plan, tensors, workspace);
  for (const Tensor& x : all)
    if (x.there() && x.begin() % static_cast<uintptr_t>(x.multiple) != 0)
      return text("tensors.{} is at {:#x}, but its address must be a multiple of {}. Align it.", x.name, x.begin(),
                  x.multiple);
  for (const Tensor& out : all)
    for (const Tensor& other : all) {
      if (!out.written || &out == &other || !out.there() || !other.there()) continue;
      if (out.begin() < other.end() && other.begin() < out.end())
        return text("{} at {:#x} and {} at {:#x} have memory in common, and {} is written. Give it its own memory.",
                    out.name, out.begin(), other.name, other.begin(), out.name);
    }
  return {};
}

}  // namespace froghopper::cp
