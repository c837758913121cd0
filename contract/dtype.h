// SPDX-License-Identifier: Apache-2.0
// contract: what host and device code agree on. Both compilers read this room; it knows neither std nor CUDA.
#pragma once

namespace froghopper {

enum class Dtype : unsigned char { f16 = 1, bf16 = 2, f32 = 3 };

// Which keys a query row may not see, as far as it changes the machine code.
//   none     all keys of the sequence
//   causal   none after an upper bound that grows by one a row
//   window   none outside a lower and an upper bound that grow by one a row
enum class Mask : unsigned char { none, causal, window };

constexpr int size_of(Dtype t) { return t == Dtype::f32 ? 4 : 2; }

}  // namespace froghopper
