// SPDX-License-Identifier: Apache-2.0
// problem: a problem as one line of text and back. The line is a test case, a benchmark row, a log entry and a bug
// report at once, so it is exact: floats have as many digits as it takes to read the same float back.
//
//   fwd|bwd|quantise DTYPE [kv=DTYPE] [o=DTYPE] bN hqN hkvN sqN skvN dN [dvN] [varlen tqN tkvN] [seqused]
//       [causal|windowL,R] [chunk=N] [topleft] [scaleX] [softcapX] [sink] [alibi] [scalesN] [vcolumns] [smooth]
//       [rotate [seedN]] [det] [acc] [invariant] [maxlogit] [gate] [phase=PHASE] [pageN pagesN] [smsN]
//   append DTYPE [kv=DTYPE] bN hqN hkvN sqN skvN dN [dvN] [varlen tqN] [seqused] [pageN pagesN] [slots]
//       [rotaryN rowsN [interleaved] [tables=DTYPE]] [positions] [norm [epsX] [weights=DTYPE]] [tokenscales] [smsN]
//   With slots and pages skvN, which is skv0, may be left out.
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

#include "src/base/printable.hpp"
#include "src/base/text.hpp"
#include "src/problem/options.hpp"
#include "src/problem/other_words.hpp"

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
std::string wrong_operation(const Word&);
std::string wrong_type(const Word&, fh_op);
std::string missing_word(const std::vector<Word>&);

struct Operation {
  std::string_view word;
  fh_op op;
};
constexpr fh_phase phases[] = {FH_PHASE_FIRST, FH_PHASE_MIDDLE, FH_PHASE_LAST, FH_PHASE_ONLY};
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
    "[tokenscales] [smooth] [rotate [seedN]] [det] [acc] [invariant] [maxlogit] [gate] [phase=PHASE] [pageN pagesN] "
    "[smsN]; or append DTYPE, of these [kv=DTYPE], sizes, varlen, seqused, det, tokenscales, pages and smsN, and "
    "[slots] [rotaryN rowsN [interleaved] [tables=DTYPE]] [positions] [norm [epsX] [weights=DTYPE]]";

// "f16, bf16 or f32"
std::string either(const std::vector<Dtype>& types) {
  std::string all;
  for (const Dtype& type : types)
    all += text("{}{}", &type == types.data() ? "" : &type == &types.back() ? " or " : ", ", name_of(type));
  return all;
}

// Of the second word. The rest of the rules about types is in validate.cpp; these lists are for whoever wrote no type.
std::vector<Dtype> types_of_q(fh_op op) {
  if (op != FH_FORWARD) return {Dtype::f16, Dtype::bf16, Dtype::f32};
  return {std::begin(dtypes), std::end(dtypes)};
}

// Of a word with a type, where the first two words have been read. kv= may follow o=.
std::vector<Dtype> types_of(const Option& option, const fh_problem& p) {
  const Dtype q = static_cast<Dtype>(p.dtype);
  const bool of_16_bits = size_of(q) == 2;
  if (option.key() == "kv") {
    if (p.op == FH_QUANTISE) return {Dtype::e4m3, Dtype::e5m2};
    const bool cache = p.op == FH_FORWARD ? of_16_bits : p.op == FH_APPEND;
    return cache ? std::vector{q, Dtype::e4m3, Dtype::e5m2} : std::vector{q};
  }
  if (option.key() == "o" && p.op == FH_FORWARD && q != Dtype::f32) return {Dtype::f16, Dtype::bf16, Dtype::f32};
  const bool table = option.key() == "tables" || option.key() == "weights";
  return table && q != Dtype::f32 ? std::vector{q, Dtype::f32} : std::vector{q};
}

}  // namespace

