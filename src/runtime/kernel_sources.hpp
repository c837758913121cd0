// SPDX-License-Identifier: Apache-2.0
// runtime: which of the embedded sources a kernel's machine code depends on, and on which part of their text. A kernel
// that was compiled stays good when another kernel's source, or a comment, changes.
#pragma once
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace froghopper::runtime {

// C++ without its comments, blank lines, indentation and spaces at the ends of lines.
std::string without_comments(std::string_view text);

// The paths of its #include "path" lines, in their order.
std::vector<std::string> included_by(std::string_view text);

class KernelSources {
 public:
  struct File {
    std::string_view name, text;
  };

  // whole: comments count too, as they do for kernels that know the numbers of their lines.
  KernelSources(std::span<const File> files, bool whole);

  // Those of the library.
  static const KernelSources& embedded(bool whole);

  // The files that the text includes, directly or through others, with what counts of each, sorted by name. An
  // included file that does not exist is left out: compiling it will fail.
  std::map<std::string_view, std::string_view> read_by(std::string_view text) const;

 private:
  struct Source {
    std::string text;
    std::vector<std::string> includes;
  };
  void add(const std::vector<std::string>& includes, std::map<std::string_view, std::string_view>& read) const;

  std::map<std::string, Source, std::less<>> sources_;
};

}  // namespace froghopper::runtime
