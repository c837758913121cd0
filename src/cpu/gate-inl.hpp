// SPDX-License-Identifier: Apache-2.0
// cpu: the output gate: rows of o times the sigmoid of rows of gate. What gradients also need is in rows-inl.hpp.
#include <algorithm>

#include "src/cpu/work.hpp"

#if defined(FROGHOPPER_CPU_GATE_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef FROGHOPPER_CPU_GATE_INL
#undef FROGHOPPER_CPU_GATE_INL
#else
#define FROGHOPPER_CPU_GATE_INL
#endif
#include "hwy/highway.h"
#include "src/cpu/convert-inl.hpp"
#include "src/cpu/softmax-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace froghopper::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// 1 / (1 + e^-x) for sign = 1, and what is missing to 1, which is that of -x, for sign = -1. e^-|x| does not overflow,
// so both ends are exact: 0 and 1. to: dim_max floats.
inline void sigmoids(const void* gate, Dtype type, float sign, int dim, float* to) {
  const Floats d;
  HWY_ALIGN float x[dim_max];
  to_floats(gate, type, dim, x);
  std::fill(x + dim, x + (dim + vector_lanes - 1) / vector_lanes * vector_lanes, 0.0f);
  for (int c = 0; c < dim; c += vector_lanes) {
    const Vector its = hn::Mul(hn::Load(d, x + c), hn::Set(d, sign));
    const Vector power = exponential(hn::Neg(hn::Abs(its))), one = hn::Set(d, 1.0f);
    const Vector above = hn::IfThenElse(hn::Lt(its, hn::Zero(d)), power, one);
    hn::StoreU(hn::Div(above, hn::Add(one, power)), d, to + c);
  }
}

inline void apply_gate(const void* gate, Dtype type, int dim, float* row) {
  float factors[dim_max];
  sigmoids(gate, type, 1, dim, factors);
  times(factors, dim, row);
}

}  // namespace froghopper::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