Result<Problem> Problem::parse(const std::string& line) {
  const std::vector<Word> words = words_of(line);
  const auto wrong = [](std::string text) { return Failure{FH_INVALID_PROBLEM, std::move(text)}; };
  if (words.size() < 2) return wrong(text("\"{}\" is no problem. {}.", shown(line), grammar));

  fh_problem p = fh_problem_init();
  const auto* const op = std::ranges::find(ops, words[0].all, &Operation::word);
  if (op == std::end(ops)) return wrong(wrong_operation(words[0]));
  p.op = op->op;
  if (!read_type(words[1].all, p.dtype)) return wrong(wrong_type(words[1], p.op));

  for (size_t i = 2; i < words.size(); ++i) {
    const bool other = words[i].value.starts_with('_');  // d_model begins as dN does
    for (size_t j = 2; j < i && !other; ++j)
      if (words[j].key == words[i].key)
        return wrong(text("\"{}\" at offset {}: {} is there already, at offset {}. Leave one of them.",
                          shown(words[i].all), words[i].offset, words[i].key, words[j].offset));
    std::string bad = read_word(words[i], p);
    if (words[i].key == "scale" && p.scale == 0) p.scale = -0.0f;  // which is zero in the struct; 0 is the default
    if (!bad.empty()) return wrong(text("\"{}\" at offset {}: {}", shown(words[i].all), words[i].offset, bad));
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

// Blanks may come in runs, so that lines in a file can be in columns, and a line's end may still be there.
std::vector<Word> words_of(std::string_view line) {
  const auto is_blank = [](char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; };
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

std::string wrong_operation(const Word& word) {
  fh_dtype type{};
  const std::string meant = meant_operation(word.all);
  return text("\"{}\" at offset {}: a line begins with its operation{}. Use fwd, bwd, quantise or append.",
              shown(word.all), word.offset,
              !meant.empty()              ? text(", which here is {}", meant)
              : read_type(word.all, type) ? ", before the type"
                                          : "");
}

std::string wrong_type(const Word& word, fh_op op) {
  const std::vector<Dtype> taken = types_of_q(op);
  const std::string meant = either(meant_types(word.all, taken));
  const bool missing = std::ranges::any_of(
      options(), [&](const Option& option) { return !word.key.empty() && option.key() == word.key; });
  return text("\"{}\" at offset {}: the second word is the type{}.{} Use {}.", shown(word.all), word.offset,
              !meant.empty() ? text(", which here is {}", meant)
              : missing      ? ", which is missing"
                             : "",
              no_type(word.all), either(taken));
}

// The whole text is one number, or it is not one: "16" but not "16k", "" or more than the type can hold.
template <class T>
std::string read_number(std::string_view value, T& number) {
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error == std::errc::result_out_of_range)
    return std::is_same_v<T, float> ? "this number is out of range. Use 0, or one from 1.4e-45 to 3.4e38."
                                    : "this number is out of range. Use a smaller one.";
  if (error != std::errc() || end != value.data() + value.size())
    return std::is_same_v<T, float> ? "a number is expected after the letters"
                                    : "a whole number is expected after the letters";
  return {};
}

std::string read_window(std::string_view value, fh_problem& p) {
  const size_t comma = value.find(',');
  if (comma == value.npos || !read_number(value.substr(0, comma), p.window_left).empty() ||
      !read_number(value.substr(comma + 1), p.window_right).empty())
    return "two numbers are expected: windowLEFT,RIGHT in keys, -1 for all on that side.";
  return {};
}

// What follows the letters, put into the struct; returns what is wrong with it. Without a full stop the form of the
// word is to follow.
std::string read_value(const Option& option, std::string_view value, fh_problem& p) {
  if (option.word == "window") return read_window(value, p);
  const bool equals = option.key() != option.word;
  return std::visit(Each{[](OpField) { return std::string(); },  // the first word of a line, with none of its own
                         [&](AlignField field) { return p.*field.user = FH_TOP_LEFT, std::string(); },
                         [&](PhaseField field) -> std::string {
                           for (const fh_phase phase : phases)
                             if (value == text("={}", name_of(phase))) return p.*field.user = phase, std::string();
                           return "phase=first, middle, last or only is expected.";
                         },
                         [&](TypeField field) -> std::string {
                           if (value.starts_with('=') && read_type(value.substr(1), p.*field.user)) return {};
                           return text("a type is expected: {}, with {}.{}", form_of(option),
                                       either(types_of(option, p)), no_type(value));
                         },
                         [&](CountField field) -> std::string {
                           if (!equals) return read_number(value, p.*field.user);
                           if (value.starts_with('=') && read_number(value.substr(1), p.*field.user).empty())
                             return {};
                           return text("a number of keys is expected: {}.", form_of(option));
                         },
                         [&](SeedField field) { return read_number(value, p.*field.user); },
                         [&](FactorField field) { return read_number(value, p.*field.user); },
                         [&](FlagField field) { return p.*field.user = 1, std::string(); }},
                    option.field);
}

// " Write kv=e4m3 or kv=e5m2." for "kv=fp8"; "" where none of the types that are meant is taken.
std::string corrected_type(const Option& option, std::string_view value, const fh_problem& p) {
  std::string all;
  for (const Dtype type : meant_types(value, types_of(option, p)))
    all += text("{} {}{}", all.empty() ? " Write" : " or", option.word, name_of(type));
  return all.empty() ? "" : all + ".";
}

// The word that would be right, as far as can be told: "softcap30" for "softcap=30", "b2" for "b2,".
std::string corrected(const Option& option, std::string_view value, const fh_problem& p) {
  if (means_none(value)) return " Leave it out.";
  while (value.ends_with(',') || value.ends_with(';') || value.ends_with(')')) value.remove_suffix(1);
  while (!value.empty() && std::string_view("=:_(").find(value.front()) != value.npos) value.remove_prefix(1);
  const bool equals = option.key() != option.word;
  if (std::holds_alternative<TypeField>(option.field)) return corrected_type(option, value, p);
  if (equals && value.starts_with('-')) return " Leave it out for none.";  // no such option takes less than 0
  const std::string after = text("{}{}", equals ? "=" : "", value);
  if (shown(after) != after) return "";  // a number with many zeros before it
  fh_problem ignored = fh_problem_init();
  return read_value(option, after, ignored).empty() ? text(" Write {}{}.", option.key(), after) : "";
}

// The word that is meant, and how it is written with the value that follows the user's: "d128" for "head_dim=128".
std::string unknown_word(const Word& word, const fh_problem& p) {
  if (const std::string why = no_word(word.all); !why.empty()) return text("this word is unknown. {}", why);
  const std::string meant = meant_words(word.all);
  if (meant.empty()) return text("this word is unknown. {}.", grammar);
  const std::string_view value = value_of_word(word.all);
  const auto option = std::ranges::find(options(), meant, form_of);  // none where several words are meant
  std::string advice;
  if (option != options().end() && has_value(*option) && !value.empty()) advice = corrected(*option, value, p);
  if (option != options().end() && !has_value(*option) && (means_none(value) || value == "=0"))
    advice = " It is off where it is left out: leave it out.";
  return text("this word is unknown. Did you mean {}?{}", meant,
              advice.empty() ? " docs/options.md has all words." : advice);
}

// Puts one word into the struct; returns what is wrong with it.
std::string read_word(const Word& word, fh_problem& p) {
  for (const Option& option : options()) {
    const std::string_view key = has_value(option) ? word.key : word.all;
    if (key.empty() || !option.word.starts_with(key) || option.key() != key) continue;
    if (word.value.starts_with('_')) break;  // page_size16 begins as pageN does
    std::string wrong = read_value(option, word.value, p);
    if (wrong.empty()) return {};
    if (!wrong.ends_with('.')) wrong += text(": {}.", form_of(option));
    return wrong + corrected(option, word.value, p);
  }
  return unknown_word(word, p);
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
           [&](PhaseField) { return text("{}{}", option.word, name_of(p.phase)); },
           [&](AlignField) { return std::string(option.word); }, [&](FlagField) { return std::string(option.word); },
           [&](auto number) { return text("{}{}", option.word, p.*number.own); }},
      option.field);
}

std::string missing_word(const std::vector<Word>& words) {
  const auto has = [&](std::string_view key) {
    return std::any_of(words.begin() + 2, words.end(), [&](const Word& word) { return word.key == key; });
  };
  const bool appends = words[0].all == "append", by_slots = appends && has("slots");
  std::vector<std::string_view> missing;
  for (const Option& option : options())
    if (option.required && !has(option.key()) && !(by_slots && option.key() == "skv")) missing.push_back(option.word);
  if (missing.size() == 1) return text("{0}N is missing. Add {0} and its number.", missing[0]);
  std::string all;
  for (size_t i = 0; i < missing.size(); ++i)
    all += text("{}{}N", i == 0 ? "" : i + 1 < missing.size() ? ", " : " and ", missing[i]);
  if (!all.empty()) return text("{} are missing. Add each with its number.", all);
  if (by_slots && !has("skv") && !has("page") && !has("pages"))
    return "slots is there without the rows of the cache. Add pageN and pagesN of the pool, or skvN where the cache "
           "is not in pages.";
  const bool only_q_packed = has("page") || appends;
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
