// SPDX-License-Identifier: Apache-2.0
// cp: whether what a caller gives to a run is there and fits its plan, asked before anything moves. "" where it does,
// else the message. given: the caller's own pointer, beside what was read from it.
#pragma once
#include <string>

#include "src/cp/plan.hpp"

namespace froghopper::cp {

std::string refused_transport(const fh_cp_plan& plan, const fh_cp_transport* given, const fh_cp_transport& transport);
std::string refused_tensors(const fh_cp_plan& plan, const fh_cp_tensors& tensors);
std::string refused_memory(const fh_cp_plan& plan, const fh_cp_memory* given, const fh_cp_memory& memory,
                           const void* workspace, uint64_t workspace_bytes);
// After refused_addresses, as it reads them. Those in GPU memory are not read, nor those that are used for no key.
std::string refused_scales(const fh_cp_plan& plan, const fh_cp_tensors& tensors);

}  // namespace froghopper::cp
