// SPDX-License-Identifier: Apache-2.0
// cpu: products in AMX tiles, and an emulation of them, so that any machine can test them.
//
// A block of out is up to 2 x 2 tiles of 16 x 16 floats. A step takes 16 pairs of up to 32 rows of a and 32 columns of
// b, two tiles of each, and adds four products. Remaining rows or pairs are a smaller tile.
#include <algorithm>
#include <cstring>

#include "src/base/storage.hpp"
#include "src/cpu/factors.hpp"
#include "src/cpu/processor.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace froghopper::cpu {
namespace {

constexpr int tile = 16;  // rows of a tile, and floats or pairs of a row

// The shape of a block of out, and of the tiles of a and b.
struct Shape {
  int rows[2];          // of its upper and lower tiles; the lower may be 0
  int columns;          // tiles side by side, 1 or 2
  int pairs;            // of a step
  size_t out_row;       // floats
  size_t a_row, b_row;  // pairs

  int height() const { return rows[0] + rows[1]; }
  int width() const { return columns * tile; }
};

// Blocks of one shape, for which tiles are configured once. rows and columns: multiples of the block's.
template <class Tiles>
void multiply_blocks(const Shape& shape, const Factors<Pair>& f, int rows, int columns) {
  Tiles tiles(shape);
  for (int r = 0; r < rows; r += shape.height()) {
    for (int c = 0; c < columns; c += shape.width()) {
      float* const out = f.out + r * f.out_row + c;
      if (f.adds) {
        tiles.load(out);
      } else {
        tiles.zero();
      }
      for (size_t i = 0; i < f.count; i += shape.pairs) tiles.step(f.a + r * f.a_row + i, f.b + i * f.b_step + c);
      tiles.store(out);
    }
  }
}

// count: one step, or whole steps of 16 pairs. Computes whole blocks, then the remaining rows and columns.
template <class Tiles>
void multiply_steps(const Factors<Pair>& all, int rows, int columns) {
  constexpr int block = 2 * tile;
  const int rest_rows = rows % block, rest_columns = columns % block;
  for (const bool last_rows : {false, true}) {
    for (const bool last_columns : {false, true}) {
      const int height = last_rows ? rest_rows : rows - rest_rows;
      const int width = last_columns ? rest_columns : columns - rest_columns;
      if (height == 0 || width == 0) continue;
      Factors<Pair> f = all;
      const int r = last_rows ? rows - rest_rows : 0, c = last_columns ? columns - rest_columns : 0;
      f.a += r * f.a_row;
      f.b += c;
      f.out += r * f.out_row + c;
      multiply_blocks<Tiles>({.rows = {std::min(tile, height), std::clamp(height - tile, 0, tile)},
                              .columns = last_columns ? 1 : 2,
                              .pairs = static_cast<int>(std::min<size_t>(tile, f.count)),
                              .out_row = f.out_row,
                              .a_row = f.a_row,
                              .b_row = f.b_step},
                             f, height, width);
    }
  }
}

template <class Tiles>
void multiply(Factors<Pair> f, int rows, int columns) {
  const size_t whole = f.count / tile * tile, rest = f.count - whole;
  if (whole > 0) {
    f.count = whole;
    multiply_steps<Tiles>(f, rows, columns);
    f.adds = true;
  }
  if (rest > 0) {
    f.a += whole;
    f.b += whole * f.b_step;
    f.count = rest;
    multiply_steps<Tiles>(f, rows, columns);
  }
}

// The tile registers as arrays. Tiles 0 to 3 hold out, 4 and 5 a, 6 and 7 b.
class Emulated {
 public:
  explicit Emulated(const Shape& shape) : s_(shape) {}

  void zero() { std::memset(sum_, 0, sizeof sum_); }
  void load(const float* out) {
    each([&](float& sum, size_t at) { sum = out[at]; });
  }
  void store(float* out) {
    each([&](const float& sum, size_t at) { out[at] = sum; });
  }
  void step(const Pair* a, const Pair* b) {
    each([&](float& sum, size_t at) {
      const size_t row = at / s_.out_row, column = at % s_.out_row;
      for (int i = 0; i < s_.pairs; ++i) {
        const Pair x = a[row * s_.a_row + i], y = b[i * s_.b_row + column];
        sum += bf16_to_float(x.first) * bf16_to_float(y.first);
        sum += bf16_to_float(x.second) * bf16_to_float(y.second);
      }
    });
  }

