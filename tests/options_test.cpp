// SPDX-License-Identifier: Apache-2.0
// Claims: every option goes through the line and the user's struct and back; what its row of the table refuses is
// refused in words that begin with it; the support table and docs/names.md know it. That no field lacks a row is
// checked where the table is compiled, and python/tests/test_options.py holds the Python packages to it.
#include "src/problem/options.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <type_traits>

#include "src/base/text.hpp"
#include "tests/support/small_problem.hpp"

namespace froghopper {
namespace {

constexpr fh_op operations[] = {FH_FORWARD, FH_BACKWARD, FH_QUANTISE, FH_APPEND};

bool is_enum(const Option& option) {
  return std::visit([]<class User, class Own>(Place<User, Own>) { return std::is_enum_v<User>; }, option.field);
}

bool is(const Option& option, std::string_view name) { return option.name == name; }

// A problem of this operation that does not ask for the option yet, but has what it goes with.
fh_problem problem_for(const Option& option, fh_op op) {
  fh_problem p = test::small_problem();
  p.op = op;
  if (op == FH_QUANTISE || option.of_8_bits || is(option, "dtype_o") || is(option, "scale_tokens"))
    p.dtype_kv = FH_E4M3;
  if (op == FH_BACKWARD) p.dtype_kv = FH_USUAL;
  if (is(option, "align")) p.causal = 1;
  if (is(option, "total_q") || is(option, "total_kv")) p.varlen = 1;
  if (is(option, "rotate_seed")) p.rotate = 1;
  if (is(option, "pages")) p.page_size = 16;
  if (is(option, "phase") && op == FH_BACKWARD) p.accumulate = 1;
  const bool of_rotation = is(option, "rotary_dim") || is(option, "rotary_rows") ||
                           is(option, "rotary_interleaved") || is(option, "dtype_rotary") || is(option, "positions");
  if (op == FH_APPEND && of_rotation) p.rotary_dim = 2, p.rotary_rows = 400;
  if (op == FH_APPEND && (is(option, "norm_epsilon") || is(option, "dtype_norm"))) p.norm = 1;
  return p;
}

// A value that the small problem does not have: 1, but for these.
int64_t other_value(std::string_view name) {
  const struct {
    std::string_view name;
    int64_t value;
  } all[] = {{"heads_q", 4},        {"heads_kv", 4},     {"dim_qk", 64},         {"dim_v", 64},
             {"window_right", 0},   {"scale_rows", 128}, {"align", FH_TOP_LEFT}, {"dtype", FH_F16},
             {"dtype_kv", FH_E5M2}, {"dtype_o", FH_F32}, {"rotary_dim", 4},      {"dtype_rotary", FH_F32},
             {"dtype_norm", FH_F32}};
  for (const auto& other : all)
    if (other.name == name) return other.value;
  return 1;
}

void ask_for(const Option& option, fh_problem& p) {
  std::visit([&]<class User, class Own>(
                 Place<User, Own> field) { p.*field.user = static_cast<User>(other_value(option.name)); },
             option.field);
}

TEST(options, every_option_is_read_back_from_the_line_and_from_the_struct) {
  for (const Option& option : options()) {
    if (is(option, "op")) continue;  // every operation is asked for here
    for (const fh_op op : operations) {
      const bool of_8_bits = is(option, "dtype_kv") || is(option, "dtype_o");
      if ((option.ops & set_of(op)) == 0 || (op == FH_BACKWARD && of_8_bits)) continue;
      fh_problem user = problem_for(option, op);
      const auto without = Problem::from(user);
      ASSERT_TRUE(without) << option.name << ": " << without.failure().text;
      ask_for(option, user);
      const auto p = Problem::from(user);
      ASSERT_TRUE(p) << option.name << ": " << p.failure().text;
      EXPECT_NE(*p, *without) << option.name;
      const auto read = Problem::parse(p->line());
      ASSERT_TRUE(read) << option.name << ": " << read.failure().text;
      EXPECT_EQ(*read, *p) << option.name << ": " << p->line();
      const auto back = Problem::from(p->user_struct());
      ASSERT_TRUE(back) << option.name << ": " << back.failure().text;
      EXPECT_EQ(*back, *p) << option.name << ": " << back->line();
    }
  }
}

TEST(options, nothing_is_called_as_another_option_is) {
  const auto all = options();
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_NE(std::string_view(all[i].sentence), "") << all[i].name;
    for (size_t j = 0; j < i; ++j) {
      EXPECT_STRNE(all[i].name, all[j].name);
      EXPECT_TRUE(all[i].word.empty() || all[i].key() != all[j].key()) << all[i].name;
    }
  }
}

TEST(options, a_value_below_the_least_is_refused) {
  for (const Option& option : options()) {
    const auto* const count = std::get_if<CountField>(&option.field);
    if (!count) continue;
    ASSERT_NE(option.least, no_least) << option.name;
    fh_problem p = problem_for(option, (option.ops & of_forward) != 0 ? FH_FORWARD : FH_APPEND);
    p.*count->user = option.least - 1;
    const auto refused = Problem::from(p);
    ASSERT_FALSE(refused) << option.name;
    EXPECT_EQ(refused.failure().status, FH_INVALID_PROBLEM);
    EXPECT_TRUE(refused.failure().text.starts_with(text("{} is {}; ", option.name, option.least - 1)))
        << refused.failure().text;
  }
}

TEST(options, what_an_operation_does_not_have_is_refused) {
  for (const Option& option : options())
    for (const fh_op op : operations) {
      if ((option.ops & set_of(op)) != 0 || is_enum(option)) continue;
      fh_problem p = test::small_problem();
      p.op = op;
      if (op == FH_QUANTISE) p.dtype_kv = FH_E4M3;
      ask_for(option, p);
      EXPECT_TRUE(is_given(option, p)) << option.name;
      const auto refused = Problem::from(p);
      ASSERT_FALSE(refused) << option.name << " in " << name_of(op);
      EXPECT_TRUE(refused.failure().text.starts_with(text("{} is ", option.name))) << refused.failure().text;
      const bool unsupported = (option.not_computed & set_of(op)) != 0 && !is(option, "pages");
      EXPECT_EQ(refused.failure().status, unsupported ? FH_UNSUPPORTED : FH_INVALID_PROBLEM)
          << refused.failure().text;
    }
}

TEST(options, the_grammar_has_every_word) {
  const std::string grammar = Problem::parse("fwd bf16 unknown").failure().text;
  for (const Option& option : options()) {
    const auto ends = [&](size_t at) {  // "page" is not in "pagesN", but "pageN" has it
      const char next = grammar[at + option.word.size()];
      return !(next >= 'a' && next <= 'z');
    };
    bool found = option.word.empty();
    for (size_t at = grammar.find(option.word); !found && at != grammar.npos; at = grammar.find(option.word, at + 1))
      found = at > 0 && std::string_view(" [|").find(grammar[at - 1]) != std::string_view::npos && ends(at);
    EXPECT_TRUE(found) << option.word;
  }
}

std::string file(const char* path) {
  std::ifstream in(std::string(FROGHOPPER_SOURCE_DIR "/") + path);
  EXPECT_TRUE(in) << path;
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(options, the_support_table_asks_for_every_option) {
  const std::string table = file("docs/support.md");
  for (const Option& option : options()) {
    EXPECT_TRUE(!*option.support || table.find(text("\n| {} |", option.support)) != table.npos) << option.support;
    // Sizes are everywhere in it; it has no rows of quantising.
    const bool asked = option.ops != of_quantise && std::holds_alternative<FlagField>(option.field);
    EXPECT_TRUE(*option.support || !asked) << option.name << " has no row there";
  }
}

// What is asked of scale_tokens alone is no answer for both.
TEST(options, tables_say_what_scale_tokens_does_not_go_with) {
  for (const char* const other : {"smooth", "invariant"}) {
    const auto both = Problem::parse(text("fwd bf16 kv=e4m3 b1 hq1 hkv1 sq1 skv1 d64 tokenscales {}", other));
    ASSERT_FALSE(both);
    EXPECT_EQ(both.failure().status, FH_UNSUPPORTED);
  }
  for (const char* const document : {"docs/support.md", "docs/options.md"})
    EXPECT_NE(file(document).find("not with smooth or invariant"), std::string::npos) << document;
}

TEST(options, the_glossary_has_every_word_of_a_line) {
  const std::string glossary = file("docs/names.md");
  for (const Option& option : options()) {
    const std::string key(option.key());
    bool found = key.empty();
    for (const char* const before : {"`", " "})
      for (const char* const after : {"`", " ", "N", "X", "=", "L"})
        found |= glossary.find(before + key + after) != glossary.npos;
    EXPECT_TRUE(found) << key;
  }
}

}  // namespace
}  // namespace froghopper
