// SPDX-License-Identifier: Apache-2.0
// cpu: a KV tile of the forward pass: k and v of one head, in the layout that products need.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>

#include "src/cpu/work.hpp"

#if defined(FROGHOPPER_CPU_KEY_TILE_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef FROGHOPPER_CPU_KEY_TILE_INL
#undef FROGHOPPER_CPU_KEY_TILE_INL
#else
#define FROGHOPPER_CPU_KEY_TILE_INL
#endif
#include "hwy/highway.h"
#include "src/cpu/convert-inl.hpp"
#include "src/cpu/pairs-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace froghopper::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class Gemm>
class KeyTile {
  using Element = typename Gemm::Element;
  static constexpr int per_element = Gemm::per_element;
  static constexpr bool in_floats = per_element == 1;

 public:
  // in_place: k and v are read in place.
  KeyTile(const Work& work, bool in_place) : w_(work), in_place_(in_place) {}

  struct Memory {
    Element *k, *v;   // of work.tile_kv keys
    float* v_floats;  // likewise; with pairs, used where v is not finite
    float *scales_k, *scales_v;
    Element* four;            // four rows before a transposition
    void *paged_k, *paged_v;  // for pages: the rows of a tile, as they are stored
  };
  void place(const Memory& memory) { m_ = memory; }

  // k of fp32 is read in place. v is read by columns, which with the user's strides would often fall on few sets of
  // the cache, so it is copied, except for a single row, which reads it by rows.
  void load(int head, int64_t begin, int keys) {
    first_key_ = begin;
    stored_k_ = stored(w_.k, head, begin, keys, w_.dim_qk, m_.paged_k);
    stored_v_ = stored(w_.v, head, begin, keys, w_.dim_v, m_.paged_v);
    keys_ = keys;
    v_floats_loaded_ = in_floats;
    v_finite_.reset();
    const auto& [scales_k, scales_v, mean_k, mean_v] = w_.of_heads[head];
    if (scales_k) scales_k.of_rows(begin, keys, m_.scales_k);
    if (scales_v.by_rows()) scales_v.of_rows(begin, keys, m_.scales_v);
    if (in_place_) return;
    if constexpr (in_floats)
      load_v_floats();
    else
      load_v_pairs();
    load_k();
  }

  // Prefetches the next tile while this one is computed. Its rows are far apart, so that the processor's own
  // prefetcher does not find them.
  void prefetch(int64_t begin, int keys) const {
    const auto prefetch_rows = [&](const KvRows& rows, int dim) {
      const int64_t row_bytes = rows.stride() * size_of(w_.dtype_kv);
      const int64_t head_bytes = rows.head_stride() * size_of(w_.dtype_kv);
      for (int j = 0; j < keys;) {
        const char* row = rows.address(begin + j, w_.first_head);
        for (const auto end = std::min<int64_t>(keys, j + rows.run(begin + j)); j < end; ++j, row += row_bytes)
          for (int head = 0; head < w_.heads; ++head)
            for (int at = 0; at < dim * size_of(w_.dtype_kv); at += 64)
              __builtin_prefetch(row + head * head_bytes + at, 0, 2);
      }
    };
    prefetch_rows(w_.k, w_.dim_qk);
    prefetch_rows(w_.v, w_.dim_v);
  }

  int64_t first_key() const { return first_key_; }
  const Element* k() const { return k_; }                // [keys][k_row]
  int64_t k_row() const { return k_row_; }               // elements
  const Element* v() const { return m_.v; }              // see load_v_pairs; floats: [keys][dim_v]
  const float* scales_k() const { return m_.scales_k; }  // of 8-bit k, by key
  const float* scales_v() const { return m_.scales_v; }  // by key, where blocks of rows have scales
  // Rows of the tile as they are stored, and their strides in elements.
  const void* stored_k(int j) const { return stored_k_.first + j * stored_k_.stride * size_of(w_.dtype_kv); }
  const void* stored_v(int j) const { return stored_v_.first + j * stored_v_.stride * size_of(w_.dtype_kv); }
  int64_t stride_k() const { return stored_k_.stride; }
  int64_t stride_v() const { return stored_v_.stride; }

