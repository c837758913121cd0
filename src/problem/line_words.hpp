// SPDX-License-Identifier: Apache-2.0
// problem: messages about the C struct in the words of problem lines.
#pragma once
#include <string>

namespace froghopper {

// What is said of a problem, with the words of a line where it has those of C.
std::string in_words_of_lines(std::string said);

}  // namespace froghopper
