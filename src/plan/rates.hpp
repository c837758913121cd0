// SPDX-License-Identifier: Apache-2.0
// plan: how long kernels take for a turn and a pass. Made by bench/fit_times.py from bench/results; do not edit.
#pragma once
#include "contract/types.h"

namespace froghopper {

struct MeasuredKernel {
  bool backward, det, narrow;  // narrow: of 8-bit products
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
    // card, backward, det, narrow, dims, tile q, kv, masked, us of a turn, of a pass
    {"h100", {true, false, false, {128, 128}, 64, 128, false}, 1.948, 5.44},
    {"h100", {true, false, false, {128, 128}, 64, 128, true}, 1.963, 5.49},
    {"h100", {true, true, false, {128, 128}, 64, 128, true}, 2.296, 9.49},
    {"h100", {true, true, false, {128, 128}, 64, 128, false}, 2.116, 6.19},
    {"h100", {true, false, false, {256, 256}, 64, 128, false}, 2.146, 7.21},
    {"h100", {true, false, false, {256, 256}, 64, 128, true}, 2.153, 8.00},
    {"h100", {true, true, false, {256, 256}, 64, 128, true}, 2.428, 10.41},
    {"h100", {true, true, false, {256, 256}, 64, 128, false}, 2.402, 6.17},
    {"h100", {true, false, false, {64, 64}, 128, 128, false}, 2.209, 2.84},
    {"h100", {true, false, false, {64, 64}, 128, 128, true}, 2.220, 3.46},
    {"h100", {true, true, false, {64, 64}, 128, 128, false}, 2.373, 3.04},
    {"h100", {false, false, false, {128, 128}, 128, 128, false}, 1.364, 1.77},
    {"h100", {false, false, false, {128, 128}, 128, 128, true}, 1.579, 2.20},
    {"h100", {false, false, false, {128, 128}, 128, 128, false}, 1.136, 1.50},
    {"h100", {false, false, false, {128, 128}, 128, 128, false}, 1.552, 1.89},
    {"h100", {false, false, false, {128, 128}, 192, 64, false}, 1.019, 1.91},
    {"h100", {false, false, false, {128, 128}, 192, 64, true}, 1.029, 1.21},
    {"h100", {false, false, false, {128, 128}, 192, 64, false}, 0.966, 3.55},
    {"h100", {false, false, false, {256, 256}, 128, 64, false}, 1.324, 4.11},
    {"h100", {false, false, false, {256, 256}, 128, 64, true}, 1.324, 4.96},
    {"h100", {false, false, false, {256, 256}, 128, 64, false}, 1.267, 6.53},
    {"h100", {false, false, false, {64, 64}, 128, 128, false}, 1.077, 3.27},
    {"h100", {false, false, false, {64, 64}, 128, 128, true}, 1.209, 1.50},
    {"h100", {false, false, false, {64, 64}, 128, 128, false}, 0.961, 1.50},
    {"h100", {false, false, false, {64, 64}, 192, 64, false}, 0.692, 2.29},
    {"h100", {false, false, false, {64, 64}, 256, 64, false}, 0.929, 1.45},
    {"h100", {false, false, false, {64, 64}, 256, 64, true}, 0.932, 0.32},
    {"h100", {false, false, true, {128, 128}, 128, 128, false}, 1.146, 1.54},
    {"h100", {false, false, true, {128, 128}, 128, 128, true}, 1.274, 1.62},
    {"h100", {false, false, true, {128, 128}, 128, 192, false}, 1.776, 0.45},
    {"h100", {false, false, true, {128, 128}, 128, 192, true}, 1.819, 3.94},
    {"h100", {false, false, true, {256, 256}, 128, 128, false}, 1.916, 2.50},
    {"h100", {false, false, true, {256, 256}, 128, 128, true}, 2.171, 3.16},
    {"h100", {false, false, true, {64, 64}, 128, 128, true}, 0.961, 1.66},
    {"h100", {false, false, true, {64, 64}, 192, 128, false}, 1.239, 1.20},
    {"h200", {true, false, false, {128, 128}, 64, 128, false}, 1.981, 4.33},
    {"h200", {true, false, false, {128, 128}, 64, 128, true}, 2.065, 2.71},
    {"h200", {true, true, false, {128, 128}, 64, 128, true}, 2.191, 6.99},
    {"h200", {true, true, false, {128, 128}, 64, 128, false}, 2.133, 4.23},
    {"h200", {true, false, false, {256, 256}, 64, 128, false}, 2.186, 6.02},
    {"h200", {true, false, false, {256, 256}, 64, 128, true}, 2.242, 6.38},
    {"h200", {true, true, false, {256, 256}, 64, 128, true}, 2.457, 7.91},
    {"h200", {true, true, false, {256, 256}, 64, 128, false}, 2.466, 4.93},
    {"h200", {true, false, false, {64, 64}, 128, 128, false}, 2.232, 2.54},
    {"h200", {true, false, false, {64, 64}, 128, 128, true}, 2.278, 2.92},
    {"h200", {true, true, false, {64, 64}, 128, 128, true}, 3.153, 3.73},
    {"h200", {true, true, false, {64, 64}, 128, 128, false}, 2.381, 3.10},
    {"h200", {false, false, false, {128, 128}, 128, 128, false}, 1.401, 1.71},
    {"h200", {false, false, false, {128, 128}, 128, 128, true}, 1.528, 1.84},
    {"h200", {false, false, false, {128, 128}, 128, 128, false}, 1.183, 1.50},
    {"h200", {false, false, false, {128, 128}, 128, 128, false}, 1.622, 1.82},
    {"h200", {false, false, false, {128, 128}, 192, 64, false}, 1.039, 1.21},
    {"h200", {false, false, false, {128, 128}, 192, 64, true}, 1.037, 1.19},
    {"h200", {false, false, false, {128, 128}, 192, 64, false}, 0.969, 3.76},
    {"h200", {false, false, false, {192, 128}, 128, 64, false}, 0.831, 2.98},
    {"h200", {false, false, false, {192, 128}, 128, 64, true}, 1.008, 1.44},
    {"h200", {false, false, false, {192, 128}, 128, 96, false}, 1.252, 3.60},
    {"h200", {false, false, false, {192, 128}, 128, 96, true}, 1.348, 2.20},
    {"h200", {false, false, false, {192, 192}, 128, 80, false}, 1.304, 2.46},
    {"h200", {false, false, false, {192, 192}, 128, 80, true}, 1.319, 2.89},
    {"h200", {false, false, false, {256, 256}, 128, 64, false}, 1.364, 3.59},
    {"h200", {false, false, false, {256, 256}, 128, 64, true}, 1.390, 3.17},
    {"h200", {false, false, false, {256, 256}, 128, 64, false}, 1.299, 4.63},
    {"h200", {false, false, false, {64, 64}, 128, 128, false}, 1.104, 3.25},
    {"h200", {false, false, false, {64, 64}, 128, 128, true}, 1.201, 1.50},
    {"h200", {false, false, false, {64, 64}, 128, 128, false}, 1.022, 1.50},
    {"h200", {false, false, false, {64, 64}, 192, 64, false}, 0.690, 2.64},
    {"h200", {false, false, false, {64, 64}, 256, 64, false}, 0.914, 1.79},
    {"h200", {false, false, false, {64, 64}, 256, 64, true}, 0.925, 0.82},
    {"h200", {false, false, false, {96, 96}, 128, 128, false}, 1.466, 1.32},
    {"h200", {false, false, false, {96, 96}, 128, 128, true}, 1.390, 1.82},
    {"h200", {false, false, false, {96, 96}, 192, 64, true}, 0.878, 2.18},
    {"h200", {false, false, false, {96, 96}, 192, 80, false}, 1.115, 2.49},
    {"h200", {false, false, true, {128, 128}, 128, 128, false}, 1.183, 1.63},
    {"h200", {false, false, true, {128, 128}, 128, 128, true}, 1.268, 1.72},
    {"h200", {false, false, true, {128, 128}, 128, 192, false}, 1.716, 3.47},
    {"h200", {false, false, true, {128, 128}, 128, 192, true}, 1.719, 3.92},
    {"h200", {false, false, true, {256, 256}, 128, 128, false}, 1.995, 2.22},
    {"h200", {false, false, true, {256, 256}, 128, 128, true}, 2.118, 2.86},
    {"h200", {false, false, true, {64, 64}, 128, 128, true}, 0.954, 1.73},
    {"h200", {false, false, true, {64, 64}, 192, 128, false}, 1.230, 1.36},
};

}  // namespace froghopper
