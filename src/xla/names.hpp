// SPDX-License-Identifier: Apache-2.0
// xla: sentences of the library with the names that a program's user has for its fields. A compiled program has no
// Python around it that could say them otherwise.
#pragma once
#include <algorithm>
#include <string>
#include <string_view>

namespace froghopper::xla {

// What `names` calls a field: "seq_q=max_seqlen_q;total_q=the number of rows of q". A field that is not in it keeps
// its name.
inline std::string_view name_of(std::string_view field, std::string_view names) {
  while (!names.empty()) {
    const std::string_view pair = names.substr(0, names.find(';'));
    names.remove_prefix(std::min(pair.size() + 1, names.size()));
    if (pair.size() > field.size() && pair.starts_with(field) && pair[field.size()] == '=')
      return pair.substr(field.size() + 1);
  }
  return field;
}

// The sentence with these names, and without the name of the function of the library that said it.
inline std::string renamed(std::string_view sentence, std::string_view names) {
  constexpr std::string_view letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789",
                             said_by = ": ";
  if (sentence.starts_with("fh_")) sentence.remove_prefix(sentence.find(said_by) + said_by.size());
  std::string made;
  while (!sentence.empty()) {
    const size_t begin = std::min(sentence.find_first_of(letters), sentence.size());
    made += sentence.substr(0, begin);
    sentence.remove_prefix(begin);
    const std::string_view word = sentence.substr(0, sentence.find_first_not_of(letters));
    made += name_of(word, names);
    sentence.remove_prefix(word.size());
  }
  return made;
}

}  // namespace froghopper::xla
