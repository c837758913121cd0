// SPDX-License-Identifier: Apache-2.0
// cpu: the two matrices of a product, in floats or in pairs of bf16 numbers, and what multiplies them.
//
//   out[row][column] = rescale[column] out[row][column] + sum over i of a(row, i) b[i][column]
//
// In pairs, i counts pairs, and a product is the sum of two: first first + second second.
#pragma once
#include <cstddef>
#include <cstdint>

namespace froghopper::cpu {

struct alignas(4) Pair {
  uint16_t first, second;  // bf16
};

template <class Unit>  // float or Pair
struct Factors {
  const Unit* a;
  size_t a_row, a_step;  // units from row to row, from one i to the next
  const Unit* b;
  size_t b_step;         // units from one i to the next
  size_t count;          // of i
  bool adds;             // false: out holds nothing yet
  const float* rescale;  // null: 1
  float* out;
  size_t out_row;  // floats from row to row
};

// Products in the tiles of AMX: 16 rows of 64 bytes. a_step is 1, columns a multiple of 16, rescale null.
bool has_amx();  // and the system lets this process use it
void multiply_tiles(const Factors<Pair>&, int rows, int columns);
void multiply_emulated_tiles(const Factors<Pair>&, int rows, int columns);  // anywhere, for tests

}  // namespace froghopper::cpu
