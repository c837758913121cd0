// SPDX-License-Identifier: Apache-2.0
// problem: what the library says of a problem, which it says of the C struct, for whoever wrote a line: there an
// enumerator has a short name, an option is there or is left out, and no word is set to 0.
#include "src/problem/line_words.hpp"

#include <algorithm>
#include <functional>
#include <regex>

#include "src/base/text.hpp"
#include "src/problem/options.hpp"

namespace froghopper {

namespace {

using Match = std::smatch;

struct Rule {
  std::regex found;
  std::function<std::string(const Match&)> put;
};

const Option* option_of(const std::string& field) {
  const auto found = std::ranges::find(options(), field, &Option::name);
  return found == options().end() || found->word.empty() ? nullptr : &*found;
}

// "leave sink out", or with a capital at the start of a sentence; what a line must have is 0 in it. As it is where the
// words name no option.
std::string left_out(const std::string& field, bool sentence, const std::string& otherwise) {
  const Option* const option = option_of(field);
  if (!option) return otherwise;
  if (option->required) return text("{}rite {}0", sentence ? "W" : "w", option->key());
  return text("{}eave {} out", sentence ? "L" : "l", option->key());
}

std::string added(const Match& m) {
  const Option* const option = option_of(m[1]);
  return option && !option->required ? text("Add {}", form_of(*option)) : m.str();
}

// "kv=e4m3 or kv=e5m2"
std::string written(const Match& m) {
  const Option* const option = option_of(m[1]);
  return option ? text("Write {0}{1} or {0}{2}", option->word, m[2].str(), m[3].str()) : m.str();
}

std::string replaced(const std::string& said, const Rule& rule) {
  std::string all;
  auto rest = said.begin();
  for (std::sregex_iterator at(said.begin(), said.end(), rule.found), end; at != end; ++at) {
    all.append(rest, said.begin() + at->position());
    all += rule.put(*at);
    rest = said.begin() + at->position() + at->length();
  }
  return all.append(rest, said.end());
}

std::function<std::string(const Match&)> plain(const char* words) {
  return [words](const Match& m) { return m.format(words); };
}

// A name has 40 characters at most: the matcher of std::regex calls itself for each character, and a message may have
// longer words in it.
//
// In this order: what a rule has put in its place is no longer found by those after it.
const std::vector<Rule>& rules() {
  static const std::vector<Rule> all = {
      {std::regex("FH_FORWARD"), plain("fwd")},
      {std::regex("FH_BACKWARD"), plain("bwd")},
      {std::regex("FH_QUANTISE"), plain("quantise")},
      {std::regex("FH_APPEND"), plain("append")},
      {std::regex("FH_(F16|BF16|F32|E4M3|E5M2)"),
       [](const Match& m) {
         std::string name = m[1];
         std::ranges::transform(name, name.begin(), [](char c) { return static_cast<char>(std::tolower(c)); });
         return name;
       }},
      {std::regex(R"(FH_ALL \(-1\))"), plain("-1")},
      {std::regex("must be FH_USUAL where"), plain("must be left out where")},
      {std::regex(R"(Set (\w{1,40}) to FH_USUAL or (\w{1,40})\.)"),
       [](const Match& m) {
         const Option* const option = option_of(m[1]);
         return option ? text("Leave {} out, or write {}{}.", option->key(), option->word, m[2].str()) : m.str();
       }},
      {std::regex(R"(Set (\w{1,40}) to (\w{1,40}) or (\w{1,40})(?=\.))"), written},
      {std::regex(R"(\bSet (\w{1,40}) to (?:0|FH_ALL|FH_USUAL)( here)?(?=[.,;]))"),
       [](const Match& m) { return left_out(m[1], true, m.str()); }},
      {std::regex(R"(\bor (\w{1,40}) to (?:0|FH_USUAL)(?=\.))"),
       [](const Match& m) { return text("or {}", left_out(m[1], false, m.str().substr(3))); }},
      {std::regex("Set positions, and give them"), plain("Add positions")},  // a line gives no tensors
      {std::regex("Set one of them to 0"), plain("Leave one of them out")},
      {std::regex(R"(\bSet (\w{1,40})(?=,| or |\.))"), added},
      {std::regex(R"(Use 0 for (1/sqrt\(dim_qk\)), -0\.0 for a scale of zero)"),
       plain("Leave scale out for $1, use scale0 for a scale of zero")},
      {std::regex("Use the number of their rows"), plain("Write rowsN, the number of their rows")},
  };
  return all;
}

}  // namespace

std::string in_words_of_lines(std::string said) {
  // "it" and "this" are the field that the message begins with, after the place in a file.
  static const std::regex begins(R"((?:^|: )(\w{1,40}) (?:is|must) )");
  Match begin;
  if (std::regex_search(said, begin, begins) && option_of(begin[1])) {
    const std::string field = begin[1];
    said = std::regex_replace(said, std::regex(R"(\bSet it to )"), "Set " + field + " to ");
    said = std::regex_replace(said, std::regex(R"(\bor this to 0)"), "or " + field + " to 0");
    said = std::regex_replace(said, std::regex(R"(\bSet this to 0)"), "Set " + field + " to 0");
    said = std::regex_replace(said, std::regex(R"( or leave it 0\.)"), ", or " + field + " to 0.");
  }
  for (const Rule& rule : rules()) said = replaced(said, rule);
  return said;
}

}  // namespace froghopper
