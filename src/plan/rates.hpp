// SPDX-License-Identifier: Apache-2.0
// plan: how long kernels take for an iteration and an item. Made by bench/fit_times.py from bench/results; do not edit.
#pragma once
#include "contract/types.h"

namespace froghopper {

// What kernels that share two numbers share: stages of the rings and parts of keys do not change what an iteration is.
struct MeasuredKernel {
  bool backward, det, fp8_mma;  // fp8_mma: 8-bit operands are multiplied
  Dims dims;
  int q, kv;  // of the tiles
  Mask mask;

  bool operator==(const MeasuredKernel&) const = default;
};
struct MeasuredRate {
  const char* card;
  MeasuredKernel of;
  double iteration_us, item_us;
};
inline constexpr MeasuredRate measured_rates[] = {
    // card, backward, det, fp8_mma, dims, tile q, kv, mask, us of an iteration, of an item
    {"h100", {false, false, false, {128, 128}, 128, 128, Mask::causal}, 1.533, 2.16},
    {"h100", {false, false, false, {128, 128}, 128, 128, Mask::none}, 1.418, 1.75},
    {"h100", {false, false, false, {128, 128}, 128, 128, Mask::window}, 1.533, 2.33},
    {"h100", {false, false, false, {128, 128}, 192, 64, Mask::causal}, 1.076, 0.84},
    {"h100", {false, false, false, {128, 128}, 192, 64, Mask::none}, 1.037, 2.01},
    {"h100", {false, false, false, {128, 128}, 192, 64, Mask::window}, 1.082, 3.20},
    {"h100", {false, false, false, {192, 128}, 128, 64, Mask::causal}, 0.967, 1.71},
    {"h100", {false, false, false, {192, 128}, 128, 64, Mask::none}, 0.889, 2.94},
    {"h100", {false, false, false, {192, 128}, 128, 96, Mask::causal}, 1.354, 2.99},
    {"h100", {false, false, false, {192, 128}, 128, 96, Mask::none}, 1.225, 5.16},
    {"h100", {false, false, false, {192, 192}, 128, 80, Mask::causal}, 1.406, 2.28},
    {"h100", {false, false, false, {192, 192}, 128, 80, Mask::none}, 1.299, 3.75},
    {"h100", {false, false, false, {256, 256}, 128, 64, Mask::causal}, 1.429, 4.49},
    {"h100", {false, false, false, {256, 256}, 128, 64, Mask::none}, 1.380, 4.88},
    {"h100", {false, false, false, {256, 256}, 128, 64, Mask::window}, 1.480, 5.22},
    {"h100", {false, false, false, {64, 64}, 128, 128, Mask::causal}, 1.153, 1.50},
    {"h100", {false, false, false, {64, 64}, 128, 128, Mask::none}, 1.123, 1.50},
    {"h100", {false, false, false, {64, 64}, 192, 64, Mask::none}, 0.641, 1.50},
    {"h100", {false, false, false, {64, 64}, 192, 64, Mask::window}, 0.817, 1.04},
    {"h100", {false, false, false, {64, 64}, 256, 64, Mask::causal}, 0.935, 0.87},
    {"h100", {false, false, false, {64, 64}, 256, 64, Mask::none}, 0.913, 2.22},
    {"h100", {false, false, false, {64, 64}, 256, 64, Mask::window}, 0.938, 2.90},
    {"h100", {false, false, false, {96, 96}, 128, 128, Mask::causal}, 1.269, 2.34},
    {"h100", {false, false, false, {96, 96}, 128, 128, Mask::none}, 1.356, 1.72},
    {"h100", {false, false, false, {96, 96}, 192, 64, Mask::causal}, 0.899, 1.92},
    {"h100", {false, false, false, {96, 96}, 192, 80, Mask::none}, 1.082, 3.02},
    {"h100", {false, false, true, {128, 128}, 128, 128, Mask::causal}, 1.264, 1.84},
    {"h100", {false, false, true, {128, 128}, 192, 128, Mask::causal}, 1.824, 1.20},
    {"h100", {false, false, true, {128, 128}, 192, 128, Mask::none}, 1.662, 1.08},
    {"h100", {false, false, true, {256, 256}, 128, 128, Mask::causal}, 2.086, 4.05},
    {"h100", {false, false, true, {256, 256}, 128, 128, Mask::none}, 1.897, 2.74},
    {"h100", {false, false, true, {64, 64}, 128, 128, Mask::causal}, 1.129, 1.20},
    {"h100", {false, false, true, {64, 64}, 192, 128, Mask::causal}, 1.224, 1.93},
    {"h100", {false, false, true, {64, 64}, 192, 128, Mask::none}, 1.204, 1.03},
    {"h100", {true, false, false, {128, 128}, 64, 128, Mask::causal}, 1.898, 4.26},
    {"h100", {true, false, false, {128, 128}, 64, 128, Mask::none}, 1.942, 2.79},
    {"h100", {true, false, false, {256, 256}, 64, 128, Mask::causal}, 2.123, 5.17},
    {"h100", {true, false, false, {256, 256}, 64, 128, Mask::none}, 2.092, 5.62},
    {"h100", {true, false, false, {64, 64}, 128, 128, Mask::causal}, 2.271, 3.47},
    {"h100", {true, false, false, {64, 64}, 128, 128, Mask::none}, 2.164, 3.48},
    {"h100", {true, true, false, {128, 128}, 64, 128, Mask::causal}, 2.315, 2.45},
    {"h100", {true, true, false, {128, 128}, 64, 128, Mask::none}, 2.169, 4.01},
    {"h100", {true, true, false, {256, 256}, 64, 128, Mask::causal}, 2.306, 8.29},
    {"h100", {true, true, false, {256, 256}, 64, 128, Mask::none}, 2.264, 6.18},
    {"h100", {true, true, false, {64, 64}, 128, 128, Mask::causal}, 2.371, 4.90},
    {"h100", {true, true, false, {64, 64}, 128, 128, Mask::none}, 2.391, 2.91},
    {"h200", {false, false, false, {128, 128}, 128, 128, Mask::causal}, 1.467, 2.33},
    {"h200", {false, false, false, {128, 128}, 128, 128, Mask::none}, 1.429, 1.80},
    {"h200", {false, false, false, {128, 128}, 128, 128, Mask::window}, 1.524, 2.31},
    {"h200", {false, false, false, {128, 128}, 192, 64, Mask::causal}, 1.073, 1.26},
    {"h200", {false, false, false, {128, 128}, 192, 64, Mask::none}, 1.048, 2.28},
    {"h200", {false, false, false, {128, 128}, 192, 64, Mask::window}, 1.098, 3.09},
    {"h200", {false, false, false, {192, 128}, 128, 64, Mask::causal}, 1.028, 1.49},
    {"h200", {false, false, false, {192, 128}, 128, 64, Mask::none}, 0.908, 2.45},
    {"h200", {false, false, false, {192, 128}, 128, 96, Mask::causal}, 1.345, 2.92},
    {"h200", {false, false, false, {192, 128}, 128, 96, Mask::none}, 1.297, 2.43},
    {"h200", {false, false, false, {192, 192}, 128, 80, Mask::causal}, 1.415, 2.12},
    {"h200", {false, false, false, {192, 192}, 128, 80, Mask::none}, 1.327, 3.14},
    {"h200", {false, false, false, {256, 256}, 128, 64, Mask::causal}, 1.463, 3.52},
    {"h200", {false, false, false, {256, 256}, 128, 64, Mask::none}, 1.410, 4.90},
    {"h200", {false, false, false, {256, 256}, 128, 64, Mask::window}, 1.536, 3.30},
    {"h200", {false, false, false, {256, 256}, 64, 64, Mask::window}, 0.919, 2.16},
    {"h200", {false, false, false, {256, 512}, 64, 64, Mask::causal}, 1.962, 1.50},
    {"h200", {false, false, false, {256, 512}, 64, 64, Mask::none}, 1.340, 1.50},
    {"h200", {false, false, false, {384, 192}, 128, 48, Mask::none}, 1.227, 1.50},
    {"h200", {false, false, false, {384, 384}, 64, 48, Mask::causal}, 1.358, 1.50},
    {"h200", {false, false, false, {384, 384}, 64, 48, Mask::none}, 1.334, 1.50},
    {"h200", {false, false, false, {512, 256}, 128, 32, Mask::none}, 1.265, 1.50},
    {"h200", {false, false, false, {512, 512}, 64, 32, Mask::causal}, 1.310, 5.45},
    {"h200", {false, false, false, {512, 512}, 64, 32, Mask::none}, 1.426, 1.97},
    {"h200", {false, false, false, {64, 64}, 128, 128, Mask::causal}, 1.148, 1.50},
    {"h200", {false, false, false, {64, 64}, 128, 128, Mask::none}, 1.231, 1.50},
    {"h200", {false, false, false, {64, 64}, 192, 64, Mask::none}, 0.666, 1.50},
    {"h200", {false, false, false, {64, 64}, 192, 64, Mask::window}, 0.725, 1.75},
    {"h200", {false, false, false, {64, 64}, 256, 64, Mask::causal}, 0.946, 0.80},
    {"h200", {false, false, false, {64, 64}, 256, 64, Mask::none}, 0.926, 2.13},
    {"h200", {false, false, false, {64, 64}, 256, 64, Mask::window}, 0.951, 2.63},
    {"h200", {false, false, false, {96, 96}, 128, 128, Mask::causal}, 1.282, 2.32},
    {"h200", {false, false, false, {96, 96}, 128, 128, Mask::none}, 1.311, 1.67},
    {"h200", {false, false, false, {96, 96}, 192, 64, Mask::causal}, 0.922, 1.71},
    {"h200", {false, false, false, {96, 96}, 192, 80, Mask::none}, 1.125, 2.06},
    {"h200", {false, false, true, {128, 128}, 128, 128, Mask::causal}, 1.344, 1.70},
    {"h200", {false, false, true, {128, 128}, 192, 128, Mask::causal}, 1.868, 0.80},
    {"h200", {false, false, true, {128, 128}, 192, 128, Mask::none}, 1.684, 1.34},
    {"h200", {false, false, true, {256, 256}, 128, 128, Mask::causal}, 2.116, 3.69},
    {"h200", {false, false, true, {256, 256}, 128, 128, Mask::none}, 1.961, 3.00},
    {"h200", {false, false, true, {64, 64}, 128, 128, Mask::causal}, 1.040, 1.45},
    {"h200", {false, false, true, {64, 64}, 192, 128, Mask::causal}, 1.285, 1.64},
    {"h200", {false, false, true, {64, 64}, 192, 128, Mask::none}, 1.233, 1.01},
    {"h200", {true, false, false, {128, 128}, 64, 128, Mask::causal}, 2.089, 1.16},
    {"h200", {true, false, false, {128, 128}, 64, 128, Mask::none}, 2.043, 3.50},
    {"h200", {true, false, false, {256, 256}, 64, 128, Mask::causal}, 2.162, 4.74},
    {"h200", {true, false, false, {256, 256}, 64, 128, Mask::none}, 2.149, 4.02},
    {"h200", {true, false, false, {64, 64}, 128, 128, Mask::causal}, 2.305, 3.20},
    {"h200", {true, false, false, {64, 64}, 128, 128, Mask::none}, 2.230, 3.29},
    {"h200", {true, true, false, {128, 128}, 64, 128, Mask::causal}, 2.325, 1.67},
    {"h200", {true, true, false, {128, 128}, 64, 128, Mask::none}, 2.263, 3.03},
    {"h200", {true, true, false, {256, 256}, 64, 128, Mask::causal}, 2.409, 5.70},
    {"h200", {true, true, false, {256, 256}, 64, 128, Mask::none}, 2.286, 5.59},
    {"h200", {true, true, false, {64, 64}, 128, 128, Mask::causal}, 2.481, 4.08},
    {"h200", {true, true, false, {64, 64}, 128, 128, Mask::none}, 2.436, 2.86},
};

}  // namespace froghopper
