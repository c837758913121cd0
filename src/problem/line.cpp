// SPDX-License-Identifier: Apache-2.0
// problem: a problem as one line of text and back. The line is a test case, a benchmark row, a log entry and a bug
// report at once, so it is exact: floats have as many digits as it takes to read the same float back.
//
//   fwd|bwd|quantise DTYPE [kv=DTYPE] [o=DTYPE] bN hqN hkvN sqN skvN dN [dvN] [varlen tqN tkvN] [seqused]
//       [causal|windowL,R] [chunk=N] [topleft] [scaleX] [softcapX] [sink] [alibi] [scalesN] [vcolumns] [smooth]
//       [rotate [seedN]] [det] [acc] [invariant] [maxlogit] [gate] [pageN pagesN] [smsN]
//   append DTYPE [kv=DTYPE] bN hqN hkvN sqN skvN dN [dvN] [varlen tqN] [seqused] [pageN pagesN] [slots]
//       [rotaryN rowsN [interleaved] [tables=DTYPE]] [positions] [norm [epsX] [weights=DTYPE]] [tokenscales] [smsN]
//
// scale0 is a scale of zero, unlike a scale of 0 in C, which is the default. softcap0 is none.
// Printed in this order, with what differs from the default; read in any order after the first two words. A window of
// -1 has no bound on that side. The words and their order are those of the table of options. A line is read into the
// user's struct, so that Problem::from judges both.
#include <algorithm>
#include <charconv>
#include <string_view>
#include <type_traits>
#include <vector>

#include "src/base/near_word.hpp"
#include "src/base/text.hpp"
#include "src/problem/options.hpp"

namespace froghopper {
namespace {

struct Word {
  std::string_view all;         // "hq16"
  std::string_view key, value;  // "hq", "16"
  size_t offset;                // of its first character in the line
};

std::vector<Word> words_of(std::string_view line);
std::string read_word(const Word&, fh_problem&);
std::string printed(const Option&, const Problem&);
bool read_type(std::string_view word, fh_dtype&);
std::string missing_word(const std::vector<Word>&);

struct Operation {
  std::string_view word;
  fh_op op;
};
constexpr Operation ops[] = {
    {"fwd", FH_FORWARD}, {"bwd", FH_BACKWARD}, {"quantise", FH_QUANTISE}, {"append", FH_APPEND}};

// A function for each kind of field.
template <class... Functions>
struct Each : Functions... {
  using Functions::operator()...;
};
template <class... Functions>
Each(Functions...) -> Each<Functions...>;

bool has_value(const Option& option) {
  return !std::holds_alternative<FlagField>(option.field) && !std::holds_alternative<AlignField>(option.field);
}

constexpr std::string_view grammar =
    "A line is: fwd|bwd|quantise DTYPE [kv=DTYPE] [o=DTYPE] bN hqN hkvN sqN skvN dN [dvN] [varlen tqN tkvN] "
    "[seqused] [causal|windowL,R] [chunk=N] [topleft] [scaleX] [softcapX] [sink] [alibi] [scalesN] [vcolumns] "
    "[smooth] [rotate [seedN]] [det] [acc] [invariant] [maxlogit] [gate] [pageN pagesN] [smsN]; or append DTYPE, of "
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
  std::string line;
  for (const Option& option : options()) {
    if (!is_shown(option, *this)) continue;
    if (!line.empty()) line += ' ';
    line += printed(option, *this);
  }
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

std::string read_count(const Option& option, std::string_view value, int64_t& count) {
  if (option.key() == option.word) return read_number(value, count);
  if (value.starts_with('=') && read_number(value.substr(1), count).empty()) return {};
  return text("a number of keys is expected: {}N.", option.word);
}

// Puts one word into the struct; returns what is wrong with it.
std::string read_word(const Word& word, fh_problem& p) {
  for (const Option& option : options()) {
    const std::string_view key = has_value(option) ? word.key : word.all;
    if (key.empty() || !option.word.starts_with(key) || option.key() != key) continue;
    if (option.word == "window") return read_window(word.value, p);
    return std::visit(Each{[](OpField) { return std::string(); },  // the first word of a line, with none of its own
                           [&](AlignField field) { return p.*field.user = FH_TOP_LEFT, std::string(); },
                           [&](TypeField field) -> std::string {
                             if (word.value.starts_with('=') && read_type(word.value.substr(1), p.*field.user))
                               return {};
                             return text("a type is expected: {}DTYPE, with {}.", option.word, type_words);
                           },
                           [&](CountField field) { return read_count(option, word.value, p.*field.user); },
                           [&](SeedField field) { return read_number(word.value, p.*field.user); },
                           [&](FactorField field) { return read_number(word.value, p.*field.user); },
                           [&](FlagField field) { return p.*field.user = 1, std::string(); }},
                      option.field);
  }
  std::vector<std::string_view> known;
  for (const Option& option : options())
    if (!std::holds_alternative<OpField>(option.field)) known.push_back(option.key());
  const std::string_view near = near_word(word.value.empty() ? word.all : word.key, known);
  return text("this word is unknown.{} {}.", near.empty() ? "" : text(" Did you mean {}?", near), grammar);
}

bool read_type(std::string_view word, fh_dtype& type) {
  const auto* const found = std::ranges::find_if(dtypes, [&](Dtype t) { return word == name_of(t); });
  if (found == std::end(dtypes)) return false;
  type = static_cast<fh_dtype>(*found);
  return true;
}

std::string printed(const Option& option, const Problem& p) {
  if (option.word == "window") return text("window{},{}", p.window_left, p.window_right);
  return std::visit(
      Each{[&](OpField) { return std::string(std::ranges::find(ops, p.op, &Operation::op)->word); },
           [&](TypeField field) { return text("{}{}", option.word, name_of(p.*field.own)); },
           [&](AlignField) { return std::string(option.word); }, [&](FlagField) { return std::string(option.word); },
           [&](auto number) { return text("{}{}", option.word, p.*number.own); }},
      option.field);
}

std::string missing_word(const std::vector<Word>& words) {
  const auto has = [&](std::string_view key) {
    return std::any_of(words.begin() + 2, words.end(), [&](const Word& word) { return word.key == key; });
  };
  for (const Option& option : options())
    if (option.required && !has(option.key())) return text("{0}N is missing. Add {0} and its number.", option.word);
  const bool only_q_packed = has("page") || words[0].all == "append";
  if (has("varlen") && !only_q_packed && !(has("tq") && has("tkv")))
    return "varlen is there without tqN or tkvN. Add the rows of the packed q and of the packed k and v.";
  if (has("varlen") && only_q_packed && !has("tq"))
    return "varlen is there without tqN. Add the rows of the packed q.";
  if (has("page") != has("pages"))
    return "pageN and pagesN go together, rows of a page and pages of the pool. Add the one that is missing.";
  if (has("causal") && has("window"))
    return "causal and window are both there. causal is window-1,0: leave one of them.";
  return {};
}

}  // namespace
}  // namespace froghopper
