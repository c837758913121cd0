// SPDX-License-Identifier: Apache-2.0
// base: text("a {} b", 1). GCC 12 has no <format>. Formats are checked when their caller is compiled; the formatting
// itself is compiled once, in text.cpp: in every file it would be most of the build.
#pragma once
#include <fmt/format.h>

#include <string>

namespace froghopper {

std::string formatted(fmt::string_view form, fmt::format_args parts);

template <class... Parts>
std::string text(fmt::format_string<Parts...> form, Parts&&... parts) {
  return formatted(form, fmt::make_format_args(parts...));
}

// "1, 2, 3" of numbers, with ", " between. fmt::join would bring the formatting into the caller's file.
template <class Numbers>
std::string joined(const Numbers& numbers, const char* between) {
  std::string all;
  for (const auto& number : numbers) {
    if (!all.empty()) all += between;
    all += text("{}", number);
  }
  return all;
}

}  // namespace froghopper
