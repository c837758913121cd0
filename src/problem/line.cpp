// SPDX-License-Identifier: Apache-2.0
// problem: a problem as one line of text and back. The line is a test case, a benchmark row, a log entry and a bug
// report at once, so it is exact: floats have as many digits as it takes to read the same float back.
//
//   fwd|bwd|quantise DTYPE [kv=DTYPE] [o=DTYPE] bN hqN hkvN sqN skvN dN [dvN] [varlen tqN tkvN] [seqused]
//       [causal|windowL,R] [chunk=N] [topleft] [scaleX] [softcapX] [sink] [alibi] [scalesN] [vcolumns] [smooth]
//       [rotate [seedN]] [det] [acc] [invariant] [maxlogit] [pageN pagesN] [smsN]
//   append DTYPE [kv=DTYPE] bN hqN hkvN sqN skvN dN [dvN] [varlen tqN] [seqused] [pageN pagesN] [slots]
//       [rotaryN rowsN [interleaved] [tables=DTYPE]] [positions] [norm [epsX] [weights=DTYPE]] [tokenscales] [smsN]
//
// scale0 is a scale of zero, unlike a scale of 0 in C, which is the default. softcap0 is none.
// Printed in this order, with what differs from the default; read in any order after the first two words. A window of
// -1 has no bound on that side. A line is read into the user's struct, so that Problem::from judges both.
#include <algorithm>
#include <charconv>
#include <string_view>
#include <type_traits>
#include <vector>

#include "src/base/text.hpp"
#include "src/problem/problem.hpp"

