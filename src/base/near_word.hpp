// SPDX-License-Identifier: Apache-2.0
// base: the word that was meant, for messages.
#pragma once
#include <span>
#include <string_view>

namespace froghopper {

// The one of `known` that the fewest changes of a character (one added, left out, replaced, or two side by side
// exchanged) make of `word`, upper and lower case alike. "" where that takes more than one change, or more than two of
// a word of six characters or more, and for words of one or two characters.
std::string_view near_word(std::string_view word, std::span<const std::string_view> known);

}  // namespace froghopper
