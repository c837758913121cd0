// SPDX-License-Identifier: Apache-2.0
// cpu: quantises rows of q, k and v to 8 bits, with vectors. Rows become floats, are rotated if the problem asks for
// it, and are rounded to nearest, ties to even.
#include "src/cpu/quantise_work.hpp"

#define HWY_IS_DEBUG_BUILD 0
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/cpu/quantise_rows.cpp"
#include "hwy/foreach_target.h"
//
#include "hwy/highway.h"
#include "src/cpu/convert-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace froghopper::cpu::HWY_NAMESPACE {

// The Hadamard transform of a block of columns. A step writes the sums of neighbours to the first half and their
// differences to the second: it transforms the lowest bit of a column's index and makes it the highest. After
// log2(block) steps all bits are transformed and in order. The result is in `x`, or in `other` if that number is odd.
inline float* hadamard(float* x, float* other, int block) {
  const Eight d;
  for (int left = block; left > 1; left /= 2) {
    for (int i = 0; i < block / 2; i += eight) {
      hn::Vec<Eight> even, odd;
      hn::LoadInterleaved2(d, x + 2 * i, even, odd);
      hn::StoreU(hn::Add(even, odd), d, other + i);
      hn::StoreU(hn::Sub(even, odd), d, other + block / 2 + i);
    }
    std::swap(x, other);
  }
  return x;
}

// Adds the tile's rows to a sum for each column. In fp64, so that the mean has no error except its own rounding.
void add_rows(const RowsToQuantise& tile, double* sums) {
  for (int i = 0; i < tile.rows; ++i) {
    to_floats(static_cast<const char*>(tile.source) + i * tile.stride_from * size_of(tile.from), tile.from, tile.dim,
              tile.scratch);
    for (int c = 0; c < tile.dim; ++c) sums[c] += static_cast<double>(tile.scratch[c]);
  }
}

// Fills the scratch with the tile's rows, less their mean and rotated, and returns their largest magnitude. NaN is
// ignored.
float largest_of_rows(const RowsToQuantise& tile) {
  const Eight d;
  float* const row = tile.scratch + quantise_rows * tile.dim;
  auto largest = hn::Zero(d);
  for (int i = 0; i < tile.rows; ++i) {
    float* const to = tile.scratch + i * tile.dim;
    const char* const from = static_cast<const char*>(tile.source) + i * tile.stride_from * size_of(tile.from);
    float* const as_read = tile.block > 0 ? row : to;
    to_floats(from, tile.from, tile.dim, as_read);
    for (int c = 0; tile.mean && c < tile.dim; c += eight)
      hn::StoreU(hn::Sub(hn::LoadU(d, as_read + c), hn::LoadU(d, tile.mean + c)), d, as_read + c);
    if (tile.block > 0) {
      for (int c = 0; c < tile.dim; c += eight)
        hn::StoreU(hn::Mul(hn::LoadU(d, row + c), hn::LoadU(d, tile.factors + c)), d, row + c);
      for (int c = 0; c < tile.dim; c += tile.block)
        std::memcpy(to + c, hadamard(row + c, row + tile.dim + c, tile.block), tile.block * sizeof(float));
    }
    for (int c = 0; c < tile.dim; c += eight) {
      const auto size = hn::Abs(hn::LoadU(d, to + c));
      largest = hn::IfThenElse(hn::Gt(size, largest), size, largest);
    }
  }
  return hn::GetLane(hn::MaxOfLanes(d, largest));
}

// Writes the rows that largest_of_rows left in the scratch, divided by the scale.
void write_quantised_rows(const RowsToQuantise& tile, float scale) {
  const Eight d;
  const auto divisor = hn::Set(d, scale);
  for (int i = 0; i < tile.rows; ++i) {
    uint8_t* const to = static_cast<uint8_t*>(tile.destination) + i * tile.stride_to;
    for (int c = 0; c < tile.dim; c += eight)
      store_8_bits(tile.to, hn::Div(hn::LoadU(d, tile.scratch + i * tile.dim + c), divisor), to + c);
  }
}

}  // namespace froghopper::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
