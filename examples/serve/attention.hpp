// SPDX-License-Identifier: Apache-2.0
// Attention of all layers: the rows of k and v in the pool, and one call of froghopper a layer and step, in which some
// sequences decode a token and others read a chunk of their prompt.
#pragma once
#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <froghopper/froghopper.hpp>
#include <string>
#include <utility>
#include <vector>

#include "batch.hpp"
#include "device.hpp"
#include "pool.hpp"
#include "weights.hpp"

namespace serve {

// Numbers as they are stored for attention: f32, or bf16 rounded to the nearest.
inline std::vector<std::byte> stored(const Values& values, froghopper::Dtype dtype) {
  if (dtype == froghopper::Dtype::f32) {
    const auto* const bytes = reinterpret_cast<const std::byte*>(values.data());
    return {bytes, bytes + values.size() * sizeof(float)};
  }
  std::vector<std::byte> bytes(values.size() * sizeof(uint16_t));
  for (size_t i = 0; i < values.size(); ++i) {
    const auto bits = std::bit_cast<uint32_t>(values[i]);
    const auto upper = static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    std::memcpy(&bytes[i * sizeof upper], &upper, sizeof upper);
  }
  return bytes;
}

inline Values loaded(const std::vector<std::byte>& bytes, froghopper::Dtype dtype) {
  Values values(bytes.size() / (dtype == froghopper::Dtype::f32 ? sizeof(float) : sizeof(uint16_t)));
  if (dtype == froghopper::Dtype::f32) return std::memcpy(values.data(), bytes.data(), bytes.size()), values;
  for (size_t i = 0; i < values.size(); ++i) {
    uint16_t upper;
    std::memcpy(&upper, &bytes[i * sizeof upper], sizeof upper);
    values[i] = std::bit_cast<float>(uint32_t{upper} << 16);
  }
  return values;
}

class Attention {
 public:
  Attention(const Config& config, const Limits& limits, froghopper::Dtype dtype, Device& device)
      : config_(config), limits_(limits), dtype_(dtype), device_(device) {
    const std::vector<std::byte> nothing(pool_bytes(), std::byte{0xff});  // NaN: no row counts that was not written
    device_.write(pool_.get(), nothing.data(), nothing.size());
  }

  // The lengths and the pages of a step's sequences, for all layers. Plans are made for limits.sequences, so the rest
  // of them have no rows.
  void begin(const Batch& batch) {
    std::vector<int32_t> begins(limits_.sequences + 1, static_cast<int32_t>(batch.rows()));
    std::vector<int32_t> lengths(limits_.sequences), table(limits_.sequences * columns_);
    begins[0] = 0;
    std::ranges::copy(batch.ends, begins.begin() + 1);
    std::ranges::copy(batch.lengths, lengths.begin());
    for (int64_t i = 0; i < batch.sequences(); ++i) std::ranges::copy(batch.pages[i], table.begin() + i * columns_);
    write(begins_, begins), write(lengths_, lengths), write(table_, table);
    plan_ = batch.only_decodes() ? &decode_ : &mixed_;
    slots_ = &batch.slots;
  }

  // The new rows of k and v, [rows, heads_kv, dim], go to the pool, each to its slot. Neighbours are copied together.
  void append(int64_t layer, const Values& k, const Values& v) {
    const Clock clock(seconds_);
    for (const auto& [values, where] : {std::pair{&k, k_of(layer)}, std::pair{&v, v_of(layer)}}) {
      const std::vector<std::byte> bytes = stored(*values, dtype_);
      for (size_t row = 0, end = 0; row < slots_->size(); row = end) {
        for (end = row + 1; end < slots_->size() && (*slots_)[end] == (*slots_)[end - 1] + 1;) ++end;
        device_.write(where + (*slots_)[row] * row_bytes(), &bytes[row * row_bytes()], (end - row) * row_bytes());
      }
    }
  }

