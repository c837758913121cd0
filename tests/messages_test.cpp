// SPDX-License-Identifier: Apache-2.0
// Claims about the words of messages: one of something is in the singular, and a word that is nearly right is answered
// with the one that was meant.
#include <gtest/gtest.h>

#include <array>
#include <string_view>

#include "src/api/run.hpp"
#include "src/base/counted.hpp"
#include "src/base/near_word.hpp"
#include "src/base/printable.hpp"

namespace froghopper {
namespace {

TEST(messages, one_is_in_the_singular) {
  EXPECT_EQ(counted(0, "byte"), "0 bytes");
  EXPECT_EQ(counted(1, "byte"), "1 byte");
  EXPECT_EQ(counted(2, "byte"), "2 bytes");
  EXPECT_EQ(counted(1, "batch", "batches"), "1 batch");
  EXPECT_EQ(counted(3, "batch", "batches"), "3 batches");
  EXPECT_EQ(counted(0.5, "second"), "0.5 seconds");
}

TEST(messages, near_words) {
  constexpr std::array<std::string_view, 4> known = {"cpu", "hopper", "h100", "causal"};
  for (const auto& [word, meant] : {std::pair{"cpux", "cpu"},
                                    {"cup", "cpu"},
                                    {"H100", "h100"},
                                    {"h10", "h100"},
                                    {"hoper", "hopper"},
                                    {"casual", "causal"},
                                    {"hoppperr", "hopper"},
                                    {"grasshopper", ""},
                                    {"c", ""},
                                    {"", ""},
                                    {"cp", ""},
                                    {"hop", ""}})
    EXPECT_EQ(near_word(word, known), meant) << word;
}

TEST(messages, words_are_quoted_on_one_line_up_to_80_bytes) {
  EXPECT_EQ(shown("caf\xc3\xa9"), "caf\xc3\xa9");
  EXPECT_EQ(shown("a\nb\tc\x1b[1m\xff\xc3"), "a\\x0ab\\x09c\\x1b[1m\\xff\\xc3");
  EXPECT_EQ(shown(std::string(80, 'x')), std::string(80, 'x'));
  EXPECT_EQ(shown(std::string(81, 'x')), std::string(80, 'x') + "...");
  EXPECT_EQ(shown(std::string(79, 'x') + "\xc3\xa9"), std::string(79, 'x') + "...");
  const std::string largest(309, '7');
  EXPECT_EQ(with_short_words(text("--ms: Value {} not in range 1 to {}", std::string(90, 'x'), largest)),
            text("--ms: Value {}... not in range 1 to {}", std::string(80, 'x'), largest));
}

// Whatever a line or a target has in it.
TEST(messages, of_long_words_are_short) {
  const std::string wide(1 << 20, 'b'), raw = "\n\x1b[31m\xff" + wide;
  for (const std::string& word : {wide, raw, "Set " + wide + " to 0.", std::string(1 << 20, '0') + "7,"}) {
    for (const std::string& line :
         {word, word + " bf16", "fwd " + word, "fwd bf16 " + word, "fwd bf16 b=" + word, "fwd bf16 kv=" + word,
          "fwd bf16 b1 hq1 hkv1 sq1 skv1 d8 phase=" + word, "fwd bf16 window" + word, "fwd bf16 scale" + word}) {
      fh_problem p = fh_problem_init();
      EXPECT_EQ(fh_problem_parse(line.c_str(), &p), FH_INVALID_PROBLEM) << line.substr(0, 40);
      const std::string said = fh_last_error();
      EXPECT_LT(said.size(), 1200u) << line.substr(0, 40);
      EXPECT_EQ(said, printable(said));
      EXPECT_EQ(said.find('\n'), std::string::npos) << said;
    }
    for (const std::string& target :
         {word, "hopper:" + word, "cpu " + word, "hopper " + word, "auto tiles=" + word, "h200 tail=" + word,
          "cpux:" + word, "mine l2=" + word, word + " 64sm", "hoper:" + word, "h200 " + word + "sms"}) {
      const auto read = read_target(target.c_str());
      ASSERT_FALSE(read) << target.substr(0, 40);
      EXPECT_LT(read.failure().text.size(), 1200u) << target.substr(0, 40);
      EXPECT_EQ(read.failure().text, printable(read.failure().text));
      EXPECT_EQ(read.failure().text.find('\n'), std::string::npos) << read.failure().text;
    }
  }
}

// What nobody sees of a word would make its refusal a riddle, and U+202E turns the rest of the line around.
TEST(messages, show_what_is_not_seen) {
  const struct {
    const char *line, *shown;
  } table[] = {{"\xef\xbb\xbf"
                "fwd bf16",
                "\"\\xef\\xbb\\xbf"
                "fwd\""},
               {"fwd bf16 b1 hq1 hkv1 sq1 skv1 d64\xc2\xa0"
                "causal",
                "\"d64\\xc2\\xa0"
                "causal\""},
               {"fwd bf16 b1 hq1 hkv1 sq1 skv1 d64 causal\xe2\x80\x8b", "causal\\xe2\\x80\\x8b"},
               {"fwd bf16 b1 hq1 hkv1 sq1 skv1 d64 \xe2\x80\xaelasuac", "\\xe2\\x80\\xaelasuac"},
               {"fwd bf16 b1 hq1 hkv1 sq1 skv1 d64 c\xc3\xa4usal", "c\xc3\xa4usal"}};
  for (const auto& row : table) {
    fh_problem p = fh_problem_init();
    EXPECT_EQ(fh_problem_parse(row.line, &p), FH_INVALID_PROBLEM) << row.line;
    EXPECT_NE(std::string(fh_last_error()).find(row.shown), std::string::npos) << fh_last_error();
  }
}

// The name of a GPU that is not known is the user's, and a part of explanations.
TEST(messages, names_of_gpus_are_shown_in_part) {
  const fh_problem p = Problem::parse("fwd bf16 b1 hq1 hkv1 sq1 skv1 d64")->user_struct();
  const std::string name = "\x1b" + std::string(1 << 16, 'b');
  const std::string said = fh_explain(&p, (name + " 64sm l2=40MiB clock=1500MHz memory=2000GB/s").c_str());
  EXPECT_NE(said.find("\\x1bbbb"), std::string::npos) << said;
  EXPECT_LT(said.size(), 4000u);
}

// Of the scale that a cache is written with, as attention has it, which reads the cache.
TEST(messages, scales_of_caches_are_refused_by_append_and_by_attention_alike) {
  const fh_problem append = Problem::parse("append f16 kv=e4m3 b1 hq1 hkv1 sq1 skv1 d16")->user_struct();
  const fh_problem attend = Problem::parse("fwd f16 kv=e4m3 b1 hq1 hkv1 sq1 skv1 d16")->user_struct();
  for (const float scale : {1e-40f, 3e-39f, 1e38f, -1.f, 0.f, 1.f, 0x1p-126f, 0x1p126f}) {
    std::array<uint16_t, 16> x{}, o{};
    std::array<uint8_t, 16> k{}, v{};
    float given = scale;
    fh_tensors t = fh_tensors_init(), u = fh_tensors_init();
    t.k = t.v = {x.data(), 16, 16, 16};
    t.cache_k = u.k = {k.data(), 16, 16, 16}, t.cache_v = u.v = {v.data(), 16, 16, 16};
    u.q = {x.data(), 16, 16, 16}, u.o = {o.data(), 16, 16, 16};
    t.scale_k = t.scale_v = u.scale_k = u.scale_v = {&given, 1, 1, 1};
    const fh_status wanted = scale >= 0x1p-126f && scale <= 0x1p126f ? FH_OK : FH_INVALID_TENSOR;
    EXPECT_EQ(fh_attention(&attend, "cpu", &u, nullptr, 0, nullptr), wanted) << scale;
    EXPECT_EQ(fh_attention(&append, "cpu", &t, nullptr, 0, nullptr), wanted) << scale;
    if (wanted == FH_OK) continue;
    EXPECT_EQ(fh_last_error(),
              text("fh_attention: scale_k of head 0 is {}; a scale is positive, from 1.2e-38 to 8.5e37 "
                   "(2^-126 to 2^126). Use 1 for values that stand for themselves.",
                   scale));
  }
}

TEST(messages, lengths_of_one_row) {
  const fh_problem p = Problem::parse("fwd f32 b1 hq1 hkv1 sq1 skv1 d8 seqused")->user_struct();
  std::array<float, 8> q{}, k{}, v{}, o{};
  const int32_t used = 2;
  fh_tensors t = fh_tensors_init();
  t.q = {q.data(), 8, 8, 8}, t.k = {k.data(), 8, 8, 8}, t.v = {v.data(), 8, 8, 8}, t.o = {o.data(), 8, 8, 8};
  t.seqused_kv = &used;
  EXPECT_NE(fh_attention(&p, "cpu", &t, nullptr, 0, nullptr), FH_OK);
  EXPECT_NE(std::string(fh_last_error()).find("the sequence has 1 row;"), std::string::npos) << fh_last_error();
}

TEST(messages, explanations_of_one) {
  const fh_problem p = Problem::parse("fwd bf16 b1 hq1 hkv1 sq64 skv64 d64")->user_struct();
  const std::string said = fh_explain(&p, "h200");
  for (const char* const one : {" 1 work item,", " 1 (sequence, head) pair\n", " 1 CTA of "})
    EXPECT_NE(said.find(one), std::string::npos) << one << "\n" << said;
}

// Heads divide, so that nothing is refused.
TEST(messages, explanations_of_axes_and_lengths_that_may_be_mistakes) {
  const auto said = [](const char* line) {
    const fh_problem p = Problem::parse(line)->user_struct();
    return std::string(fh_explain(&p, "cpu"));
  };
  EXPECT_NE(
      said("fwd bf16 b2 hq300 hkv300 sq8 skv2 d64").find("axes         300 query heads of 8 queries and 2 keys, "),
      std::string::npos);
  for (const char* line : {"fwd bf16 b2 hq8 hkv2 sq300 skv300 d64", "fwd bf16 b2 hq300 hkv300 sq1 skv2 d64",
                           "fwd bf16 b2 hq300 hkv300 sq8 skv3 d64", "fwd bf16 b2 hq16 hkv16 sq8 skv8 d64"})
    EXPECT_EQ(said(line).find("axes "), std::string::npos) << line;
  EXPECT_NE(said("fwd bf16 b2 hq8 hkv2 sq3 skv0 d64").find("none, as seq_kv is 0: o is 0, and lse"),
            std::string::npos);
  EXPECT_NE(said("bwd bf16 b2 hq8 hkv2 sq3 skv0 d64").find("gradients are 0"), std::string::npos);
}

// Where a call and fh_last_error() are arguments of one printf, C may read the text before the call.
TEST(messages, the_text_of_the_failure_before_is_still_there) {
  EXPECT_NE(fh_plan_create(nullptr, nullptr, nullptr), FH_OK);
  const char* const read = fh_last_error();
  const std::string before = read;
  EXPECT_NE(fh_plan_run(nullptr, nullptr, nullptr, 0, nullptr), FH_OK);
  EXPECT_EQ(read, before);
}

}  // namespace
}  // namespace froghopper
