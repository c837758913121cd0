// SPDX-License-Identifier: Apache-2.0
// problem: the user's description -> Problem. Every message that a description can cause lives here, one rule after
// the other, and in extents.cpp: contradictions, and what makes sense but neither backend computes. What is refused of
// one option by itself stands in its row of option_table.cpp. What one backend cannot compute is not an error here; the
// backends say that themselves.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <initializer_list>
#include <span>

#include "src/base/sized.hpp"
#include "src/base/text.hpp"
#include "src/problem/finding.hpp"
#include "src/problem/options.hpp"

namespace froghopper {
namespace {

Finding known_values(const fh_problem&);
Finding elsewhere(const fh_problem&);
Finding types(const fh_problem&);
Finding least_values(const fh_problem&);
Finding heads(const fh_problem&);
Finding dims(const fh_problem&);
Finding window(const fh_problem&);
Finding factors(const fh_problem&);
Finding scales(const fh_problem&);
Finding merging(const fh_problem&);
Finding phases(const fh_problem&);
Problem filled_in(const fh_problem&);

// Every description names its shape, so every version of the struct reaches to total_q at least.
constexpr size_t smallest_problem = offsetof(fh_problem, total_q);

}  // namespace

Result<Problem> Problem::from(const fh_problem& user) {
  auto whole = whole_problem(user);
  if (!whole) return whole.failure();
  if (whole->dim_v == 0) whole->dim_v = whole->dim_qk;

  constexpr Finding (*of_append[])(const fh_problem&) = {known_values, elsewhere, least_values, heads,
                                                         only_append,  packing,   reach};
  constexpr Finding (*of_others[])(const fh_problem&) = {known_values, elsewhere, no_append, types,  least_values,
                                                         heads,        dims,      packing,   paging, window,
                                                         factors,      scales,    merging,   phases, reach};
  Finding missing;  // a description that also contradicts itself is refused for that
  for (auto rule :
       raw(whole->op) == FH_APPEND ? std::span<Finding (*const)(const fh_problem&)>(of_append) : of_others) {
    Finding found = rule(*whole);
    if (found.text.empty()) continue;
    if (found.status == FH_INVALID_PROBLEM) return Failure{found.status, std::move(found.text)};
    if (missing.text.empty()) missing = std::move(found);
  }
  if (!missing.text.empty()) return Failure{missing.status, std::move(missing.text)};
  return filled_in(*whole);
}

Result<fh_problem> whole_problem(const fh_problem& user) {
  return whole_struct(&user, fh_problem_init(), smallest_problem, FH_INVALID_PROBLEM, "fh_problem");
}

float default_scale(int64_t dim_qk) { return static_cast<float>(1 / std::sqrt(static_cast<double>(dim_qk))); }

namespace {

Finding known_values(const fh_problem& p) {
  const int32_t op = raw(p.op), align = raw(p.align);
  if (op != FH_FORWARD && op != FH_BACKWARD && op != FH_QUANTISE && op != FH_APPEND)
    return text("op is {}, which names no operation. Use FH_FORWARD, FH_BACKWARD, FH_QUANTISE or FH_APPEND.", op);
  const char* const of_tables = op == FH_APPEND ? "FH_USUAL for dtype, or FH_F32" : "FH_USUAL";
  const struct {
    const char* name;
    int32_t value, least;
    const char* taken;  // by this operation
  } all[] = {
      {"dtype", raw(p.dtype), FH_F16,
       op == FH_FORWARD ? "FH_F16, FH_BF16, FH_F32, FH_E4M3 or FH_E5M2" : "FH_F16, FH_BF16 or FH_F32"},
      {"dtype_kv", raw(p.dtype_kv), FH_USUAL,
       op == FH_QUANTISE   ? "FH_E4M3 or FH_E5M2"
       : op == FH_BACKWARD ? "FH_USUAL for that of q"
                           : "FH_USUAL for that of q, FH_E4M3 or FH_E5M2"},
      {"dtype_o", raw(p.dtype_o), FH_USUAL, op == FH_FORWARD ? "FH_USUAL, FH_F16, FH_BF16 or FH_F32" : "FH_USUAL"},
      {"dtype_rotary", raw(p.dtype_rotary), FH_USUAL, of_tables},
      {"dtype_norm", raw(p.dtype_norm), FH_USUAL, of_tables}};
  for (const auto& [name, value, least, taken] : all)
    if (value < least || value > FH_E5M2) return text("{} is {}, which names no type. Use {}.", name, value, taken);
  if (align != FH_BOTTOM_RIGHT && align != FH_TOP_LEFT)
    return text("align is {}, which names no corner. Use FH_BOTTOM_RIGHT or FH_TOP_LEFT.", align);
  if (raw(p.phase) < FH_PHASE_NONE || raw(p.phase) > FH_PHASE_ONLY)
    return text(
        "phase is {}, which names no call of several. Use FH_PHASE_FIRST, FH_PHASE_MIDDLE, FH_PHASE_LAST or "
        "FH_PHASE_ONLY, or FH_PHASE_NONE where there is one call.",
        raw(p.phase));
  if (p.rotate_seed != 0 && !p.rotate && op == FH_QUANTISE)
    return text("rotate_seed is {} and rotate is 0; nothing is rotated. Set rotate, or rotate_seed to 0.",
                p.rotate_seed);
  return {};
}

// What this operation does not have.
Finding elsewhere(const fh_problem& p) {
  for (const Option& option : options()) {
    if ((option.ops & set_of(p.op)) != 0 || !is_given(option, p)) continue;
    if (option.of_8_bits && p.op == FH_BACKWARD) continue;  // the types are refused, or it is without them
    if (!option.elsewhere)
      return text("{0} is set and op is {1}; it belongs to the attention {2}. Set {0} to {3} here.", option.name,
                  name_of(p.op), p.op == FH_APPEND ? "that reads the cache" : "of what is quantised",
                  option.least == FH_ALL ? "FH_ALL" : "0");
    return {text("{} is {} and op is {}; {}", option.name, value_of(option, p), name_of(p.op), option.elsewhere),
            (option.not_computed & set_of(p.op)) != 0 ? FH_UNSUPPORTED : FH_INVALID_PROBLEM};
  }
  return {};
}

bool merges(const fh_problem& p) { return p.op == FH_FORWARD && p.accumulate; }

// Of q, of k and v, and of o, defaults filled in. The numbers of the user's enum are those of Dtype, see below.
struct Types {
  Dtype q, kv, o;
  explicit Types(const fh_problem& p)
      : q(static_cast<Dtype>(p.dtype)),
        kv(p.dtype_kv == FH_USUAL ? q : static_cast<Dtype>(p.dtype_kv)),
        o(p.dtype_o == FH_USUAL ? usual_output(q, merges(p)) : static_cast<Dtype>(p.dtype_o)) {}
};

Finding types_to_quantise(const Types& t) {
  if (is_8_bit(t.q))
    return text(
        "dtype is {}, which has 8 bits already. Set dtype to the type of q, k and v, FH_F16, FH_BF16 or FH_F32.",
        name_of(t.q));
  if (!is_8_bit(t.kv))
    return text("dtype_kv is {}; to quantise is to write 8-bit values. Set dtype_kv to FH_E4M3 or FH_E5M2.",
                name_of(t.kv));
  if (t.o != t.q) return text("dtype_o is {}; a quantise problem has no o. Set dtype_o to FH_USUAL.", name_of(t.o));
  return {};
}

// Which types go together: all alike; or 8-bit k and v, with q alike or 16-bit, and an o that is not 8-bit.
Finding types(const fh_problem& p) {
  const Types t(p);
  if (p.op == FH_QUANTISE) return types_to_quantise(t);
  if (t.kv != t.q && !(is_8_bit(t.kv) && size_of(t.q) == 2))
    return not_computed(text(
        "dtype_kv is {} and dtype is {}; k and v are of q's type, or of an 8-bit type with q in f16 or bf16. Set "
        "dtype_kv to FH_USUAL, or convert.",
        name_of(t.kv), name_of(t.q)));
  if (merges(p) && t.o != Dtype::f32)
    return not_computed(
        text("dtype_o is {} and accumulate is {}; o is merged with what it holds in f32. Set dtype_o to FH_USUAL.",
             name_of(t.o), p.accumulate));
  if (is_8_bit(t.o))
    return not_computed(text(
        "dtype_o is {}; o has no scale. Use FH_F16, FH_BF16 or FH_F32, and quantise o afterwards.", name_of(t.o)));
  if (t.o != t.q && !is_8_bit(t.kv) && !merges(p))
    return not_computed(text(
        "dtype_o is {} and dtype is {}; o is of another type only where k and v are 8-bit, or with accumulate. Set "
        "dtype_o to FH_USUAL; {}.",
        name_of(t.o), name_of(t.q),
        p.op == FH_BACKWARD ? "round o to the type of q, also where calls were merged in f32"
        : p.phase != FH_PHASE_NONE
            ? "the f32 sum of the calls is o_sum"
            : "to merge calls, set accumulate in the first one too, with o = 0 and lse = -inf"));
  if (is_8_bit(t.kv) && p.op == FH_BACKWARD)
    return not_computed(text("{} is {} and op is FH_BACKWARD; gradients are computed of f16, bf16 and f32. {}.",
                             is_8_bit(t.q) ? "dtype" : "dtype_kv", name_of(t.kv),
                             is_8_bit(t.q)
                                 ? "Convert q, k and v"
                                 : text("Set dtype_kv to FH_USUAL, and convert k and v to {}", name_of(t.q))));
  return {};
}

Finding least_values(const fh_problem& p) {
  for (const Option& option : options()) {
    const auto* const count = std::get_if<CountField>(&option.field);
    if (count && option.below && p.*count->user < option.least)
      return text("{} is {}; {}", option.name, p.*count->user, option.below);
  }
  return {};
}

// "1, 2, 4 or 8". Long lists help no user: they end at 256.
std::string divisors_of(int64_t n) {
  std::string list = "1";
  for (int64_t d = 2; d < n && d <= 256; ++d)
    if (n % d == 0) list += text(", {}", d);
  return n == 1 ? list : text("{} or {}", list, n);
}

// Whoever has heads before rows gives extents in that order: heads do not fit then, but the rows do as heads, and are
// fewer.
bool are_exchanged(const fh_problem& p) {
  return p.seq_kv > 0 && p.seq_q % p.seq_kv == 0 && p.heads_kv > p.seq_kv && p.heads_q > p.seq_q;
}

Finding heads(const fh_problem& p) {
  if (p.heads_kv < 1)
    return text(
        "heads_kv is {}; a problem has at least one key head. Use heads_q, {}, where every query head has its own.",
        p.heads_kv, p.heads_q);
  if (p.heads_q % p.heads_kv != 0)
    return text("heads_kv is {} and heads_q is {}; heads_kv must divide heads_q. Use {}{}.{}", p.heads_kv, p.heads_q,
                divisors_of(p.heads_q), p.op == FH_APPEND ? ", or heads_q as heads_kv where there is no q" : "",
                are_exchanged(p)
                    ? " If heads are before rows, exchange heads_q with seq_q and heads_kv with seq_kv; strides "
                      "say how tensors lie."
                    : "");
  return {};
}

// The way out where q and k have more columns than any kernel takes. Rows of MLA are what usually has so many.
const char* with_fewer_columns(const fh_problem& p) {
  if (p.dim_qk <= 512 && p.op == FH_QUANTISE)
    return "An append writes k and v of up to 512 columns in 8 bits; q keeps its 16 bits then.";
  if (p.dim_qk <= 512) return "Convert q to f16 or bf16: where only k and v have 8 bits there may be up to 512.";
  if (p.dim_qk == 576 || (p.heads_kv == 1 && p.dim_qk < 1024))
    return "Latent rows (MLA) are not read as k and v: expand them to those of each head, such as 192 and 128 "
           "columns.";
  return "Set dim_qk within.";
}

Finding dims(const fh_problem& p) {
  const bool of_8_bits = is_8_bit(Types(p).kv);  // rows of 16 bytes
  const bool quantises = p.op == FH_QUANTISE, also_q = of_8_bits && (is_8_bit(Types(p).q) || quantises);
  const int64_t step = of_8_bits ? 16 : 8, most = also_q ? 256 : 512;
  const auto fits = [&](int64_t dim) { return dim >= step && dim <= most && dim % step == 0; };
  const auto rounded_up = [&](int64_t dim) { return (dim + step - 1) / step * step; };
  const char* const rule = also_q      ? "head dims of 8-bit types are multiples of 16 from 16 to 256"
                           : of_8_bits ? "head dims of 8-bit k and v are multiples of 16 from 16 to 512"
                                       : "head dims are multiples of 8 from 8 to 512";
  // Of more columns. A scale of the user's own does not depend on them.
  const std::string scale = is_default_scale(p.scale) ? text(" and set scale to 1/sqrt({})", p.dim_qk) : "";
  if (p.dim_qk < 1) return text("dim_qk is {}; {}. Set dim_qk within.", p.dim_qk, rule);
  if (p.dim_qk > most) return not_computed(text("dim_qk is {}; {}. {}", p.dim_qk, rule, with_fewer_columns(p)));
  if (p.dim_v < 1) return text("dim_v is {}; {}. Use 0 for the same as dim_qk.", p.dim_v, rule);
  if (p.dim_v > most)
    return not_computed(
        text("dim_v is {}; {}. Compute o in slices of v's columns, each with the same q and k.", p.dim_v, rule));
  if (!fits(p.dim_qk) && !fits(p.dim_v))
    return not_computed(
        text("dim_qk is {} and dim_v is {}; {}. Pad q and k with zero columns to {}, v to {}{}", p.dim_qk, p.dim_v,
             rule, rounded_up(p.dim_qk), rounded_up(p.dim_v),
             quantises       ? text("; the attention to them has the scale 1/sqrt({}) then.", p.dim_qk)
             : scale.empty() ? text("; o has {} then, and the last ones are zero.", rounded_up(p.dim_v))
                             : text(",{}; o has {} then, and the last ones are zero.", scale, rounded_up(p.dim_v))));
  if (!fits(p.dim_qk))
    return not_computed(text("dim_qk is {}; {}. Pad q and k with zero columns to {}{}", p.dim_qk, rule,
                             rounded_up(p.dim_qk),
                             quantises ? text("; the attention to them has the scale 1/sqrt({}) then.", p.dim_qk)
                                       : text("{}; the result does not change.", scale)));
  if (!fits(p.dim_v))
    return not_computed(text("dim_v is {0}; {1}. Pad v with zero columns to {2}{3}", p.dim_v, rule,
                             rounded_up(p.dim_v),
                             quantises ? "." : text("; o has {} then, the last ones zero.", rounded_up(p.dim_v))));
  return {};
}

Finding window(const fh_problem& p) {
  if (p.causal && p.window_right > 0)
    return text(
        "causal is set and window_right is {}; a causal query attends to no key after it. Set window_right to 0, or "
        "causal to 0.",
        p.window_right);
  return {};
}

// Of the scale, so that it is a number of fp32 in base 2 too, as kernels have it.
constexpr float largest_scale = 0x1p127f;

Finding factors(const fh_problem& p) {
  if (!std::isfinite(p.scale) || p.scale < 0 || p.scale > largest_scale)
    return {text("scale must be from 0 to {}, but is {}. Use 0 for 1/sqrt(dim_qk), -0.0 for a scale of zero, or "
                 "multiply q.",
                 largest_scale, p.scale),
            std::isfinite(p.scale) ? FH_UNSUPPORTED : FH_INVALID_PROBLEM};
  if (!std::isfinite(p.softcap) || p.softcap < 0)
    return text("softcap must be positive and finite, or 0 for none, but is {}. Use 0 or a positive number.",
                p.softcap);
  return {};
}

std::string wrong_scales_of_tokens(const fh_problem& p) {
  if (!p.scale_tokens) return {};
  if (!is_8_bit(Types(p).kv))
    return text("scale_tokens is {} and k and v are {}; only 8-bit types have scales. Set it to 0.", p.scale_tokens,
                name_of(Types(p).kv));
  if (p.scale_rows != 0)
    return text(
        "scale_tokens is {} and scale_rows is {}; a row has its own scale or shares one. Set one of them to 0.",
        p.scale_tokens, p.scale_rows);
  if (p.scale_v_columns)
    return text(
        "scale_tokens is {} and scale_v_columns is {}; v has a scale for each row or for each column. Set one of "
        "them to 0.",
        p.scale_tokens, p.scale_v_columns);
  return {};
}

Finding scales(const fh_problem& p) {
  const bool of_8_bits = is_8_bit(Types(p).kv);
  if (!of_8_bits && p.scale_rows != 0)
    return text("scale_rows is {} and k and v are {}; only 8-bit types have scales. Set it to 0.", p.scale_rows,
                name_of(Types(p).kv));
  if (!of_8_bits && p.scale_v_columns)
    return text("scale_v_columns is {} and v is {}; only 8-bit types have scales. Set it to 0.", p.scale_v_columns,
                name_of(Types(p).kv));
  if (std::string wrong = wrong_scales_of_tokens(p); !wrong.empty()) return wrong;
  if (p.scale_tokens && (p.smooth || p.invariant))
    return not_computed(text(
        "scale_tokens is {0} and {1} is {2}; a scale for each row of k and v is not computed with {1}. Set one of "
        "them to 0.",
        p.scale_tokens, p.smooth ? "smooth" : "invariant", p.smooth ? p.smooth : p.invariant));
  if (p.smooth && !of_8_bits)
    return text("smooth is {} and k and v are {}; means are taken out before values get 8 bits. Set it to 0.",
                p.smooth, name_of(Types(p).kv));
  if (p.smooth && p.softcap != 0)
    return text(
        "smooth is {} and softcap is {}; what the scores of all keys have in common is lost in a softmax, but not in "
        "a tanh. Set one of them to 0.",
        p.smooth, p.softcap);
  if (p.scale_rows != 0 && p.scale_rows != scale_block)
    return {text("scale_rows is {}; blocks of rows that share a scale have {} rows. Use {}, or 0 for all rows.",
                 p.scale_rows, scale_block, scale_block),
            p.scale_rows > 0 ? FH_UNSUPPORTED : FH_INVALID_PROBLEM};
  return {};
}

Finding phases(const fh_problem& p) {
  if (p.phase == FH_PHASE_NONE) return {};
  if (p.op == FH_FORWARD && p.accumulate)
    return text(
        "accumulate is {} and phase is set; o is merged in o or in o_sum. Set accumulate to 0 for o_sum, or "
        "phase to FH_PHASE_NONE.",
        p.accumulate);
  if (p.gate && p.phase != FH_PHASE_ONLY)
    return not_computed(
        text("phase is set and gate is {0}; gates are applied in one call. Set gate to 0, and multiply o by the "
             "sigmoid after the last call{1}.",
             p.gate, p.op == FH_BACKWARD ? ", grad_o before the first one" : ""));
  return {};
}

Finding merging(const fh_problem& p) {
  if (p.accumulate && p.gate)
    return text(
        "accumulate is {} and gate is set; each call would multiply all of o by the gate again, or add all of "
        "grad_gate again. Set gate to 0, and multiply o by the sigmoid after the last call{}.",
        p.accumulate, p.op == FH_BACKWARD ? ", grad_o before the first one" : "");
  if (!merges(p) || !p.sink) return {};
  return text(
      "accumulate is {} and sink is set; each call would put it into the denominator again. Set sink to 0, and "
      "begin with lse = the sinks and o = 0.",
      p.accumulate);
}

Dtype type_of_table(bool is_there, fh_dtype given, Dtype usual) {
  if (!is_there) return Problem().dtype_rotary;
  return given == FH_USUAL ? usual : static_cast<Dtype>(given);
}

// What is the default where another field, or the sign of a zero, says so.
Problem filled_in(const fh_problem& p) {
  Problem full;
  copy_options(p, full);
  if (p.causal) full.window_right = 0;
  if (!full.aligned()) full.align = FH_BOTTOM_RIGHT;
  full.scale = is_default_scale(p.scale) ? default_scale(p.dim_qk) : std::fabs(p.scale);  // -0 is 0
  full.softcap = std::fabs(p.softcap);                                                    // likewise
  full.dtype_kv = Types(p).kv, full.dtype_o = Types(p).o;
  full.norm_epsilon = std::fabs(p.norm_epsilon);
  full.dtype_rotary = type_of_table(p.rotary_dim > 0, p.dtype_rotary, full.dtype);
  full.dtype_norm = type_of_table(p.norm != 0, p.dtype_norm, full.dtype);
  return full;
}

static_assert(static_cast<int>(Dtype::f16) == FH_F16 && static_cast<int>(Dtype::bf16) == FH_BF16 &&
              static_cast<int>(Dtype::f32) == FH_F32 && static_cast<int>(Dtype::e4m3) == FH_E4M3 &&
              static_cast<int>(Dtype::e5m2) == FH_E5M2);

}  // namespace

}  // namespace froghopper
