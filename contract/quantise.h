// SPDX-License-Identifier: Apache-2.0
// contract: the constants of quantising, on host and device.
//
// Scales. What is stored is a value divided by the scale of its block, rounded to nearest even; the scale is the
// block's largest magnitude / the largest value of the type, at least 2^-126, and 1 where all of the block are 0.
//
// The rotation of q and k before they are quantised. Both are multiplied by one orthogonal matrix, so q k^T
// stays as it is, and what was one large entry of a row is spread over all of them.
//
// The columns are cut into blocks of b, the largest power of two that divides the head dim. Within a block
//
//   rotated[i] = 1/sqrt(b) sum over j of (-1)^ones(i & j) sign(j) x[j]
//
// with i and j counted from the block's first column, and ones() the number of bits that are 1: a Hadamard matrix in
// Sylvester's order, after a random sign for each column. The signs follow from the seed and the column in the row, for
// every head the same.
#pragma once
#include "contract/types.h"

namespace froghopper {

constexpr int quantise_rows = scale_block;  // of a tile

// The largest value of an 8-bit type.
constexpr float largest_of(Dtype to) { return to == Dtype::e5m2 ? 57344.f : 448.f; }
constexpr float smallest_scale = 1.17549435e-38f;  // the smallest normal number: its reciprocal is finite

constexpr int rotation_block(int dim) { return dim & -dim; }

// Whether sign(j) is -1. Murmur3's last steps, which make all bits of the result depend on all bits of the number.
constexpr bool rotation_flips(unsigned int seed, int column) {
  unsigned int x = seed * 0x9e3779b9u + static_cast<unsigned int>(column);
  x = (x ^ x >> 16) * 0x85ebca6bu;
  x = (x ^ x >> 13) * 0xc2b2ae35u;
  return (x ^ x >> 16) >> 31 != 0;
}

// Whether the entry of the Hadamard matrix is -1.
constexpr bool hadamard_flips(int i, int j) {
  unsigned int both = static_cast<unsigned int>(i & j);  // the head dim is at most 256: 8 bits
  both ^= both >> 4;
  both ^= both >> 2;
  return ((both ^ both >> 1) & 1) != 0;
}

}  // namespace froghopper
