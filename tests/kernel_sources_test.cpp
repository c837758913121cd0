// SPDX-License-Identifier: Apache-2.0
// Claims: what a kernel's key covers is the code that its source includes, all of it, and nothing else.
#include "src/runtime/kernel_sources.hpp"

#include <gtest/gtest.h>

#include "src/plan/kernel.hpp"
#include "src/runtime/embedded.hpp"

namespace froghopper::runtime {
namespace {

TEST(WithoutComments, leaves_code_alone) {
  EXPECT_EQ(without_comments("int a;  // one\n\n  /* two\n lines */ int b;\n"), "int a;\nint b;\n");
  EXPECT_EQ(without_comments("a/*between words*/b\n"), "a b\n");
  EXPECT_EQ(without_comments("int last = 10'000;  // digits'\n'x'\n"), "int last = 10'000;\n'x'\n");
}

TEST(WithoutComments, knows_what_a_literal_is) {
  const std::string asm_lines = "asm(\"// not a comment \\\" /* nor this */\");\nchar c = '\"'; f(\"//\");\n";
  EXPECT_EQ(without_comments(asm_lines), asm_lines);
}

TEST(WithoutComments, ends_with_a_text_that_does_not) {
  EXPECT_EQ(without_comments("a /* open"), "a\n");
  EXPECT_EQ(without_comments("\"open"), "\"open\n");
  EXPECT_EQ(without_comments("\"open\\"), "\"open\\\n");
  EXPECT_EQ(without_comments("a // open"), "a\n");
}

TEST(KernelSources, follows_includes_and_nothing_else) {
  const KernelSources::File files[] = {{"a.cuh", "#pragma once\n#include \"b.cuh\"\nint a;  // a\n"},
                                       {"b.cuh", "#include \"a.cuh\"  // each other\n#include \"missing.cuh\"\n"},
                                       {"c.cuh", "int c;\n// #include \"d.cuh\"\n"},
                                       {"d.cuh", "int d;\n"}};
  const auto names = [&](const KernelSources& sources, std::string_view text) {
    std::string all;
    for (const auto& [name, code] : sources.read_by(text)) all.append(name) += ' ';
    return all;
  };
  const KernelSources sources(files, /*whole=*/false);
  EXPECT_EQ(names(sources, "#include \"a.cuh\"\n"), "a.cuh b.cuh ");
  EXPECT_EQ(names(sources, "  #include \"c.cuh\"\n"), "c.cuh ");
  EXPECT_EQ(sources.read_by("#include \"a.cuh\"").at("a.cuh"), "#pragma once\n#include \"b.cuh\"\nint a;\n");
  EXPECT_EQ(KernelSources(files, /*whole=*/true).read_by("#include \"a.cuh\"").at("a.cuh"), files[0].text);
}

// A file that a kernel reads and its key does not cover would leave stale kernels in caches.
TEST(KernelSources, finds_every_file_that_an_embedded_one_includes) {
  size_t includes = 0;
  for (const EmbeddedFile* file = froghopper_sources; file->name != nullptr; ++file)
    for (const std::string& path : included_by(content(*file))) {
      EXPECT_NE(find(froghopper_sources, path), nullptr) << file->name << " includes " << path;
      ++includes;
    }
  EXPECT_GT(includes, 100u);
}

TEST(KernelSources, tells_the_passes_apart) {
  const auto read = [](const KernelSpec& spec) { return KernelSources::embedded(false).read_by(spec.source); };
  const auto fills = read(kernel_of(FillVariant{}));
  EXPECT_TRUE(fills.contains("device/fwd/fill.cuh"));
  EXPECT_FALSE(fills.contains("device/fwd/forward.cuh"));
  const auto delta = read(kernel_of(DeltaVariant{}));
  EXPECT_TRUE(delta.contains("device/ptx/math.cuh"));
  EXPECT_FALSE(delta.contains("device/fwd/consumer.cuh"));
}

}  // namespace
}  // namespace froghopper::runtime
