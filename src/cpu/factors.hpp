// SPDX-License-Identifier: Apache-2.0
// cpu: the two factors of a matrix product, in floats or in pairs of bf16 values, and functions that multiply them.
//
//   out[row][column] = rescale[column] out[row][column] + sum over i of a(row, i) b[i][column]
//
// With pairs, i counts pairs, and the product of two pairs is a.first b.first + a.second b.second.
#pragma once
#include <cstddef>
#include <cstdint>

namespace froghopper::cpu {

struct alignas(4) Pair {
  uint16_t first, second;  // bf16
};

template <class Element>  // float or Pair
struct Factors {
  const Element* a;
  size_t a_row, a_step;  // elements from row to row, from one i to the next
  const Element* b;
  size_t b_step;         // elements from one i to the next
  size_t count;          // of i
  bool adds;             // false: out holds nothing yet
  const float* rescale;  // null: 1
  float* out;
  size_t out_row;  // floats from row to row
};

// Products in AMX tiles, 16 rows of 64 bytes. a_step is 1, columns a multiple of 16, rescale null.
bool has_amx();  // the processor has AMX for bf16, and the system lets this process use it
void multiply_tiles(const Factors<Pair>&, int rows, int columns);
void multiply_emulated_tiles(const Factors<Pair>&, int rows, int columns);  // on any processor, for tests

}  // namespace froghopper::cpu