 private:
  template <class Do>
  void each(const Do& what) {
    for (int n = 0; n < 2 * s_.columns; ++n) {
      for (int r = 0; r < s_.rows[n / s_.columns]; ++r) {
        for (int c = 0; c < tile; ++c)
          what(sum_[n][r][c], (n / s_.columns * tile + r) * s_.out_row + n % s_.columns * tile + c);
      }
    }
  }

  const Shape& s_;
  float sum_[4][tile][tile];
};

#if defined(__x86_64__)
#define FROGHOPPER_AMX __attribute__((target("amx-tile,amx-bf16")))

// The intrinsics take the numbers of tiles as literals, so each is written out.
class Amx {
 public:
  FROGHOPPER_AMX explicit Amx(const Shape& shape) : s_(shape), lower_(shape.rows[1] > 0), right_(shape.columns > 1) {
    // The layout is in Intel's manual. GCC's intrinsic declares only 8 of the 64 bytes as read, so they are volatile.
    alignas(64) volatile uint8_t config[64] = {1};
    const auto set = [&](int n, int rows, int values) {
      config[16 + 2 * n] = static_cast<uint8_t>(rows > 0 ? 4 * values : 0);  // bytes of a row
      config[48 + n] = static_cast<uint8_t>(rows);
    };
    for (int n = 0; n < 4; ++n) set(n, n % 2 < s_.columns ? s_.rows[n / 2] : 0, tile);
    for (int n = 0; n < 2; ++n) set(4 + n, s_.rows[n], s_.pairs);
    for (int n = 0; n < 2; ++n) set(6 + n, n < s_.columns ? s_.pairs : 0, tile);
    _tile_loadconfig(const_cast<const uint8_t*>(config));
  }
  FROGHOPPER_AMX ~Amx() { _tile_release(); }  // makes context switches cheaper
  Amx(const Amx&) = delete;
  Amx& operator=(const Amx&) = delete;

  FROGHOPPER_AMX void zero() {
    _tile_zero(0);
    if (right_) _tile_zero(1);
    if (lower_) _tile_zero(2);
    if (lower_ && right_) _tile_zero(3);
  }
  FROGHOPPER_AMX void load(const float* out) {
    _tile_loadd(0, out, bytes(s_.out_row));
    if (right_) _tile_loadd(1, out + tile, bytes(s_.out_row));
    if (lower_) _tile_loadd(2, out + tile * s_.out_row, bytes(s_.out_row));
    if (lower_ && right_) _tile_loadd(3, out + tile * s_.out_row + tile, bytes(s_.out_row));
  }
  FROGHOPPER_AMX void store(float* out) {
    _tile_stored(0, out, bytes(s_.out_row));
    if (right_) _tile_stored(1, out + tile, bytes(s_.out_row));
    if (lower_) _tile_stored(2, out + tile * s_.out_row, bytes(s_.out_row));
    if (lower_ && right_) _tile_stored(3, out + tile * s_.out_row + tile, bytes(s_.out_row));
  }
  FROGHOPPER_AMX void step(const Pair* a, const Pair* b) {
    _tile_loadd(4, a, bytes(s_.a_row));
    _tile_loadd(6, b, bytes(s_.b_row));
    _tile_dpbf16ps(0, 4, 6);
    if (right_) {
      _tile_loadd(7, b + tile, bytes(s_.b_row));
      _tile_dpbf16ps(1, 4, 7);
    }
    if (lower_) {
      _tile_loadd(5, a + tile * s_.a_row, bytes(s_.a_row));
      _tile_dpbf16ps(2, 5, 6);
    }
    if (lower_ && right_) _tile_dpbf16ps(3, 5, 7);
  }

 private:
  static size_t bytes(size_t values) { return 4 * values; }

  const Shape& s_;
  const bool lower_, right_;
};

// Linux gives a process the tile registers when it asks for them.
bool ask_for_tiles() {
  constexpr long request_permission = 0x1023, tile_data = 18;
  return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}
#endif

}  // namespace

void multiply_emulated_tiles(const Factors<Pair>& f, int rows, int columns) { multiply<Emulated>(f, rows, columns); }

#if defined(__x86_64__)
bool has_amx() {
  static const bool here = processor().amx_tile && processor().amx_bf16 && ask_for_tiles();
  return here;
}
void multiply_tiles(const Factors<Pair>& f, int rows, int columns) { multiply<Amx>(f, rows, columns); }
#else
bool has_amx() { return false; }
void multiply_tiles(const Factors<Pair>& f, int rows, int columns) { multiply_emulated_tiles(f, rows, columns); }
#endif

}  // namespace froghopper::cpu