  // Of v in this tile; called for boundary tiles only.
  bool v_is_finite() {
    if (!v_finite_) {
      v_finite_ = true;
      uint16_t room[dim_max];
      for (int j = 0; j < keys_ && *v_finite_; ++j)
        v_finite_ = in_floats ? all_finite(m_.v_floats + j * w_.dim_v, w_.dim_v)
                              : all_finite_bf16(as_bf16(stored_v(j), w_.dtype_kv, w_.dim_v, room), w_.dim_v);
    }
    return *v_finite_;
  }

  const float* v_floats() {
    if (!v_floats_loaded_) load_v_floats();
    v_floats_loaded_ = true;
    return m_.v_floats;
  }

 private:
  struct Stored {
    const char* first;
    int64_t stride;
  };
  // Rows in several pages are copied, so that all steps read them with one stride.
  Stored stored(const KvRows& rows, int head, int64_t begin, int keys, int dim, void* room) const {
    const char* const first = rows.address(begin, w_.first_head + head);
    if (rows.run(begin) >= keys) return {first, rows.stride()};
    auto* const to = static_cast<char*>(room);
    const int64_t row_bytes = int64_t{dim} * size_of(w_.dtype_kv), step = rows.stride() * size_of(w_.dtype_kv);
    for (int j = 0; j < keys;) {
      const char* row = rows.address(begin + j, w_.first_head + head);
      for (const auto end = std::min<int64_t>(keys, j + rows.run(begin + j)); j < end; ++j, row += step)
        std::memcpy(to + j * row_bytes, row, static_cast<size_t>(row_bytes));
    }
    return {to, dim};
  }

  void load_k() {
    if (in_floats && w_.dtype_kv == Dtype::f32) {
      k_ = reinterpret_cast<const Element*>(stored_k_.first);
      k_row_ = stored_k_.stride;
      return;
    }
    k_ = m_.k;
    k_row_ = w_.dim_qk / per_element;
    for (int j = 0; j < keys_; ++j) to_elements(stored_k(j), w_.dtype_kv, w_.dim_qk, m_.k + j * k_row_);
  }

  void load_v_floats() {
    for (int j = 0; j < keys_; ++j) to_floats(stored_v(j), w_.dtype_kv, w_.dim_v, m_.v_floats + j * w_.dim_v);
  }

  // Across, [keys / 2][dim_v]; for tiles transposed, [dim_v][w_.tile_kv / 2]. A last key without a partner is paired
  // with zeros.
  void load_v_pairs() {
    const auto pair_row = [&](int j, Pair* to) {
      static constexpr uint16_t zeros[dim_max] = {};
      uint16_t first[dim_max], second[dim_max];
      const auto row = [&](int key, uint16_t* room) {
        return key < keys_ ? as_bf16(stored_v(key), w_.dtype_kv, w_.dim_v, room) : zeros;
      };
      across(row(j, first), row(j + 1, second), w_.dim_v, to);
    };
    if constexpr (Gemm::tiles) {
      int j = 0;
#if HWY_TARGET == HWY_AVX3
      const auto columns = w_.dtype_kv == Dtype::e4m3   ? pairs_of_columns<Dtype::e4m3>
                           : w_.dtype_kv == Dtype::e5m2 ? pairs_of_columns<Dtype::e5m2>
                                                        : pairs_of_columns<Dtype::bf16>;
      const int bytes = size_of(w_.dtype_kv);
      for (; w_.dim_v % 16 == 0 && j + 32 <= keys_; j += 32)
        for (int c = 0; c < w_.dim_v; c += 16)
          columns(static_cast<const char*>(stored_v(j)) + c * bytes, stored_v_.stride * bytes,
                  m_.v + c * (w_.tile_kv / 2) + j / 2, w_.tile_kv / 2);
#endif
      for (; j < keys_; j += 8) {
        for (int r = 0; r < 4; ++r) pair_row(j + 2 * r, m_.four + r * dim_max);
        transpose(m_.four, dim_max, 4, w_.dim_v, m_.v + j / 2, w_.tile_kv / 2);
      }
    } else {
      for (int j = 0; j < keys_; j += 2) pair_row(j, m_.v + j / 2 * w_.dim_v);
    }
  }

  const Work& w_;
  const bool in_place_;
  Memory m_;
  Stored stored_k_, stored_v_;
  int64_t first_key_;
  int keys_;
  const Element* k_;
  int64_t k_row_;
  bool v_floats_loaded_;
  std::optional<bool> v_finite_;  // empty until v_is_finite is called
};

}  // namespace froghopper::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
