// SPDX-License-Identifier: Apache-2.0
// runtime/params: plan and tensors -> the arguments of kernels, one file a kind of step.
#pragma once
#include <variant>

#include "contract/fwd_params.h"
#include "src/plan/plan.hpp"
#include "src/problem/tensors.hpp"
#include "src/runtime/driver.hpp"

namespace froghopper::runtime {

// One alternative a kind of step, in the order of Step.
using Params = std::variant<FwdParams>;

// What all launches of a run share.
struct Run {
  const Plan& plan;
  const Views& views;
  char* workspace;

  template <class T>
  T* slice(const Slice& slice) const {
    return reinterpret_cast<T*>(workspace + slice.offset);
  }
};

// All messages about layout that TMA demands come from here.
Result<Params> make_params(const Driver&, const Run&, const ForwardStep&);

// Everything but the tensor maps; no driver is needed.
FwdParams plain_params(const Run&, const ForwardStep&);

}  // namespace froghopper::runtime
