// SPDX-License-Identifier: Apache-2.0
// base: the one file that {fmt} is compiled into, so that the library needs no libfmt.
#define FMT_HEADER_ONLY
#include "src/base/text.hpp"

namespace froghopper {

std::string formatted(fmt::string_view form, fmt::format_args parts) { return fmt::vformat(form, parts); }

}  // namespace froghopper
