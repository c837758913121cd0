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
    {"h100", {true, false, false, {128, 128}, 64, 128, false}, 2.040, 5.21},
    {"h100", {true, false, false, {128, 128}, 64, 128, true}, 2.029, 5.14},
    {"h100", {true, true, false, {128, 128}, 64, 128, true}, 2.345, 5.66},
    {"h100", {true, true, false, {128, 128}, 64, 128, false}, 2.129, 6.45},
    {"h100", {true, false, false, {256, 256}, 64, 128, false}, 2.164, 7.79},
    {"h100", {true, false, false, {256, 256}, 64, 128, true}, 2.148, 8.25},
    {"h100", {true, true, false, {256, 256}, 64, 128, true}, 2.441, 10.97},
    {"h100", {true, true, false, {256, 256}, 64, 128, false}, 2.460, 6.63},
    {"h100", {true, false, false, {64, 64}, 128, 128, false}, 2.252, 2.97},
    {"h100", {true, false, false, {64, 64}, 128, 128, true}, 2.341, 3.31},
    {"h100", {true, true, false, {64, 64}, 128, 128, true}, 2.581, 7.06},
    {"h100", {true, true, false, {64, 64}, 128, 128, false}, 2.429, 3.66},
    {"h100", {false, false, false, {128, 128}, 128, 128, false}, 1.364, 1.77},
    {"h100", {false, false, false, {128, 128}, 128, 128, true}, 1.572, 2.25},
    {"h100", {false, false, false, {128, 128}, 128, 128, false}, 1.136, 1.50},
    {"h100", {false, false, false, {128, 128}, 128, 128, false}, 1.575, 1.80},
    {"h100", {false, false, false, {128, 128}, 192, 64, false}, 1.019, 1.91},
    {"h100", {false, false, false, {128, 128}, 192, 64, true}, 1.029, 1.20},
    {"h100", {false, false, false, {128, 128}, 192, 64, false}, 0.966, 3.54},
    {"h100", {false, false, false, {256, 256}, 128, 64, false}, 1.325, 4.05},
    {"h100", {false, false, false, {256, 256}, 128, 64, true}, 1.324, 4.96},
    {"h100", {false, false, false, {256, 256}, 128, 64, false}, 1.267, 6.53},
    {"h100", {false, false, false, {64, 64}, 128, 128, false}, 1.074, 3.28},
    {"h100", {false, false, false, {64, 64}, 128, 128, true}, 1.210, 1.50},
    {"h100", {false, false, false, {64, 64}, 128, 128, false}, 0.961, 1.50},
    {"h100", {false, false, false, {64, 64}, 192, 64, false}, 0.693, 2.30},
    {"h100", {false, false, false, {64, 64}, 256, 64, false}, 0.929, 1.45},
    {"h100", {false, false, false, {64, 64}, 256, 64, true}, 0.932, 0.32},
    {"h100", {false, false, true, {128, 128}, 128, 128, false}, 1.312, 0.78},
    {"h100", {false, false, true, {128, 128}, 128, 128, true}, 1.274, 1.62},
    {"h100", {false, false, true, {128, 128}, 128, 192, false}, 1.846, 0.29},
    {"h100", {false, false, true, {128, 128}, 128, 192, true}, 1.881, 2.62},
    {"h100", {false, false, true, {256, 256}, 128, 128, false}, 2.025, 2.37},
    {"h100", {false, false, true, {256, 256}, 128, 128, true}, 2.164, 3.23},
    {"h100", {false, false, true, {64, 64}, 128, 128, true}, 0.924, 1.74},
    {"h100", {false, false, true, {64, 64}, 192, 128, false}, 1.232, 1.33},
    {"h100", {false, false, true, {64, 64}, 192, 128, true}, 1.267, 1.17},
    {"h200", {true, false, false, {128, 128}, 64, 128, false}, 2.087, 4.17},
    {"h200", {true, false, false, {128, 128}, 64, 128, true}, 2.109, 2.68},
    {"h200", {true, true, false, {128, 128}, 64, 128, true}, 2.261, 3.53},
    {"h200", {true, true, false, {128, 128}, 64, 128, false}, 2.209, 4.12},
    {"h200", {true, false, false, {256, 256}, 64, 128, false}, 2.144, 7.10},
    {"h200", {true, false, false, {256, 256}, 64, 128, true}, 2.135, 7.27},
    {"h200", {true, true, false, {256, 256}, 64, 128, true}, 2.406, 8.78},
    {"h200", {true, true, false, {256, 256}, 64, 128, false}, 2.383, 7.04},
    {"h200", {true, false, false, {64, 64}, 128, 128, false}, 2.271, 2.80},
    {"h200", {true, false, false, {64, 64}, 128, 128, true}, 2.345, 3.04},
    {"h200", {true, true, false, {64, 64}, 128, 128, true}, 2.569, 6.07},
    {"h200", {true, true, false, {64, 64}, 128, 128, false}, 2.452, 3.50},
    {"h200", {false, false, false, {128, 128}, 128, 128, false}, 1.399, 1.72},
    {"h200", {false, false, false, {128, 128}, 128, 128, true}, 1.527, 1.84},
    {"h200", {false, false, false, {128, 128}, 128, 128, false}, 1.184, 1.50},
    {"h200", {false, false, false, {128, 128}, 128, 128, false}, 1.623, 1.82},
    {"h200", {false, false, false, {128, 128}, 192, 64, false}, 1.039, 1.21},
    {"h200", {false, false, false, {128, 128}, 192, 64, true}, 1.037, 1.19},
    {"h200", {false, false, false, {128, 128}, 192, 64, false}, 0.969, 3.76},
    {"h200", {false, false, false, {192, 128}, 128, 64, false}, 0.836, 2.94},
    {"h200", {false, false, false, {192, 128}, 128, 64, true}, 1.008, 1.44},
    {"h200", {false, false, false, {192, 128}, 128, 96, false}, 1.252, 3.66},
    {"h200", {false, false, false, {192, 128}, 128, 96, true}, 1.348, 2.23},
    {"h200", {false, false, false, {192, 192}, 128, 80, false}, 1.304, 2.46},
    {"h200", {false, false, false, {192, 192}, 128, 80, true}, 1.321, 2.89},
    {"h200", {false, false, false, {256, 512}, 64, 64, false}, 1.339, 1.50},
    {"h200", {false, false, false, {256, 512}, 64, 64, true}, 1.964, 1.50},
    {"h200", {false, false, false, {256, 256}, 128, 64, false}, 1.364, 3.59},
    {"h200", {false, false, false, {256, 256}, 128, 64, true}, 1.390, 3.17},
    {"h200", {false, false, false, {256, 256}, 128, 64, false}, 1.299, 4.63},
    {"h200", {false, false, false, {384, 192}, 128, 48, false}, 1.227, 1.50},
    {"h200", {false, false, false, {384, 384}, 64, 48, false}, 1.334, 1.50},
    {"h200", {false, false, false, {384, 384}, 64, 48, true}, 1.358, 1.50},
    {"h200", {false, false, false, {512, 256}, 128, 32, false}, 1.265, 1.50},
    {"h200", {false, false, false, {512, 512}, 64, 32, false}, 1.425, 2.04},
    {"h200", {false, false, false, {512, 512}, 64, 32, true}, 1.309, 5.53},
    {"h200", {false, false, false, {512, 512}, 64, 32, true}, 1.369, 1.50},
    {"h200", {false, false, false, {64, 64}, 128, 128, false}, 1.100, 3.25},
    {"h200", {false, false, false, {64, 64}, 128, 128, true}, 1.201, 1.50},
    {"h200", {false, false, false, {64, 64}, 128, 128, false}, 1.021, 1.50},
    {"h200", {false, false, false, {64, 64}, 192, 64, false}, 0.690, 2.64},
    {"h200", {false, false, false, {64, 64}, 256, 64, false}, 0.914, 1.79},
    {"h200", {false, false, false, {64, 64}, 256, 64, true}, 0.925, 0.83},
    {"h200", {false, false, false, {96, 96}, 128, 128, false}, 1.466, 1.32},
    {"h200", {false, false, false, {96, 96}, 128, 128, true}, 1.410, 1.77},
    {"h200", {false, false, false, {96, 96}, 192, 64, true}, 0.878, 2.18},
    {"h200", {false, false, false, {96, 96}, 192, 80, false}, 1.115, 2.49},
    {"h200", {false, false, true, {128, 128}, 128, 128, false}, 1.281, 1.12},
    {"h200", {false, false, true, {128, 128}, 128, 128, true}, 1.306, 1.70},
    {"h200", {false, false, true, {128, 128}, 128, 192, false}, 1.799, 2.41},
    {"h200", {false, false, true, {128, 128}, 128, 192, true}, 1.971, 0.00},
    {"h200", {false, false, true, {256, 256}, 128, 128, false}, 2.079, 1.94},
    {"h200", {false, false, true, {256, 256}, 128, 128, true}, 2.173, 2.82},
    {"h200", {false, false, true, {64, 64}, 128, 128, true}, 0.969, 1.63},
    {"h200", {false, false, true, {64, 64}, 192, 128, false}, 1.266, 1.20},
    {"h200", {false, false, true, {64, 64}, 192, 128, true}, 1.283, 1.16},
};

}  // namespace froghopper
