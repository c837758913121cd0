// SPDX-License-Identifier: Apache-2.0
// Claims about the words of messages: one of something is in the singular, and a word that is nearly right is answered
// with the one that was meant.
#include <gtest/gtest.h>

#include <array>
#include <string_view>

#include "src/api/run.hpp"
#include "src/base/counted.hpp"
#include "src/base/near_word.hpp"

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