namespace froghopper {
namespace {

struct Word {
  std::string_view all;         // "hq16"
  std::string_view key, value;  // "hq", "16"
  size_t offset;                // of its first character in the line
};

std::vector<Word> words_of(std::string_view line);
std::string read_word(const Word&, fh_problem&);
bool read_type(std::string_view word, fh_dtype&);
std::string missing_word(const std::vector<Word>&);

struct Operation {
  std::string_view word;
  fh_op op;
};
constexpr Operation ops[] = {
    {"fwd", FH_FORWARD}, {"bwd", FH_BACKWARD}, {"quantise", FH_QUANTISE}, {"append", FH_APPEND}};

// The words with a number, in the order of the line.
struct Number {
  std::string_view key;
  int64_t fh_problem::*field;
  bool required;
};
constexpr Number numbers[] = {
    {"b", &fh_problem::batch, true},
    {"hq", &fh_problem::heads_q, true},
    {"hkv", &fh_problem::heads_kv, true},
    {"sq", &fh_problem::seq_q, true},
    {"skv", &fh_problem::seq_kv, true},
    {"d", &fh_problem::dim_qk, true},
    {"dv", &fh_problem::dim_v, false},
    {"tq", &fh_problem::total_q, false},
    {"tkv", &fh_problem::total_kv, false},
    {"sms", &fh_problem::max_sms, false},
    {"scales", &fh_problem::scale_rows, false},
    {"page", &fh_problem::page_size, false},
    {"pages", &fh_problem::pages, false},
    {"rotary", &fh_problem::rotary_dim, false},
    {"rows", &fh_problem::rotary_rows, false},
};

struct Factor {
  std::string_view key;
  float fh_problem::*field;
};
constexpr Factor factors[] = {
    {"scale", &fh_problem::scale}, {"softcap", &fh_problem::softcap}, {"eps", &fh_problem::norm_epsilon}};

struct Flag {
  std::string_view key;
  int32_t fh_problem::*field;
};
constexpr Flag flags[] = {{"varlen", &fh_problem::varlen},
                          {"seqused", &fh_problem::seqused},
                          {"causal", &fh_problem::causal},
                          {"sink", &fh_problem::sink},
                          {"alibi", &fh_problem::alibi},
                          {"det", &fh_problem::deterministic},
                          {"acc", &fh_problem::accumulate},
                          {"vcolumns", &fh_problem::scale_v_columns},
                          {"smooth", &fh_problem::smooth},
                          {"rotate", &fh_problem::rotate},
                          {"invariant", &fh_problem::invariant},
                          {"maxlogit", &fh_problem::max_logit},
                          {"slots", &fh_problem::slots},
                          {"positions", &fh_problem::positions},
                          {"norm", &fh_problem::norm},
                          {"interleaved", &fh_problem::rotary_interleaved},
                          {"tokenscales", &fh_problem::scale_tokens}};

struct Type {
  std::string_view key;
  fh_dtype fh_problem::*field;
};
constexpr Type types[] = {{"kv", &fh_problem::dtype_kv},
                          {"o", &fh_problem::dtype_o},
                          {"tables", &fh_problem::dtype_rotary},
                          {"weights", &fh_problem::dtype_norm}};  // with "=" after it

constexpr std::string_view grammar =
    "A line is: fwd|bwd|quantise DTYPE [kv=DTYPE] [o=DTYPE] bN hqN hkvN sqN skvN dN [dvN] [varlen tqN tkvN] "
    "[seqused] "
    "[causal|windowL,R] [chunk=N] [topleft] [scaleX] [softcapX] [sink] [alibi] [scalesN] [vcolumns] [smooth] "
    "[rotate [seedN]] [det] [acc] [invariant] [maxlogit] [pageN pagesN] [smsN]; or append DTYPE, of "
    "these [kv=DTYPE], sizes, varlen, seqused, pages and smsN, and [slots] [rotaryN rowsN [interleaved] "
    "[tables=DTYPE]] [positions] [norm [epsX] [weights=DTYPE]] [tokenscales]";

constexpr const char* type_words = "f16, bf16, f32, e4m3 or e5m2";

}  // namespace

Result<Problem> Problem::parse(const std::string& line) {
  const std::vector<Word> words = words_of(line);
  const auto wrong = [](std::string text) { return Failure{FH_INVALID_PROBLEM, std::move(text)}; };
  if (words.size() < 2) return wrong(text("\"{}\" is no problem. {}.", line, grammar));

  fh_problem p = fh_problem_init();
  const auto* const op = std::ranges::find(ops, words[0].all, &Operation::word);
  if (op == std::end(ops))
    return wrong(text("\"{}\" at offset {}: a line begins with its operation. Use fwd, bwd, quantise or append.",
                      words[0].all, words[0].offset));
  p.op = op->op;
  if (!read_type(words[1].all, p.dtype))
    return wrong(
        text("\"{}\" at offset {}: the second word is the type. Use {}.", words[1].all, words[1].offset, type_words));

  for (size_t i = 2; i < words.size(); ++i) {
    for (size_t j = 2; j < i; ++j)
      if (words[j].key == words[i].key)
        return wrong(text("\"{}\" at offset {}: {} is there already, at offset {}. Leave one of them.", words[i].all,
                          words[i].offset, words[i].key, words[j].offset));
    std::string bad = read_word(words[i], p);
    if (words[i].key == "scale" && p.scale == 0) p.scale = -0.0f;  // which is zero in the struct; 0 is the default
    if (!bad.empty()) return wrong(text("\"{}\" at offset {}: {}", words[i].all, words[i].offset, bad));
  }
  std::string missing = missing_word(words);
  if (!missing.empty()) return wrong(std::move(missing));
  return from(p);
}

std::string Problem::line() const {
  std::string line = text("{} {}", std::ranges::find(ops, op, &Operation::op)->word, name_of(dtype));
  if (dtype_kv != dtype) line += text(" kv={}", name_of(dtype_kv));
  if (dtype_o != usual_output(dtype, merges())) line += text(" o={}", name_of(dtype_o));
  line += text(" b{} hq{} hkv{} sq{} skv{} d{}", batch, heads_q, heads_kv, seq_q, seq_kv, dim_qk);
  if (dim_v != dim_qk) line += text(" dv{}", dim_v);
  if (varlen) line += text(" varlen tq{}", total_q);
  if (kv_is_packed()) line += text(" tkv{}", total_kv);
  if (seqused) line += " seqused";
  if (causal())
    line += " causal";
  else if (windowed())
    line += text(" window{},{}", window_left, window_right);
  if (attention_chunk > 0) line += text(" chunk={}", attention_chunk);
  if (align == FH_TOP_LEFT) line += " topleft";
  if (scale != default_scale(dim_qk)) line += text(" scale{}", scale);
  if (softcap != 0) line += text(" softcap{}", softcap);
  if (sink) line += " sink";
  if (alibi) line += " alibi";
  if (scale_rows != 0) line += text(" scales{}", scale_rows);
  if (scale_v_columns) line += " vcolumns";
  if (smooth) line += " smooth";
  if (rotate) line += " rotate";
  if (rotate_seed != 0) line += text(" seed{}", rotate_seed);
  if (deterministic) line += " det";
  if (accumulate) line += " acc";
  if (invariant) line += " invariant";
  if (max_logit) line += " maxlogit";
  if (paged()) line += text(" page{} pages{}", page_size, pages);
  if (slots) line += " slots";
  if (rotary_dim > 0) line += text(" rotary{} rows{}", rotary_dim, rotary_rows);
  if (rotary_interleaved) line += " interleaved";
  if (rotary_in_f32) line += " tables=f32";
  if (positions) line += " positions";
  if (norm) line += " norm";
  if (norm_epsilon != 0) line += text(" eps{}", norm_epsilon);
  if (norm_in_f32) line += " weights=f32";
  if (scale_tokens) line += " tokenscales";
  if (max_sms != 0) line += text(" sms{}", max_sms);
  return line;
}

namespace {

// Blanks may come in runs, so that lines in a file can be in columns.
std::vector<Word> words_of(std::string_view line) {
  const auto is_blank = [](char c) { return c == ' ' || c == '\t'; };
  const auto is_letter = [](char c) { return c >= 'a' && c <= 'z'; };
  std::vector<Word> words;
  for (auto at = line.begin(); (at = std::find_if_not(at, line.end(), is_blank)) != line.end();) {
    const auto end = std::find_if(at, line.end(), is_blank);
    const auto key_end = std::find_if_not(at, end, is_letter);
    words.push_back({{at, end}, {at, key_end}, {key_end, end}, static_cast<size_t>(at - line.begin())});
    at = end;
  }
  return words;
}

// The whole text is one number, or it is not one: "16" but not "16k", "" or more than the type can hold.
template <class T>
std::string read_number(std::string_view value, T& number) {
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error == std::errc::result_out_of_range)
    return std::is_same_v<T, float> ? "this number is out of range. Use 0, or one from 1.4e-45 to 3.4e38."
                                    : "this number is out of range. Use a smaller one.";
  if (error != std::errc() || end != value.data() + value.size()) return "a number is expected after the letters.";
  return {};
}

std::string read_window(std::string_view value, fh_problem& p) {
  const size_t comma = value.find(',');
  if (comma == value.npos || !read_number(value.substr(0, comma), p.window_left).empty() ||
      !read_number(value.substr(comma + 1), p.window_right).empty())
    return "two numbers are expected: windowLEFT,RIGHT in keys, -1 for all on that side.";
  return {};
}

std::string read_chunk(std::string_view value, fh_problem& p) {
  if (value.starts_with('=') && read_number(value.substr(1), p.attention_chunk).empty()) return {};
  return "a number of keys is expected: chunk=N.";
}

// Puts one word into the struct; returns what is wrong with it.
std::string read_word(const Word& word, fh_problem& p) {
  for (const Number& number : numbers)
    if (word.key == number.key) return read_number(word.value, p.*number.field);
  for (const Factor& factor : factors)
    if (word.key == factor.key) return read_number(word.value, p.*factor.field);
  if (word.key == "window") return read_window(word.value, p);
  if (word.key == "chunk") return read_chunk(word.value, p);
  if (word.key == "seed") return read_number(word.value, p.rotate_seed);
  for (const Type& type : types)
    if (word.key == type.key) {
      if (word.value.starts_with('=') && read_type(word.value.substr(1), p.*type.field)) return {};
      return text("a type is expected: {}=DTYPE, with {}.", type.key, type_words);
    }

  for (const Flag& flag : flags)
    if (word.all == flag.key) {
      p.*flag.field = 1;
      return {};
    }
  if (word.all == "topleft") {
    p.align = FH_TOP_LEFT;
    return {};
  }
  return text("this word is unknown. {}.", grammar);
}

bool read_type(std::string_view word, fh_dtype& type) {
  const auto* const found = std::ranges::find_if(dtypes, [&](Dtype t) { return word == name_of(t); });
  if (found == std::end(dtypes)) return false;
  type = static_cast<fh_dtype>(*found);
  return true;
}

std::string missing_word(const std::vector<Word>& words) {
  const auto has = [&](std::string_view key) {
    return std::any_of(words.begin() + 2, words.end(), [&](const Word& word) { return word.key == key; });
  };
  for (const Number& number : numbers)
    if (number.required && !has(number.key)) return text("{0}N is missing. Add {0} and its number.", number.key);
  const bool q_alone = has("page") || words[0].all == "append";  // is packed
  if (has("varlen") && !q_alone && !(has("tq") && has("tkv")))
    return "varlen is there without tqN or tkvN. Add the rows of the packed q and of the packed k and v.";
  if (has("varlen") && q_alone && !has("tq")) return "varlen is there without tqN. Add the rows of the packed q.";
  if (has("page") != has("pages"))
    return "pageN and pagesN go together, rows of a page and pages of the pool. Add the one that is missing.";
  if (has("causal") && has("window"))
    return "causal and window are both there. causal is window-1,0: leave one of them.";
  return {};
}

}  // namespace
}  // namespace froghopper
