// SPDX-License-Identifier: Apache-2.0
// base: text("a {} b", 1). GCC 12 has no <format>; {fmt} is header-only here, so that the library needs no libfmt.
#pragma once
#ifndef FMT_HEADER_ONLY
#define FMT_HEADER_ONLY
#endif
#include <fmt/format.h>

#include <string>

namespace froghopper {

template <class... Parts>
std::string text(fmt::format_string<Parts...> form, Parts&&... parts) {
  return fmt::format(form, std::forward<Parts>(parts)...);
}

}  // namespace froghopper
