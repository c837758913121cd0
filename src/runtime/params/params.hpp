// SPDX-License-Identifier: Apache-2.0
// runtime/params: plan and tensors -> the arguments of kernels, one file a kind of step.
#pragma once
#include <variant>

#include "contract/append.h"
#include "contract/average.h"
#include "contract/bwd_params.h"
#include "contract/dequantise.h"
#include "contract/fill.h"
#include "contract/fwd_params.h"
#include "contract/quantise_params.h"
#include "src/plan/plan.hpp"
#include "src/problem/tensors.hpp"
#include "src/runtime/driver.hpp"

namespace froghopper::runtime {

// One alternative a kind of step, in the order of Step.
using Params = std::variant<FwdParams, CombineParams, DeltaParams, BwdParams, GradQParams, QuantiseParams,
                            AverageParams, FillParams, DequantiseParams, AppendParams>;

// What all launches of a run share.
struct Run {
  const Plan& plan;
  const Views& views;
  char* workspace;
  unsigned int tag;  // of this run and no other: next_tag()

  // Null: the plan has not taken it. An address of the workspace would be that of what lies at its start.
  template <class T>
  T* slice(const Slice& slice) const {
    return slice.bytes > 0 ? reinterpret_cast<T*>(workspace + slice.offset) : nullptr;
  }
};

// All messages about layout that TMA demands come from here.
Result<Params> make_params(const Driver&, const Run&, const ForwardStep&);
Result<Params> make_params(const Driver&, const Run&, const CombineStep&);
Result<Params> make_params(const Driver&, const Run&, const DeltaStep&);
Result<Params> make_params(const Driver&, const Run&, const BackwardStep&);
Result<Params> make_params(const Driver&, const Run&, const GradQStep&);
Result<Params> make_params(const Driver&, const Run&, const QuantiseStep&);
Result<Params> make_params(const Driver&, const Run&, const AverageStep&);
Result<Params> make_params(const Driver&, const Run&, const FillStep&);
Result<Params> make_params(const Driver&, const Run&, const DequantiseStep&);
Result<Params> make_params(const Driver&, const Run&, const AppendStep&);

// Everything but the tensor maps; no driver is needed.
FwdParams plain_params(const Run&, const ForwardStep&);
BwdParams plain_params(const Run&, const BackwardStep&);

}  // namespace froghopper::runtime
