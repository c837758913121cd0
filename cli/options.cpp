// SPDX-License-Identifier: Apache-2.0
// cli: the table of options as Markdown. Every cell is from the table that the library itself goes through.
#include "cli/options.hpp"

#include <algorithm>

#include "src/base/text.hpp"
#include "src/problem/options.hpp"

namespace froghopper::cli {
namespace {

// "a b" as "`a`, `b`".
std::string names(std::string_view list) {
  std::string all;
  for (std::string_view rest = list; !rest.empty();) {
    const std::string_view name = rest.substr(0, rest.find(' '));
    rest.remove_prefix(std::min(name.size() + 1, rest.size()));
    all += text("{}`{}`", all.empty() ? "" : ", ", name);
  }
  return all;
}

const char* type_of(const Option& option) {
  return std::visit(
      []<class User, class Own>(Place<User, Own>) {
        if constexpr (std::is_same_v<Own, fh_op>)
          return "fh_op";
        else if constexpr (std::is_same_v<Own, fh_align>)
          return "fh_align";
        else if constexpr (std::is_same_v<Own, fh_phase>)
          return "fh_phase";
        else if constexpr (std::is_same_v<Own, Dtype>)
          return "fh_dtype";
        else if constexpr (std::is_same_v<Own, bool>)
          return "flag";
        else if constexpr (std::is_same_v<Own, uint32_t>)
          return "uint32";
        else if constexpr (std::is_same_v<Own, float>)
          return "float";
        else
          return "int64";
      },
      option.field);
}

std::string range_of(const Option& option) {
  if (*option.range) return option.range;
  if (std::holds_alternative<FlagField>(option.field)) return "0; nonzero is on";
  return text("{} or more", option.least);
}

std::string token_of(const Option& option) {
  if (option.name == std::string_view("op")) return "`fwd`, `bwd`, `quantise`, `append`";
  if (option.name == std::string_view("dtype")) return "`DTYPE`";
  return text("`{}`", option.name == std::string_view("window_right") ? "windowL,R" : form_of(option));
}

std::string operations_of(const Option& option) {
  std::string all = option.ops == of_all ? "all" : "";
  const auto add = [&](unsigned op, const char* name) {
    if (option.ops != of_all && (option.ops & op) != 0) all += text("{}{}", all.empty() ? "" : ", ", name);
  };
  add(of_forward, "forward"), add(of_backward, "backward"), add(of_quantise, "quantise"), add(of_append, "append");
  return all + (option.of_8_bits ? "; 8-bit k and v" : "");
}

}  // namespace

std::string options_table() {
  std::string table =
      "| option | type | default | range | in a line | operations | NumPy | PyTorch | JAX | quantise | meaning |\n"
      "|---|---|---|---|---|---|---|---|---|---|---|\n";
  for (const Option& option : options())
    table += text("| `{}` | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |\n", option.name, type_of(option),
                  *option.usual ? option.usual : "0", range_of(option), token_of(option), operations_of(option),
                  names(option.python.numpy), names(option.python.torch), names(option.python.jax),
                  names(option.python.quantise), option.sentence);
  return table;
}

}  // namespace froghopper::cli
