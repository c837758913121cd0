// SPDX-License-Identifier: Apache-2.0
// plan: what Hopper kernels refuse in either pass, and what a problem asks of them.
#include "src/plan/both_passes.hpp"

#include <algorithm>

#include "src/base/text.hpp"
#include "src/plan/forward.hpp"

namespace froghopper {
namespace {

// Rows are 32-bit inside the kernel, and a mask adds two of them to no_bound<int>, 2^30.
constexpr int64_t seq_max = int64_t{1} << 29;

// Head dims for which batch-invariant tiles of q and k fit shared memory.
constexpr int64_t dim_max_of_batch_invariant = 256;

// What only the CPU combines.
std::string only_on_cpu(const Problem& p) {
  if (p.invariant && p.dim_qk > dim_max_of_batch_invariant)
    return text(
        "invariant is set and dim_qk is {}; the Hopper kernels have it up to {}. Set invariant to 0, or use target "
        "\"cpu\".",
        p.dim_qk, dim_max_of_batch_invariant);
  return {};
}

}  // namespace

Failure unsupported(std::string why) { return {FH_UNSUPPORTED, std::move(why)}; }

// The kernels' tanh is off by up to 2^-22, a score by softcap times that: here by 2^-7, with which a weight is as far
// off as by being rounded to bf16.
constexpr float softcap_max = 0x1p15f;

Result<void> check_limits(const Problem& p) {
  if (p.dtype == Dtype::f32)
    return unsupported(
        "dtype is f32; the Hopper kernels take f16 and bf16. Convert q, k and v, or use target \"cpu\".");
  for (const auto& [name, value] : {std::pair{"seq_q", p.seq_q},
                                    {"seq_kv", p.seq_kv},
                                    {"total_q", p.total_q},
                                    {"total_kv", p.total_kv},
                                    {"page_size", p.page_size},
                                    {"pages", p.pages},
                                    {"batch", p.batch},
                                    {"heads_q", p.heads_q}})
    if (value >= seq_max)
      return unsupported(
          text("{} is {}; the Hopper kernels count to 2^29 - 1 in each direction. Split the problem, or use "
               "target \"cpu\".",
               name, value));
  if (p.invariant && is_8_bit(p.dtype_kv))
    return unsupported(
        text("invariant is set and {} is {}; the Hopper kernels have it for f16 and bf16. Set invariant to 0, or use "
             "target \"cpu\".",
             is_8_bit(p.dtype) ? "dtype" : "dtype_kv", name_of(p.dtype_kv)));
  if (p.scale_tokens && is_8_bit(p.dtype))
    return unsupported(
        text("scale_tokens is set and dtype is {}; the Hopper kernels have it with q in f16 and bf16. Convert q, or "
             "use target \"cpu\".",
             name_of(p.dtype)));
  if (p.softcap > softcap_max)
    return unsupported(
        text("softcap is {}; the Hopper kernels take up to {}, beyond which scores are not exact enough. Use 0 for "
             "none, or target \"cpu\".",
             p.softcap, softcap_max));
  if (std::string why = only_on_cpu(p); !why.empty()) return unsupported(std::move(why));
  return {};
}

Result<Dims> choose_dims(const Problem& p) {
  if (const auto dims = tile_dims(p.dim_qk, p.dim_v)) return *dims;
  return unsupported(
      text("dim_qk is {} and dim_v is {}; the Hopper kernels take up to 512 of each. Use target \"cpu\".", p.dim_qk,
           p.dim_v));
}

Result<void> check_tiles(const Problem& p, Tiles tiles, const char* why_invalid) {
  if (!why_invalid) return {};
  return unsupported(text("tiles={}x{}s{} cannot be used for {}: {}. Leave tiles out to get the tuned ones.", tiles.q,
                          tiles.kv, tiles.stages, p.line(), why_invalid));
}

bool has_chunks(const Problem& p) {
  // A single one: the diagonal of a causal row is at a key that exists, or before it, and then the row attends to none.
  const int64_t keys = p.kv_is_packed() ? p.total_kv : p.seq_kv;
  const bool one = p.attention_chunk >= keys && p.window_right == 0 && p.align != FH_TOP_LEFT;
  return p.attention_chunk > 0 && !one;
}

Mask kernel_mask(const Problem& p) {
  if (has_chunks(p)) return Mask::chunk;
  if (p.window_left != all_keys) return Mask::window;
  return p.window_right != all_keys ? Mask::causal : Mask::none;
}

int usable_sms(const Problem& p, const Device& device) {
  return p.max_sms > 0 ? static_cast<int>(std::min<int64_t>(p.max_sms, device.sms)) : device.sms;
}

}  // namespace froghopper
