// SPDX-License-Identifier: Apache-2.0
// problem: what is done with every row of the table of options, which is in option_table.cpp.
#include "src/problem/options.hpp"

#include <cmath>
#include <type_traits>

#include "src/base/text.hpp"

namespace froghopper {

bool is_default_scale(float scale) { return scale == 0 && !std::signbit(scale); }

bool is_given(const Option& option, const fh_problem& p) {
  static const fh_problem plain = fh_problem_init();
  if (option.word == "scale") return !is_default_scale(p.scale) && p.scale != default_scale(p.dim_qk);
  return std::visit(
      [&]<class User, class Own>(Place<User, Own> field) {
        if constexpr (std::is_same_v<User, fh_phase> || std::is_same_v<User, fh_align>)
          return p.*field.user != plain.*field.user;
        else if constexpr (std::is_enum_v<User>)
          return false;
        else
          return p.*field.user != plain.*field.user;
      },
      option.field);
}

bool is_shown(const Option& option, const Problem& p) {
  if (option.required) return true;
  if (option.shown) return option.shown(p);
  return std::visit([&]<class User, class Own>(Place<User, Own> field) { return p.*field.own != Own{}; },
                    option.field);
}

std::string value_of(const Option& option, const fh_problem& p) {
  return std::visit(
      [&]<class User, class Own>(Place<User, Own> field) {
        if constexpr (std::is_enum_v<User>)
          return text("{}", static_cast<int32_t>(p.*field.user));
        else
          return text("{}", p.*field.user);
      },
      option.field);
}

std::string form_of(const Option& option) {
  if (option.word == "window") return "windowL,R";
  return text("{}{}", option.word,
              std::visit(
                  []<class User, class Own>(Place<User, Own>) {
                    if constexpr (std::is_same_v<Own, Dtype>) return "DTYPE";
                    if constexpr (std::is_same_v<Own, fh_phase>) return "PHASE";
                    if constexpr (std::is_same_v<Own, float>) return "X";
                    if constexpr (std::is_same_v<Own, int64_t> || std::is_same_v<Own, uint32_t>) return "N";
                    return "";
                  },
                  option.field));
}

void copy_options(const fh_problem& from, Problem& to) {
  for (const Option& option : options())
    std::visit(
        [&]<class User, class Own>(Place<User, Own> field) {
          if (!field.own) return;
          if constexpr (std::is_same_v<Own, bool>)
            to.*field.own = from.*field.user != 0;
          else
            to.*field.own = static_cast<Own>(from.*field.user);
        },
        option.field);
}

void copy_options(const Problem& from, fh_problem& to) {
  for (const Option& option : options())
    std::visit(
        [&]<class User, class Own>(Place<User, Own> field) {
          if (field.own) to.*field.user = static_cast<User>(from.*field.own);
        },
        option.field);
}

}  // namespace froghopper
