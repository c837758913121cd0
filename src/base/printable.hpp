// SPDX-License-Identifier: Apache-2.0
// base: what came from a user, as a message may show it.
#pragma once
#include <string>
#include <string_view>

namespace froghopper {

// What a file or its name says, safe to print on a terminal: control characters and broken UTF-8 become \x1b and the
// like. Line ends stay.
std::string printable(std::string_view);

// A word of a user's, or a line, as a message quotes it: of its first `most` bytes those of whole characters, printable
// and on one line, and "..." behind where there are more.
std::string shown(std::string_view word, size_t most = 80);
constexpr size_t shown_of_line = 240;

// A message with words of a user's in it, each as shown() has it; what fits stays as it is.
std::string with_short_words(std::string_view message);

}  // namespace froghopper
