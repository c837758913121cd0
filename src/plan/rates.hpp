// SPDX-License-Identifier: Apache-2.0
// plan: how long kernels take for a turn and a pass. Made by bench/fit_times.py from bench/results; do not edit.
#pragma once
#include "contract/types.h"

namespace froghopper {

struct MeasuredKernel {
  bool backward, det;
  Dims dims;
  int q, kv;  // of the tiles
  bool masked;
};
struct MeasuredRate {
  const char* card;
  MeasuredKernel of;
  double turn_us, pass_us;
};
inline constexpr MeasuredRate measured_rates[] = {
    // card, backward, det, dims, tile q, kv, masked, us of a turn, of a pass
    {"h100", {true, false, {128, 128}, 64, 128, false}, 2.039, 5.22},
    {"h100", {true, true, {128, 128}, 64, 128, false}, 1.816, 9.91},
    {"h100", {true, false, {256, 256}, 64, 128, false}, 2.263, 7.03},
    {"h100", {true, true, {256, 256}, 64, 128, false}, 2.353, 6.88},
    {"h100", {true, false, {64, 64}, 128, 128, false}, 2.264, 2.66},
    {"h100", {true, true, {64, 64}, 128, 128, false}, 2.314, 3.71},
    {"h100", {false, false, {128, 128}, 128, 128, false}, 1.468, 1.41},
    {"h100", {false, false, {128, 128}, 128, 128, true}, 1.617, 2.53},
    {"h100", {false, false, {128, 128}, 192, 64, false}, 1.011, 4.19},
    {"h100", {false, false, {128, 128}, 192, 64, true}, 1.114, 0.59},
    {"h100", {false, false, {256, 256}, 128, 64, false}, 1.376, 4.41},
    {"h100", {false, false, {256, 256}, 128, 64, true}, 1.415, 4.84},
    {"h100", {false, false, {64, 64}, 128, 128, false}, 1.020, 3.26},
    {"h100", {false, false, {64, 64}, 128, 128, true}, 1.157, 1.50},
    {"h100", {false, false, {64, 64}, 256, 64, false}, 0.946, 1.47},
    {"h100", {false, false, {64, 64}, 256, 64, true}, 0.963, 0.25},
    {"h200", {true, false, {128, 128}, 64, 128, false}, 2.137, 4.07},
    {"h200", {true, false, {128, 128}, 64, 128, true}, 2.174, 4.01},
    {"h200", {true, true, {128, 128}, 64, 128, true}, 2.371, 6.09},
    {"h200", {true, true, {128, 128}, 64, 128, false}, 2.206, 4.35},
    {"h200", {true, false, {256, 256}, 64, 128, false}, 2.260, 6.82},
    {"h200", {true, false, {256, 256}, 64, 128, true}, 2.261, 6.85},
    {"h200", {true, true, {256, 256}, 64, 128, true}, 2.696, 7.48},
    {"h200", {true, true, {256, 256}, 64, 128, false}, 2.311, 7.04},
    {"h200", {true, false, {64, 64}, 128, 128, false}, 2.269, 2.56},
    {"h200", {true, false, {64, 64}, 128, 128, true}, 2.357, 3.39},
    {"h200", {true, true, {64, 64}, 128, 128, true}, 2.805, 4.89},
    {"h200", {true, true, {64, 64}, 128, 128, false}, 2.332, 3.43},
    {"h200", {false, false, {128, 128}, 128, 128, false}, 1.503, 1.83},
    {"h200", {false, false, {128, 128}, 128, 128, true}, 1.476, 2.91},
    {"h200", {false, false, {128, 128}, 192, 64, false}, 1.045, 3.34},
    {"h200", {false, false, {128, 128}, 192, 64, true}, 1.086, 1.57},
    {"h200", {false, false, {192, 128}, 128, 64, false}, 0.838, 2.92},
    {"h200", {false, false, {192, 128}, 128, 64, true}, 1.006, 1.46},
    {"h200", {false, false, {192, 128}, 128, 96, false}, 1.253, 3.59},
    {"h200", {false, false, {192, 128}, 128, 96, true}, 1.344, 2.18},
    {"h200", {false, false, {192, 192}, 128, 80, false}, 1.306, 2.44},
    {"h200", {false, false, {192, 192}, 128, 80, true}, 1.321, 2.89},
    {"h200", {false, false, {256, 256}, 128, 64, false}, 1.415, 4.76},
    {"h200", {false, false, {256, 256}, 128, 64, true}, 1.453, 3.82},
    {"h200", {false, false, {64, 64}, 128, 128, false}, 1.053, 3.36},
    {"h200", {false, false, {64, 64}, 128, 128, true}, 1.195, 1.50},
    {"h200", {false, false, {64, 64}, 256, 64, false}, 0.943, 1.64},
    {"h200", {false, false, {64, 64}, 256, 64, true}, 0.944, 0.83},
    {"h200", {false, false, {96, 96}, 128, 128, false}, 1.349, 1.51},
    {"h200", {false, false, {96, 96}, 128, 128, true}, 1.406, 1.78},
    {"h200", {false, false, {96, 96}, 192, 64, true}, 0.878, 2.15},
    {"h200", {false, false, {96, 96}, 192, 80, false}, 1.116, 2.49},
};

}  // namespace froghopper
