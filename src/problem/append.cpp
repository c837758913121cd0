// SPDX-License-Identifier: Apache-2.0
// problem: what only an append problem has: its rules, which tensors go together, and where its rows go.
#include <cmath>

#include "src/base/counted.hpp"
#include "src/base/text.hpp"
#include "src/problem/finding.hpp"
#include "src/problem/options.hpp"
#include "src/problem/tensors.hpp"

namespace froghopper {
namespace {

Finding append_types(const fh_problem& p) {
  const auto of = [&](fh_dtype given) { return static_cast<Dtype>(given == FH_USUAL ? p.dtype : given); };
  if (p.dtype_o != FH_USUAL)
    return text("dtype_o must be FH_USUAL where op is FH_APPEND, which writes no o, but is {}. Set it to FH_USUAL.",
                name_of(of(p.dtype_o)));
  if (is_8_bit(of(p.dtype)))
    return text(
        "dtype is {}, and new rows have no scale. Set dtype to the type of q, k and v, FH_F16, FH_BF16 or FH_F32.",
        name_of(of(p.dtype)));
  if (of(p.dtype_kv) != of(p.dtype) && !is_8_bit(of(p.dtype_kv)))
    return not_computed(text(
        "dtype_kv must be dtype, {}, or an 8-bit type where op is FH_APPEND, but is {}. Set dtype_kv to FH_USUAL, or "
        "convert.",
        name_of(of(p.dtype)), name_of(of(p.dtype_kv))));
  const struct {
    const char* name;
    Dtype type;
  } tables[] = {{"dtype_rotary", of(p.dtype_rotary)}, {"dtype_norm", of(p.dtype_norm)}};
  for (const auto& [name, type] : tables)
    if (type != of(p.dtype) && type != Dtype::f32)
      return not_computed(text("{} must be {}, but is {}. Set {} to FH_USUAL or FH_F32.", name,
                               of(p.dtype) == Dtype::f32 ? "f32" : text("dtype, {}, or f32", name_of(of(p.dtype))),
                               name_of(type), name));
  if (p.scale_tokens && !is_8_bit(of(p.dtype_kv)))
    return text("scale_tokens is {} and the cache is {}; only 8-bit types have scales. Set it to 0.", p.scale_tokens,
                name_of(of(p.dtype_kv)));
  return {};
}

Finding append_dims(const fh_problem& p) {
  const bool of_8_bits = p.dtype_kv == FH_E4M3 || p.dtype_kv == FH_E5M2;
  const int64_t step = of_8_bits ? 16 : 8;
  const struct {
    const char* name;
    int64_t dim;
  } all[] = {{"dim_qk", p.dim_qk}, {"dim_v", p.dim_v}};
  for (const auto& [name, dim] : all) {
    if (dim >= step && dim <= 512 && dim % step == 0) continue;
    const bool latent = dim == 576;  // rows of MLA, of which q k^T takes all columns and p v the first 512
    const bool may_pad = dim > 0 && dim <= 512 && !p.norm;  // a norm divides by the number of columns
    const std::string found =
        text("{} is {}; head dims {} are multiples of {} from {} to 512. {}", name, dim,
             of_8_bits ? "of 8-bit caches" : "here", step, step,
             latent    ? "Rows of MLA are written as two views of them: 512 columns as v, the other 64 as k."
             : may_pad ? text("Pad {} with zero columns to {}, in the cache too.",
                              name == all[0].name ? "q and k" : "v", (dim + step - 1) / step * step)
                       : text("Set {} within.", name));
    return dim < 1 ? Finding(found) : not_computed(found);
  }
  return {};
}

Finding append_places(const fh_problem& p) {
  if (p.page_size == 0 && p.pages != 0)
    return text("pages is {} and page_size is 0; the cache is not in pages then. Set page_size, or pages to 0.",
                p.pages);
  if (!p.slots) return {};
  if (p.varlen || p.seqused)
    return text(
        "{0} is set and slots is {1}; slots say of every row where it goes, whatever its sequence. Set {0} to "
        "0; batch is 1 and seq_q the number of rows then.",
        p.varlen ? "varlen" : "seqused", p.slots);
  if (p.page_size > 0 && p.seq_kv != 0)
    return text(
        "seq_kv is {}, page_size is {} and slots is {}; slots count the rows of the pool, not of a sequence. "
        "Set seq_kv to 0.",
        p.seq_kv, p.page_size, p.slots);
  return {};
}

Finding append_rotary(const fh_problem& p) {
  if (p.rotary_dim > p.dim_qk || p.rotary_dim % 2 != 0)
    return text(
        "rotary_dim must be even and at most dim_qk, {}, as it counts columns of q and k, in pairs, but is {}. Use "
        "an even number from 0 to {}.",
        p.dim_qk, p.rotary_dim, p.dim_qk);
  constexpr int64_t most = int64_t{1} << 40;  // so that the bytes of a table are counted in 64 bits
  if (p.rotary_dim > 0 && (p.rotary_rows < 1 || p.rotary_rows > most))
    return text(
        "rotary_rows must be from 1 to 2^40, as it counts the positions that rotary_cos and rotary_sin know, but is "
        "{}. Use the number of their rows.",
        p.rotary_rows);
  if (p.rotary_dim > 0 && p.slots && !p.positions)
    return text(
        "slots is {}, rotary_dim is {} and positions is 0; a slot does not say where a row is in its "
        "sequence. Set positions, and give them.",
        p.slots, p.rotary_dim);
  const struct {
    const char* name;
    int64_t value;
  } all[] = {
      {"rotary_rows", p.rotary_rows}, {"rotary_interleaved", p.rotary_interleaved}, {"positions", p.positions}};
  for (const auto& [name, value] : all)
    if (p.rotary_dim == 0 && value != 0)
      return text("{} is {} and rotary_dim is 0; nothing is rotated. Set rotary_dim, or {} to 0.", name, value, name);
  if (p.rotary_dim == 0 && p.dtype_rotary != FH_USUAL)
    return text(
        "dtype_rotary is {} and rotary_dim is 0; nothing is rotated. Set rotary_dim, or dtype_rotary to FH_USUAL.",
        name_of(static_cast<Dtype>(p.dtype_rotary)));
  return {};
}

Finding append_norm(const fh_problem& p) {
  if (!std::isfinite(p.norm_epsilon) || p.norm_epsilon < 0)
    return text("norm_epsilon must be 0 or positive, as it is added to a mean of squares, but is {}. Use 0 or 1e-6.",
                p.norm_epsilon);
  if (p.norm) return {};
  if (p.norm_epsilon != 0)
    return text("norm_epsilon is {} and norm is 0; nothing is normed. Set norm, or norm_epsilon to 0.",
                p.norm_epsilon);
  if (p.dtype_norm != FH_USUAL)
    return text("dtype_norm is {} and norm is 0; nothing is normed. Set norm, or dtype_norm to FH_USUAL.",
                name_of(static_cast<Dtype>(p.dtype_norm)));
  return {};
}

const char* set_or_null(const View& view) { return view.data ? "set" : "NULL"; }

Failure wrong(std::string text) { return {FH_INVALID_TENSOR, std::move(text)}; }

bool writes(const Views& v) { return v.k.data || v.v.data; }  // the cache

Result<void> check_given_scales(const Problem& p, const Views& views) {
  if (p.scale_tokens) return {};
  const struct {
    const char* name;
    const View& view;
  } all[] = {{"scale_k", views.scale_k}, {"scale_v", views.scale_v}};
  for (const auto& [name, view] : all)
    for (int64_t head = 0; view.data && head < view.heads; ++head)
      if (const std::string why = why_no_scale(view.as<float>()[view.at(0, 0, head)]); !why.empty())
        return wrong(text("{} of head {} is {}", name, head, why));
  return {};
}

// Two numbers of 32 bits that were read as one of 64.
bool two_slots(int64_t slot, int64_t slots) {
  const int64_t first = slot & UINT32_MAX, second = slot >> 32;
  return second > 0 && first < slots && second < slots;
}

// Of a slot that is no row of the cache.
std::string past_the_cache(const Problem& p, int64_t number, int64_t slot, int64_t slots) {
  if (slots == 0 && p.paged())
    return text(
        "slot_mapping[{}] is {}, but the cache has no rows, as pages is 0. Set pages to those of the cache, or use "
        "-1.",
        number, slot);
  if (slots == 0 && p.seq_kv == 0)
    return text(
        "slot_mapping[{}] is {}, but the cache has no rows, as page_size and seq_kv are 0. Set page_size and pages "
        "to those of the pool, or seq_kv where the cache is not in pages, or use -1.",
        number, slot);
  return text(
      "slot_mapping[{}] must be a row of the cache, which has {}, or negative for none, but is {}. Use {}, or -1{}.",
      number, counted(slots, "row"), slot, from_0_to(slots - 1),
      two_slots(slot, slots) ? "; slots are int64, not int32" : "");
}

// Of one sequence without slots: all of its rows, and the pages that they go to.
Result<void> check_rows(const Problem& p, const Views& views, int64_t sequence, int64_t count) {
  const bool has_lengths = views.seqused_kv.data != nullptr;
  const int64_t before = has_lengths ? views.seqused_kv.as<int32_t>()[sequence] : 0;
  if (before < 0)
    return wrong(
        text("seqused_kv[{}] must be 0 or more, the rows that the cache has already, but is {}. Use 0 for none.",
             sequence, before));
  if (writes(views) && before + count > p.seq_kv)
    return wrong(has_lengths
                     ? text("seqused_kv[{}] is {}, the sequence gets {}, and seq_kv is {}; they do not fit. Make the "
                            "cache longer, or add fewer rows.",
                            sequence, before, counted(count, "more row"), p.seq_kv)
                     : text("seq_kv is {} and sequence {} gets {}, from row 0 on, as there is no seqused. Make the "
                            "cache longer, or add fewer rows.",
                            p.seq_kv, sequence, counted(count, "row")));
  if (!p.paged() || !writes(views) || count == 0) return {};
  const View& table = views.block_table;
  for (int64_t column = before / p.page_size; column <= (before + count - 1) / p.page_size; ++column)
    if (std::string no_page = wrong_page(p, sequence, column, table.as<int32_t>()[table.at(sequence, column, 0)]);
        !no_page.empty())
      return wrong(std::move(no_page));
  return {};
}

}  // namespace

Finding only_append(const fh_problem& p) {
  for (auto rule : {append_types, append_dims, append_places, append_rotary, append_norm})
    if (Finding found = rule(p); !found.text.empty()) return found;
  return {};
}

Finding no_append(const fh_problem& p) {
  const struct {
    const char* name;
    fh_dtype type;
  } all[] = {{"dtype_rotary", p.dtype_rotary}, {"dtype_norm", p.dtype_norm}};
  for (const auto& [name, type] : all)
    if (type != FH_USUAL)
      return text("{} must be FH_USUAL where op is {}, which writes to no cache, but is {}. Set it to FH_USUAL.",
                  name, name_of(p.op), name_of(static_cast<Dtype>(type)));
  return {};
}

bool in_place(const Views& views, View Views::*a, View Views::*b) {
  const View &q = views.q, &out = views.q_out;
  const bool both = (a == &Views::q && b == &Views::q_out) || (a == &Views::q_out && b == &Views::q);
  return both && q.data == out.data && q.stride_batch == out.stride_batch && q.stride_seq == out.stride_seq &&
         q.stride_head == out.stride_head;
}

std::string incomplete_append(const Problem& p, const Views& v) {
  const struct {
    const char *name, *other;
    const View &from, &to;
  } all[] = {{"q", "q_out", v.q, v.q_out}, {"k", "cache_k", v.k, v.cache_k}, {"v", "cache_v", v.v, v.cache_v}};
  bool any = false;
  for (const auto& [name, other, from, to] : all) {
    any = any || from.data || from.empty();
    if (from.empty() || to.empty() || !from.data == !to.data) continue;
    return text("{0} is {1} and {2} is {3}; they go together. Set both, or none.", name, set_or_null(from), other,
                set_or_null(to));
  }
  if (!any) return "q, k and v are NULL; there is nothing to append. Set one of them, with what is written of it.";
  const struct {
    const char *name, *other;
    const View &of, &its;
    bool demanded;
  } together[] = {{"k", "scale_k", v.k, v.scale_k, is_8_bit(p.dtype_kv)},
                  {"v", "scale_v", v.v, v.scale_v, is_8_bit(p.dtype_kv)},
                  {"q", "norm_q", v.q, v.norm_q, false},
                  {"k", "norm_k", v.k, v.norm_k, false}};
  for (const auto& [name, other, of, its, demanded] : together) {
    if (of.empty() || its.empty()) continue;
    if (!of.data && its.data)
      return text("{0} is set and {1} is NULL; it would be ignored. Set {1}, or leave {0} NULL.", other, name);
    if (of.data && !its.data && demanded)
      return text("{} is NULL and {} is set; an 8-bit cache needs scales. Set it.", other, name);
  }
  return {};
}

PlaceOfRow place_of_row(const Problem& p, const Views& views, int64_t sequence, int64_t row) {
  const Rows rows = rows_q(p, views, sequence);
  PlaceOfRow place{rows.batch, rows.first + row, -1, 0};
  const int64_t number = place.batch * p.extent_q() + place.row;  // of all rows
  const int64_t in_sequence = (views.seqused_kv.data ? views.seqused_kv.as<int32_t>()[sequence] : 0) + row;
  place.position = views.positions.data ? views.positions.as<int64_t>()[number] : in_sequence;
  if (p.slots) {
    place.slot = views.slot_mapping.as<int64_t>()[number];
  } else if (writes(views) && p.paged()) {
    const View& table = views.block_table;
    const int64_t page = table.as<int32_t>()[table.at(sequence, in_sequence / p.page_size, 0)];
    place.slot = page * p.page_size + in_sequence % p.page_size;
  } else if (writes(views)) {
    place.slot = sequence * p.seq_kv + in_sequence;
  }
  return place;
}

Result<void> check_places(const Problem& p, const Views& views) {
  if (auto ok = check_given_scales(p, views); !ok) return ok;
  const int64_t slots = p.batches_kv() * p.extent_kv();
  const bool rotates = p.rotary_dim > 0 && (views.q.data || views.k.data);
  for (int64_t b = 0; b < p.batch; ++b) {
    const int64_t count = rows_q(p, views, b).used;
    if (!p.slots)
      if (auto ok = check_rows(p, views, b, count); !ok) return ok;
    for (int64_t row = 0; row < count && (p.slots || rotates); ++row) {
      const PlaceOfRow place = place_of_row(p, views, b, row);
      const int64_t number = place.batch * p.extent_q() + place.row;
      if (writes(views) && place.slot >= slots) return wrong(past_the_cache(p, number, place.slot, slots));
      const bool padding = p.slots && place.slot < 0;
      if (!rotates || padding || (place.position >= 0 && place.position < p.rotary_rows)) continue;
      if (p.positions)
        return wrong(
            text("positions[{}] is {} and rotary_rows is {}; the tables do not know it. Use {}, or longer "
                 "tables.",
                 number, place.position, p.rotary_rows, from_0_to(p.rotary_rows - 1)));
      const bool has_lengths = views.seqused_kv.data != nullptr;
      return wrong(text(
          "row {} of sequence {} has position {}{}, and rotary_rows is {}; the tables do not know it. Use "
          "longer tables, or append fewer rows.",
          row, b, place.position,
          has_lengths ? text(", as seqused_kv[{}] is {}", b, views.seqused_kv.as<int32_t>()[b]) : "", p.rotary_rows));
    }
  }
  return {};
}

}  // namespace froghopper