  // o of the batch's rows, [rows, heads_q, dim], of q likewise and of everything their sequences have in the pool.
  Values run(int64_t layer, const Values& q) {
    const Clock clock(seconds_);
    const std::vector<std::byte> bytes = stored(q, dtype_);
    device_.write(q_.get(), bytes.data(), bytes.size());
    plan_->run({.q = froghopper::dense(q_.get(), limits_.rows, config_.heads_q, config_.dim),
                .k = froghopper::dense(k_of(layer), Pool::page_size, config_.heads_kv, config_.dim),
                .v = froghopper::dense(v_of(layer), Pool::page_size, config_.heads_kv, config_.dim),
                .o = froghopper::dense(o_.get(), limits_.rows, config_.heads_q, config_.dim),
                .cu_seqlens_q = static_cast<const int32_t*>(begins_.get()),
                .seqused_kv = static_cast<const int32_t*>(lengths_.get()),
                .block_table = {table_.get(), columns_, 1, 0}},
               workspace_.get(), workspace_bytes_, device_.stream());
    std::vector<std::byte> o(bytes.size());
    device_.read(o.data(), o_.get(), o.size());
    return loaded(o, dtype_);
  }

  double seconds() const { return seconds_; }  // in append() and run(), copies to the device and back included
  std::string plan_lines() const { return decode_.line() + "\n" + mixed_.line(); }

 private:
  // Adds the time that it lives.
  struct Clock {
    explicit Clock(double& total) : sum(total) {}
    ~Clock() { sum += std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count(); }
    double& sum;
    std::chrono::steady_clock::time_point began = std::chrono::steady_clock::now();
  };

  // Packed q beside pages: cu_seqlens_q says whose rows they are, seqused_kv how many keys a sequence has with these
  // rows, the last of which is level with the last key.
  froghopper::Problem problem(int64_t rows_of_a_sequence, int64_t rows) const {
    return {.dtype = dtype_,
            .batch = limits_.sequences,
            .heads_q = config_.heads_q,
            .heads_kv = config_.heads_kv,
            .seq_q = rows_of_a_sequence,
            .seq_kv = limits_.context,
            .dim_qk = config_.dim,
            .varlen = true,
            .total_q = rows,
            .seqused = true,
            .causal = true,
            .page_size = Pool::page_size,
            .pages = limits_.pages};
  }

  size_t element_bytes() const { return dtype_ == froghopper::Dtype::f32 ? sizeof(float) : sizeof(uint16_t); }
  size_t row_bytes() const { return config_.heads_kv * config_.dim * element_bytes(); }
  size_t layer_bytes() const { return limits_.pages * Pool::page_size * row_bytes(); }  // of k, and of v
  size_t pool_bytes() const { return 2 * config_.layers * layer_bytes(); }
  size_t q_bytes() const { return limits_.rows * config_.heads_q * config_.dim * element_bytes(); }
  std::byte* k_of(int64_t layer) const { return static_cast<std::byte*>(pool_.get()) + 2 * layer * layer_bytes(); }
  std::byte* v_of(int64_t layer) const { return k_of(layer) + layer_bytes(); }
  void write(const Memory& to, const std::vector<int32_t>& numbers) {
    device_.write(to.get(), numbers.data(), numbers.size() * sizeof(int32_t));
  }

  Config config_;
  Limits limits_;
  froghopper::Dtype dtype_;
  Device& device_;
  int64_t columns_ = (limits_.context + Pool::page_size - 1) / Pool::page_size;

  // Two plans serve every step. One is for steps in which every sequence has one row.
  froghopper::Plan decode_{problem(1, limits_.sequences), device_.target()};
  froghopper::Plan mixed_{problem(limits_.rows, limits_.rows), device_.target()};
  size_t workspace_bytes_ = std::max(decode_.workspace_bytes(), mixed_.workspace_bytes());

  Memory pool_ = memory_of(device_, pool_bytes());  // [layers, k and v, pages, page_size, heads_kv, dim]
  Memory q_ = memory_of(device_, q_bytes()), o_ = memory_of(device_, q_bytes());
  Memory begins_ = memory_of(device_, (limits_.sequences + 1) * sizeof(int32_t));
  Memory lengths_ = memory_of(device_, limits_.sequences * sizeof(int32_t));
  Memory table_ = memory_of(device_, limits_.sequences* columns_ * sizeof(int32_t));
  Memory workspace_ = memory_of(device_, workspace_bytes_ + 1);  // never 0 bytes

  const froghopper::Plan* plan_ = nullptr;  // of this step
  const std::vector<int32_t>* slots_ = nullptr;
  double seconds_ = 0;
};

}  // namespace serve
