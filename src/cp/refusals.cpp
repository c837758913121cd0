// SPDX-License-Identifier: Apache-2.0
// cp: what the caller of a run must give, in the order in which it is looked at.
#include "src/cp/refusals.hpp"

#include "src/base/counted.hpp"
#include "src/base/scale.hpp"
#include "src/base/text.hpp"
#include "src/cp/addresses.hpp"
#include "src/cp/enumerators.hpp"

namespace froghopper::cp {

std::string refused_transport(const fh_cp_plan& plan, const fh_cp_transport* given,
                              const fh_cp_transport& transport) {
  const int64_t ranks = plan.job.ranks;
  if (ranks == 1 && transport.ranks > 1)
    return text("transport is rank {} of {}, but the plan is of one rank. Set ranks and rank of fh_cp_problem.",
                transport.rank, transport.ranks);
  if (ranks == 1) return {};
  if (given == nullptr)
    return text(
        "transport must move data between the {} ranks of the plan, but is NULL. Give one that "
        "fh_cp_nccl_transport or fh_cp_copy_transport makes, or functions of your own in fh_cp_transport.",
        ranks);
  if (const char* missing = transport.exchange == nullptr ? "exchange" : transport.wait == nullptr ? "wait" : nullptr)
    return text(
        "transport.{} must be a function where a plan has {} ranks, but is NULL. Set exchange and wait, as "
        "fh_cp_nccl_transport and fh_cp_copy_transport do.",
        missing, ranks);
  if (transport.ranks != ranks || transport.rank != plan.rank)
    return text("transport is rank {} of {}, but the plan is of rank {} of {}. Give both the same rank and ranks.",
                transport.rank, transport.ranks, plan.rank, ranks);
  if (std::string wrong = no_name(transport.transfers, "transport.transfers"); !wrong.empty()) return wrong;
  if (transport.transfers == FH_CP_PEER_COPIES && !plan.job.peer_copies)
    return "transport writes to workspaces of peers, but the plan does not say where. Make the plan with transfers "
           "set to FH_CP_PEER_COPIES.";
  return {};
}

std::string refused_tensors(const fh_cp_plan& plan, const fh_cp_tensors& t) {
  const fh_problem& p = plan.job.whole;
  const Scales scales = scales_of(t);
  const bool backward = plan.job.backward(), packed = !plan.steps.tables.empty(), scaled = plan.job.kv_has_8_bits(),
             rows = rows_of(ranges_of(plan.job, plan.rank)) > 0 && p.batch > 0;
  const struct {
    const char* name;
    const void* data;
    bool needed, allowed;
  } table[] = {{"q", t.q, rows, true},
               {"k", t.k, rows, true},
               {"v", t.v, rows, true},
               {"o", t.o, rows, true},
               {"lse", t.lse, rows && backward, true},
               {"sink", t.sink, p.sink != 0, p.sink != 0},
               {"alibi_slopes", t.alibi_slopes, p.alibi != 0, p.alibi != 0},
               {"grad_o", t.grad_o, rows && backward, backward},
               {"grad_lse", t.grad_lse, false, backward},
               {"grad_q", t.grad_q, rows && backward, backward},
               {"grad_k", t.grad_k, rows && backward, backward},
               {"grad_v", t.grad_v, rows && backward, backward},
               {"grad_sink", t.grad_sink, p.sink && backward, p.sink && backward},
               {"tables", t.tables, plan.on_gpu && packed, packed},
               {"scale_k", scales.k, scaled, scaled},
               {"scale_v", scales.v, scaled, scaled}};
  for (const auto& row : table) {
    if (row.needed && row.data == nullptr)
      return text("tensors.{} is NULL, but this plan needs it. Set it.", row.name);
    if (!row.allowed && row.data != nullptr)
      return text("tensors.{} is given, but the problem has no such tensor. Set it to NULL.", row.name);
  }
  return {};
}

std::string refused_memory(const fh_cp_plan& plan, const fh_cp_memory* given, const fh_cp_memory& memory,
                           const void* workspace, uint64_t workspace_bytes) {
  if (workspace_bytes < plan.workspace)
    return text("workspace has {}, but this plan needs {}: fh_cp_plan_workspace_bytes.",
                counted(workspace_bytes, "byte"), plan.workspace);
  if (plan.workspace > 0 && workspace == nullptr)
    return text("workspace is NULL, but this plan needs {} bytes: fh_cp_plan_workspace_bytes.", plan.workspace);
  if (plan.workspace > 0 && reinterpret_cast<uintptr_t>(workspace) % 256 != 0)
    return text("workspace must be at a multiple of 256, but is at {:#x}. Align it.",
                reinterpret_cast<uintptr_t>(workspace));
  for (const Step& s : plan.steps.steps) {
    const char* missing = std::holds_alternative<Fill>(s) && memory.fill == nullptr         ? "fill"
                          : std::holds_alternative<Copy>(s) && memory.copy == nullptr       ? "copy"
                          : std::holds_alternative<Add>(s) && memory.add == nullptr         ? "add"
                          : std::holds_alternative<Convert>(s) && memory.convert == nullptr ? "convert"
                          : std::holds_alternative<Spread>(s) && memory.spread == nullptr   ? "spread"
                                                                                            : nullptr;
    if (missing != nullptr && given == nullptr)
      return text(
          "memory must have `{}` and other functions, as the plan is on a GPU, but is NULL. Give what "
          "fh_cp_cuda_memory sets.",
          missing);
    if (missing != nullptr)
      return text(
          "memory.{} is NULL, but this plan needs it on a GPU. fh_cp_cuda_memory sets all functions of fh_cp_memory.",
          missing);
  }
  return {};
}

std::string refused_scales(const fh_cp_plan& plan, const fh_cp_tensors& t) {
  const fh_problem& p = plan.job.whole;
  if (plan.on_gpu || !plan.job.kv_has_8_bits() || p.batch == 0 || p.seq_q == 0) return {};
  const Scales scales = scales_of(t);
  for (const auto& [name, of_heads] : {std::pair("scale_k", scales.k), std::pair("scale_v", scales.v)})
    for (int64_t head = 0; head < p.heads_kv; ++head)
      if (const float scale = of_heads[head]; !is_scale(scale))
        return text("tensors.{}[{}] is {}; {}", name, head, scale, rule_of_scales);
  return {};
}

}  // namespace froghopper::cp
