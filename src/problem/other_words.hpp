// SPDX-License-Identifier: Apache-2.0
// problem: what people write in a line who know the words of other libraries, of the C interface or of frameworks.
// Messages name our word for it; a line itself is read to the letter.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "src/base/element.hpp"

namespace froghopper {

// "dN", "kv=DTYPE", "windowL,R": a word of a line that the user's word means, or two. "" where that cannot be told.
std::string meant_words(std::string_view word);
// Of what a line does not say, such as dropout or the device: a sentence or two. "" of any other word.
std::string no_word(std::string_view word);
// "=128" of "head_dim=128". The word "fp8" is a name and a value.
std::string_view value_of_word(std::string_view word);
// "=None", "=False": that an option is not wanted.
bool means_none(std::string_view value);
// Of the second word, and after kv= and others: the types that are taken there and that the word means: bf16 for
// "bfloat16", two for "fp8".
std::vector<Dtype> meant_types(std::string_view word, const std::vector<Dtype>& taken);
// " There is no int8.": of what others have and this library does not. "" of any other word.
std::string no_type(std::string_view word);
// Of the first word: "fwd" for "forward".
std::string meant_operation(std::string_view word);

}  // namespace froghopper
