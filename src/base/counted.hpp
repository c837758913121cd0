// SPDX-License-Identifier: Apache-2.0
// base: how many there are of something, for messages.
#pragma once
#include <string>
#include <string_view>

#include "src/base/text.hpp"

namespace froghopper {

// "1 byte", "2 bytes", with the noun as one of them is called; one: "batch", several: "batches".
template <class Number>
std::string counted(Number count, std::string_view one, std::string_view several = {}) {
  if (count == 1) return text("1 {}", one);
  return several.empty() ? text("{} {}s", count, one) : text("{} {}", count, several);
}

// The numbers from 0 to `most`, of which there is at least one: "0", "0 to 5".
template <class Number>
std::string from_0_to(Number most) {
  return most == 0 ? "0" : text("0 to {}", most);
}

}  // namespace froghopper
