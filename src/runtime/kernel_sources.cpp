// SPDX-License-Identifier: Apache-2.0
// runtime: sources without comments, and what includes what.
#include "src/runtime/kernel_sources.hpp"

#include <algorithm>
#include <cctype>

#include "src/runtime/embedded.hpp"

namespace froghopper::runtime {
namespace {

// Calls take(line) for each line, without its end.
template <class Take>
void each_line(std::string_view text, Take take) {
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    take(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

std::string_view trimmed(std::string_view line) {
  constexpr std::string_view blanks = " \t\r";
  const size_t begin = line.find_first_not_of(blanks);
  if (begin == line.npos) return {};
  return line.substr(begin, line.find_last_not_of(blanks) - begin + 1);
}

// How many characters the comment, the literal or else the one character that begins here has. An apostrophe after a
// letter or digit separates digits.
size_t length_of_token(std::string_view text, size_t at) {
  const auto until = [&](size_t found, size_t more) {
    return found == text.npos ? text.size() - at : found + more - at;
  };
  if (text.compare(at, 2, "//") == 0) return until(text.find('\n', at), 0);
  if (text.compare(at, 2, "/*") == 0) return until(text.find("*/", at + 2), 2);
  const char quote = text[at];
  const bool in_number = quote == '\'' && at > 0 && std::isalnum(static_cast<unsigned char>(text[at - 1]));
  if ((quote != '"' && quote != '\'') || in_number) return 1;
  size_t end = at + 1;
  while (end < text.size() && text[end] != quote) end += text[end] == '\\' ? 2 : 1;
  return std::min(end + 1, text.size()) - at;
}

}  // namespace

std::string without_comments(std::string_view text) {
  std::string code;
  for (size_t at = 0; at < text.size();) {
    const size_t length = length_of_token(text, at);
    if (length > 1 && text[at] == '/')
      code += ' ';  // a comment separates words
    else
      code += text.substr(at, length);
    at += length;
  }
  std::string lines;
  each_line(code, [&](std::string_view line) {
    line = trimmed(line);
    if (!line.empty()) lines.append(line) += '\n';
  });
  return lines;
}

std::vector<std::string> included_by(std::string_view text) {
  constexpr std::string_view word = "#include \"";
  std::vector<std::string> paths;
  each_line(text, [&](std::string_view line) {
    line = trimmed(line);
    if (!line.starts_with(word)) return;
    line.remove_prefix(word.size());
    paths.emplace_back(line.substr(0, line.find('"')));
  });
  return paths;
}

KernelSources::KernelSources(std::span<const File> files, bool whole) {
  for (const File& file : files)
    sources_.emplace(file.name, Source{whole ? std::string(file.text) : without_comments(file.text),
                                       included_by(without_comments(file.text))});
}

const KernelSources& KernelSources::embedded(bool whole) {
  const auto read = [](bool with_comments) {
    std::vector<File> files;
    for (const EmbeddedFile* file = froghopper_sources; file->name != nullptr; ++file)
      files.push_back({file->name, content(*file)});
    return KernelSources(files, with_comments);
  };
  if (whole) {
    static const KernelSources sources = read(true);
    return sources;
  }
  static const KernelSources sources = read(false);
  return sources;
}

void KernelSources::add(const std::vector<std::string>& includes,
                        std::map<std::string_view, std::string_view>& read) const {
  for (const std::string& path : includes) {
    const auto at = sources_.find(path);
    if (at == sources_.end() || !read.emplace(at->first, at->second.text).second) continue;
    add(at->second.includes, read);
  }
}

std::map<std::string_view, std::string_view> KernelSources::read_by(std::string_view text) const {
  std::map<std::string_view, std::string_view> read;
  add(included_by(text), read);
  return read;
}

}  // namespace froghopper::runtime
