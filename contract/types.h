// SPDX-License-Identifier: Apache-2.0
// contract: what host and device code agree on. Both compilers read the files of this folder, which know neither std
// nor CUDA. This file: the terms that kernels of every family share.
#pragma once

namespace froghopper {

// No `default` in the switches below, nor anywhere over these types: a new value does not compile until every switch
// has an answer for it.
enum class Dtype : unsigned char { f16 = 1, bf16 = 2, f32 = 3, e4m3 = 4, e5m2 = 5 };

constexpr int size_of(Dtype t) {
  switch (t) {
    case Dtype::f16:
    case Dtype::bf16: return 2;
    case Dtype::f32: return 4;
    case Dtype::e4m3:
    case Dtype::e5m2: return 1;
  }
  return 0;
}

constexpr bool is_8_bit(Dtype t) { return size_of(t) == 1; }  // values that have a scale

constexpr Dtype dtypes[] = {Dtype::f16, Dtype::bf16, Dtype::f32, Dtype::e4m3, Dtype::e5m2};

// As problems and kernels are spelled.
constexpr const char* name_of(Dtype t) {
  switch (t) {
    case Dtype::f16: return "f16";
    case Dtype::bf16: return "bf16";
    case Dtype::f32: return "f32";
    case Dtype::e4m3: return "e4m3";
    case Dtype::e5m2: return "e5m2";
  }
  return "";
}

// Which keys a query row attends to, as far as it changes the machine code.
enum class Mask : unsigned char {
  none,    // all keys of the sequence
  causal,  // those below an upper bound, which grows by one a row
  window,  // those between a lower and an upper bound, which both grow by one a row
  chunk    // those of a window that lie in the row's chunk of attention_chunk keys, where its diagonal is
};

constexpr Mask masks[] = {Mask::none, Mask::causal, Mask::window, Mask::chunk};

constexpr bool bounded_below(Mask m) { return m == Mask::window || m == Mask::chunk; }

constexpr const char* name_of(Mask m) {  // "": a kernel without a mask does not name it
  switch (m) {
    case Mask::none: return "";
    case Mask::causal: return "causal";
    case Mask::window: return "window";
    case Mask::chunk: return "chunk";
  }
  return "";
}

// Where the rows of K and V lie, as far as it changes the machine code: device/fwd/kv_source.cuh.
enum class KvLayout : unsigned char {
  contiguous,  // the rows of a sequence lie one after the other
  pages,       // in pages of a pool, of which 8 rows or more follow each other, so that TMA loads them by boxes
  // In pages of which fewer rows follow each other, down to single rows, so that a warp copies row by row with cp.async
  // (PagedKVNonTMA in FlashAttention-3).
  page_rows
};

constexpr KvLayout kv_layouts[] = {KvLayout::contiguous, KvLayout::pages, KvLayout::page_rows};

constexpr const char* name_of(KvLayout layout) {  // "": not named
  switch (layout) {
    case KvLayout::contiguous: return "";
    case KvLayout::pages: return "pages";
    case KvLayout::page_rows: return "pagerows";
  }
  return "";
}

// How the keys of a tile are divided among work items: contract/split.h.
enum class SplitKv : unsigned char {
  none,   // not at all
  fixed,  // into parts of SplitParams::tiles kv tiles
  even    // so that every CTA has equally many kv tiles
};

constexpr SplitKv splits[] = {SplitKv::none, SplitKv::fixed, SplitKv::even};

constexpr const char* name_of(SplitKv split) {  // "": a kernel without does not name it
  switch (split) {
    case SplitKv::none: return "";
    case SplitKv::fixed: return "split";
    case SplitKv::even: return "evensplit";
  }
  return "";
}

// Score modifications, which come before the mask and the softmax: device/fwd/score_mod.cuh, device/bwd/score_mod.cuh.
struct ScoreMods {
  bool softcap;  // they pass through tanh
  bool alibi;    // they fall with the distance of the keys
  bool operator==(const ScoreMods&) const = default;
};

// Head dims of the tiles: of Q and K, and of V and O. TMA fills up smaller head dims in memory with zeros.
struct Dims {
  int qk, v;
  bool operator==(const Dims&) const = default;
};

// Tile sizes. They change speed, registers and shared memory, and the order of sums, so the last bits of a result:
// never more of it than rounding.
struct Tiles {
  int q, kv, stages;  // query rows of a CTA; key and value rows of a ring's stage; stages
  bool operator==(const Tiles&) const = default;
};

// Rows of a sequence that share a scale, in 8-bit Q, K and V where not all rows do. Tiles are cut so that one scale is
// enough for each.
constexpr int scale_block = 128;
// Whether tiles of so many keys do. The smallest are for head dims above 256, and for 256 with scales of rows.
constexpr bool in_scale_block(int keys) {
  return keys == scale_block || keys == scale_block / 2 || keys == scale_block / 4;
}

constexpr int warpgroup = 128;              // threads that execute one wgmma together
constexpr int m_tile_rows = 64;             // M of wgmma: query rows in the forward pass, keys in the backward pass
constexpr int smem_bytes_per_cta = 232448;  // 227 KiB, what sm_90 gives one CTA
constexpr int smem_bytes_of_half = 115712;  // and each of two: half of its 228 KiB, less 1 KiB that each CTA costs
constexpr int smem_bytes_of_one_cta_an_sm = smem_bytes_of_half + 128;  // so that no second CTA finds room

// A tile in shared memory is made of panels: all rows of the tile, and of its columns 128 bytes, a row of the 128-byte
// swizzle (device/tile/shared_tile.cuh). 96 columns of a 2-byte type take two.
constexpr int panel_row_bytes = 128;
constexpr int panel_columns = panel_row_bytes / 2;  // of a 2-byte type
constexpr int panels(int dim, int bytes = 2) { return (dim * bytes + panel_row_bytes - 1) / panel_row_bytes; }

}  // namespace froghopper
