// SPDX-License-Identifier: Apache-2.0
// cli: what benchmarks of other libraries call the options of this program. Most of their options are words of a
// problem line here, which problem/other_words.hpp knows.
#include "cli/other_options.hpp"

#include <algorithm>
#include <regex>
#include <string_view>
#include <vector>

#include "src/base/near_word.hpp"
#include "src/base/text.hpp"
#include "src/problem/other_words.hpp"

namespace froghopper::cli {
namespace {

// With several of either, separated by blanks; of ours the first that the command has.
struct Other {
  std::string_view theirs, ours;
};
constexpr Other others[] = {
    {"device where gpu cuda cpu platform", "target"},
    {"is-causal causal-mask", "causal"},
    {"softmax-scale sm-scale attn-scale", "scale"},
    {"logits-soft-cap soft-cap logit-cap", "softcap"},
    {"window-size sliding-window local", "window"},
    {"backward bwd grads gradients", "grad"},
    {"return-lse", "lse"},
    {"iters iterations n-iters num-iters reps repeats repeat runs trials repetitions rounds", "rounds repeat"},
    {"warmup warmup-iters time seconds duration", "ms"},
    {"out output output-file save", "output json"},
    {"format csv", "json"},
    {"jobs threads workers", "processes"},
    {"debug log", "verbose"},
};

bool is_among(std::string_view word, std::string_view list) {
  return text(" {} ", list).find(text(" {} ", word)) != std::string::npos;
}

std::string in_our_words(const CLI::App& command, const std::string& name) {
  const auto* const other = std::ranges::find_if(others, [&](const Other& o) { return is_among(name, o.theirs); });
  if (other == std::end(others)) return {};
  for (const std::string& ours : CLI::detail::split(std::string(other->ours), ' '))
    if (command.get_option_no_throw("--" + ours)) return text(" Did you mean --{}?", ours);
  return {};
}

// "--head-dim" and the like, which the problem line says, or, where there is none, the tensors.
std::string of_problem(const CLI::App& command, std::string name) {
  std::ranges::replace(name, '-', '_');
  const bool is_type = is_among(name, "dtype type precision torch_dtype");
  const std::string word = meant_words(name);
  if (!is_type && word.empty()) return {};
  if (command.get_name() == "attend") return " The tensors in the files say that.";
  if (command.get_name() == "info") return {};
  return is_type ? " The type is the second word of the problem line."
                 : text(" In the problem line that is {}.", word);
}

}  // namespace

std::string meant_option(const CLI::App& command, const std::string& what) {
  std::smatch found;
  if (!std::regex_search(what, found, std::regex(R"(not expected: (?:[^-].* )?(--([^ =]+)))"))) return {};
  std::string name = found[2];
  std::ranges::transform(name, name.begin(),
                         [](char c) { return static_cast<char>(c == '_' ? '-' : std::tolower(c)); });
  if (std::string ours = in_our_words(command, name); !ours.empty()) return ours;
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options())
    for (const std::string& one : option->get_lnames()) names.push_back("--" + one);
  const std::vector<std::string_view> known(names.begin(), names.end());
  const std::string_view near = near_word(found[1].str(), known);
  return near.empty() ? of_problem(command, name) : text(" Did you mean {}?", near);
}

}  // namespace froghopper::cli
