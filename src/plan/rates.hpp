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
    {"h100", {true, false, {128, 128}, 64, 128, false}, 1.947, 5.47},
    {"h100", {true, false, {128, 128}, 64, 128, true}, 1.973, 5.27},
    {"h100", {true, true, {128, 128}, 64, 128, true}, 2.374, 10.65},
    {"h100", {true, true, {128, 128}, 64, 128, false}, 2.117, 6.15},
    {"h100", {true, false, {256, 256}, 64, 128, false}, 2.146, 7.21},
    {"h100", {true, false, {256, 256}, 64, 128, true}, 2.153, 8.00},
    {"h100", {true, true, {256, 256}, 64, 128, true}, 2.430, 10.34},
    {"h100", {true, true, {256, 256}, 64, 128, false}, 2.402, 6.17},
    {"h100", {true, false, {64, 64}, 128, 128, false}, 2.209, 2.84},
    {"h100", {true, false, {64, 64}, 128, 128, true}, 2.220, 3.46},
    {"h100", {true, true, {64, 64}, 128, 128, false}, 2.372, 3.07},
    {"h100", {false, false, {128, 128}, 128, 128, false}, 1.364, 1.77},
    {"h100", {false, false, {128, 128}, 128, 128, true}, 1.582, 2.09},
    {"h100", {false, false, {128, 128}, 128, 128, false}, 1.136, 1.50},
    {"h100", {false, false, {128, 128}, 128, 128, false}, 1.544, 1.95},
    {"h100", {false, false, {128, 128}, 192, 64, false}, 1.019, 1.91},
    {"h100", {false, false, {128, 128}, 192, 64, true}, 1.018, 1.61},
    {"h100", {false, false, {128, 128}, 192, 64, false}, 0.966, 3.54},
    {"h100", {false, false, {256, 256}, 128, 64, false}, 1.324, 4.11},
    {"h100", {false, false, {256, 256}, 128, 64, true}, 1.323, 4.99},
    {"h100", {false, false, {256, 256}, 128, 64, false}, 1.268, 6.52},
    {"h100", {false, false, {64, 64}, 128, 128, false}, 1.077, 3.28},
    {"h100", {false, false, {64, 64}, 128, 128, true}, 1.209, 1.50},
    {"h100", {false, false, {64, 64}, 128, 128, false}, 0.961, 1.50},
    {"h100", {false, false, {64, 64}, 192, 64, false}, 0.692, 2.29},
    {"h100", {false, false, {64, 64}, 256, 64, false}, 0.930, 1.45},
    {"h100", {false, false, {64, 64}, 256, 64, true}, 0.932, 0.31},
    {"h200", {true, false, {128, 128}, 64, 128, false}, 1.981, 4.32},
    {"h200", {true, false, {128, 128}, 64, 128, true}, 2.065, 2.75},
    {"h200", {true, true, {128, 128}, 64, 128, true}, 2.233, 6.58},
    {"h200", {true, true, {128, 128}, 64, 128, false}, 2.133, 4.23},
    {"h200", {true, false, {256, 256}, 64, 128, false}, 2.186, 6.03},
    {"h200", {true, false, {256, 256}, 64, 128, true}, 2.242, 6.38},
    {"h200", {true, true, {256, 256}, 64, 128, true}, 2.456, 7.92},
    {"h200", {true, true, {256, 256}, 64, 128, false}, 2.466, 4.93},
    {"h200", {true, false, {64, 64}, 128, 128, false}, 2.232, 2.54},
    {"h200", {true, false, {64, 64}, 128, 128, true}, 2.278, 2.92},
    {"h200", {true, true, {64, 64}, 128, 128, true}, 3.136, 3.78},
    {"h200", {true, true, {64, 64}, 128, 128, false}, 2.381, 3.10},
    {"h200", {false, false, {128, 128}, 128, 128, false}, 1.401, 1.71},
    {"h200", {false, false, {128, 128}, 128, 128, true}, 1.528, 1.84},
    {"h200", {false, false, {128, 128}, 128, 128, false}, 1.183, 1.50},
    {"h200", {false, false, {128, 128}, 128, 128, false}, 1.622, 1.82},
    {"h200", {false, false, {128, 128}, 192, 64, false}, 1.039, 1.21},
    {"h200", {false, false, {128, 128}, 192, 64, true}, 1.037, 1.19},
    {"h200", {false, false, {128, 128}, 192, 64, false}, 0.969, 3.76},
    {"h200", {false, false, {192, 128}, 128, 64, false}, 0.836, 2.94},
    {"h200", {false, false, {192, 128}, 128, 64, true}, 1.006, 1.46},
    {"h200", {false, false, {192, 128}, 128, 96, false}, 1.252, 3.67},
    {"h200", {false, false, {192, 128}, 128, 96, true}, 1.348, 2.20},
    {"h200", {false, false, {192, 192}, 128, 80, false}, 1.306, 2.43},
    {"h200", {false, false, {192, 192}, 128, 80, true}, 1.319, 2.89},
    {"h200", {false, false, {256, 256}, 128, 64, false}, 1.364, 3.59},
    {"h200", {false, false, {256, 256}, 128, 64, true}, 1.390, 3.17},
    {"h200", {false, false, {256, 256}, 128, 64, false}, 1.299, 4.63},
    {"h200", {false, false, {64, 64}, 128, 128, false}, 1.099, 3.32},
    {"h200", {false, false, {64, 64}, 128, 128, true}, 1.201, 1.50},
    {"h200", {false, false, {64, 64}, 128, 128, false}, 1.022, 1.50},
    {"h200", {false, false, {64, 64}, 192, 64, false}, 0.690, 2.64},
    {"h200", {false, false, {64, 64}, 256, 64, false}, 0.914, 1.79},
    {"h200", {false, false, {64, 64}, 256, 64, true}, 0.925, 0.82},
    {"h200", {false, false, {96, 96}, 128, 128, false}, 1.466, 1.32},
    {"h200", {false, false, {96, 96}, 128, 128, true}, 1.385, 1.86},
    {"h200", {false, false, {96, 96}, 192, 64, true}, 0.878, 2.14},
    {"h200", {false, false, {96, 96}, 192, 80, false}, 1.116, 2.49},
};

}  // namespace froghopper
