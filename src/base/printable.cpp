// SPDX-License-Identifier: Apache-2.0
// base: UTF-8 characters one after the other, and what stands for bytes that are none.
#include "src/base/printable.hpp"

#include <algorithm>

#include "src/base/text.hpp"

namespace froghopper {
namespace {

// A character of more than one byte that nobody sees, or that turns what follows around, as U+202E does.
bool is_unseen(std::string_view character) {
  if (character >= "\xc2\x80" && character <= "\xc2\xa0") return true;  // U+0080 to U+009F control a terminal
  if (character >= "\xe2\x80\x80" && character <= "\xe2\x80\x8f") return true;
  if (character >= "\xe2\x80\xa8" && character <= "\xe2\x80\xaf") return true;
  if (character >= "\xe2\x81\x9f" && character <= "\xe2\x81\xaf") return true;
  return character == "\xc2\xad" || character == "\xe3\x80\x80" || character == "\xef\xbb\xbf";
}

// Bytes of the UTF-8 character that begins the text; 0 where none does that a terminal should see.
size_t character(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return first >= 0x20 && first != 0x7f;
  const size_t bytes = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || bytes > text.size()) return 0;
  for (size_t i = 1; i < bytes; ++i) {
    if (byte(i) < 0x80 || byte(i) > 0xbf) return 0;
  }
  return is_unseen(text.substr(0, bytes)) ? 0 : bytes;
}

// The first character of the text, or what stands for its first byte. It is taken away.
std::string next(std::string_view& rest, std::string_view kept) {
  const size_t n = kept.find(rest.front()) != kept.npos ? 1 : character(rest);
  std::string one =
      n > 0 ? std::string(rest.substr(0, n)) : text("\\x{:02x}", static_cast<unsigned char>(rest.front()));
  rest.remove_prefix(n > 0 ? n : 1);
  return one;
}

}  // namespace

std::string printable(std::string_view bytes) {
  std::string safe;
  while (!bytes.empty()) safe += next(bytes, "\n\t");
  return safe;
}

std::string shown(std::string_view word, size_t most) {
  std::string safe;
  for (std::string_view rest = word; !rest.empty();) {
    const std::string one = next(rest, "");
    if (word.size() - rest.size() > most) return safe + "...";
    safe += one;
  }
  return safe;
}

std::string with_short_words(std::string_view message) {
  constexpr size_t most = 2000;                       // of all words together
  const auto is_number = [](std::string_view word) {  // up to the largest double, written out
    return word.size() < 400 && word.find_first_not_of("0123456789.") == word.npos;
  };
  std::string all;
  while (!message.empty() && all.size() < most) {
    const std::string_view word = message.substr(0, message.find(' '));
    all += word.size() <= 80 || is_number(word) ? std::string(word) : shown(word);
    message.remove_prefix(word.size());
    if (message.empty()) return all;
    all += ' ';
    message.remove_prefix(1);
  }
  return message.empty() ? all : all + "...";
}

}  // namespace froghopper
