// SPDX-License-Identifier: Apache-2.0
// Claims: a problem line in the words of frameworks, of other libraries or of the C interface is refused with ours.
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "src/problem/problem.hpp"

namespace froghopper {
namespace {

// Words of frameworks, of the C interface, and in upper case: the message has ours.
TEST(other_words, in_a_line_are_answered_with_ours) {
  const std::pair<const char*, const char*> all[] = {
      {"forward bf16 b1", "its operation, which here is fwd."},
      {"FWD bf16 b1", "its operation, which here is fwd."},
      {"backward bf16 b1", "its operation, which here is bwd."},
      {"quantize bf16 b1", "its operation, which here is quantise."},
      {"apend bf16 b1", "its operation, which here is append."},
      {"fwd fp16 b1", "the type, which here is f16."},
      {"fwd BF16 b1", "the type, which here is bf16."},
      {"fwd float32 b1", "the type, which here is f32."},
      {"fwd bfloat16 b1", "the type, which here is bf16."},
      {"fwd bf16 B1", "Did you mean bN?"},
      {"fwd bf16 batch1", "Did you mean bN?"},
      {"fwd bf16 b1 h16", "Did you mean hqN and hkvN?"},
      {"fwd bf16 b1 s4096", "Did you mean sqN and skvN?"},
      {"fwd bf16 b1 dim128", "Did you mean dN?"},
      {"fwd bf16 b1 kve4m3", "Did you mean kv=DTYPE?"},
      {"fwd bf16 b1 top_left", "Did you mean topleft?"},
      {"fwd bf16 b1 max_logit", "Did you mean maxlogit?"},
      {"fwd bf16 b1 deterministic", "Did you mean det?"},
      {"fwd bf16 b1 accumulate=1", "Did you mean acc?"},
      {"fwd bf16 b1 page_size16", "Did you mean pageN?"},
      {"fwd bf16 b1 window_left4", "Did you mean windowL,R?"},
      {"fwd bf16 b1 window_right0", "Did you mean windowL,R?"},
  };
  for (const auto& [line, said] : all) {
    const auto p = Problem::parse(line);
    ASSERT_FALSE(p) << line;
    EXPECT_NE(p.failure().text.find(said), std::string::npos) << line << ": " << p.failure().text;
    EXPECT_EQ(p.failure().text.find("A line is"), std::string::npos) << p.failure().text;
  }
}

// Each word of other libraries is answered with ours and its value, or with what a line does not say.
TEST(other_words, of_libraries_are_answered_with_the_word_to_write) {
  const std::pair<const char*, const char*> all[] = {
      {"head_dim=128", "Did you mean dN? Write d128."},
      {"head_size=128", "Write d128."},
      {"k_scale=0.5", "8-bit types always have scales."},
      {"qo_len=3", "Write sq3."},
      {"diagonal_band_left_bound=8", "Did you mean windowL,R?"},
      {"bottom_right", "That is where the diagonal ends anyway."},
      {"chunk-1", "Leave it out for none."},
      {"hdim=64", "Write d64."},
      {"head_dim_v=64", "Write dv64."},
      {"batch_size=3", "Write b3."},
      {"num_heads=8", "Did you mean hqN and hkvN?"},
      {"num_qo_heads=8", "Write hq8."},
      {"num_attention_heads=8", "Write hq8."},
      {"num_kv_heads=2", "Write hkv2."},
      {"nheads_k=2", "Write hkv2."},
      {"num_key_value_heads=2", "Write hkv2."},
      {"seqlen=4096", "Did you mean sqN and skvN?"},
      {"seqlen_q=4", "Write sq4."},
      {"max_seqlen_q=4", "Write sq4."},
      {"seqlen_k=4", "Write skv4."},
      {"kv_len=4", "Write skv4."},
      {"is_causal", "Did you mean causal?"},
      {"is_causal=True", "Did you mean causal?"},
      {"is_causal=False", "It is off where it is left out: leave it out."},
      {"causal=0", "It is off where it is left out: leave it out."},
      {"scale=0.5", "Write scale0.5."},
      {"scale=None", "scaleX. Leave it out."},
      {"softmax_scale=0.5", "Write scale0.5."},
      {"sm_scale=None", "Leave it out."},
      {"logits_soft_cap=30", "Write softcap30."},
      {"window_size=(5,0)", "Write window5,0."},
      {"sliding_window=5", "Did you mean windowL,R?"},
      {"kv_cache_dtype=fp8", "Write kv=e4m3 or kv=e5m2."},
      {"kv_cache_dtype=fp8_e5m2", "Write kv=e5m2."},
      {"fp8", "Write kv=e4m3 or kv=e5m2."},
      {"out_dtype=float32", "Write o=f32."},
      {"block_size=16", "Write page16."},
      {"num_blocks=9", "Write pages9."},
      {"block_table", "Did you mean pageN and pagesN?"},
      {"cu_seqlens_q", "Did you mean varlen, tqN and tkvN?"},
      {"cache_seqlens", "Did you mean seqused?"},
      {"slot_mapping", "Did you mean slots?"},
      {"rope", "Did you mean rotaryN and rowsN?"},
      {"s_aux", "Did you mean sink?"},
      {"alibi_slopes", "Did you mean alibi?"},
      {"dropout_p=0.1", "There is no dropout. Leave it out."},
      {"device=cuda", "The target says where a problem runs"},
      {"dtype=bf16", "The type is the second word"},
      {"backward", "A line that begins with bwd"},
      {"return_lse", "lse is one"},
      {"attn_mask", "Masks are rules here"},
      {"enable_gqa=True", "hqN and hkvN say"},
      {"qkv_format=bshd", "strides of tensors"},
      {"num_splits=4", "hints, which follow the target"},
      {"hidden_size=4096", "Divide by the heads."},
      {"q_descale", "8-bit types always have scales."},
      {"slopes", "Did you mean alibi?"},
      {"lengths", "Did you mean seqused?"},
      {"output_gate", "Did you mean gate?"},
      {"--causal", "Did you mean causal?"},
      {"--num_kv_heads=2", "Write hkv2."},
      {"hopper", "The target says where a problem runs"},
      {"tiles=128x64s3", "hints, which follow the target"},
      {"grad_lse", "A line names no tensors"},
      {"is_neox", "the other way is interleaved"},
      {"cache_leftpad", "cu_seqlens_kv says where a sequence begins"},
      {"kv_lora_rank=512", "Latent rows (MLA)"},
      {"zigzag", "docs/15-context-parallel.md"},
      {"mask=padding", "seqused for padding"},
      {"kv=int8", "with bf16, e4m3 or e5m2. There is no int8."},
      {"d64 d_model=64", "Divide by the heads."},
  };
  for (const auto& [word, said] : all) {
    const auto p = Problem::parse(std::string("fwd bf16 ") + word);
    ASSERT_FALSE(p) << word;
    EXPECT_NE(p.failure().text.find(said), std::string::npos) << word << ": " << p.failure().text;
    EXPECT_EQ(p.failure().text.find("A line is"), std::string::npos) << p.failure().text;
  }
  const auto nonsense = Problem::parse("fwd bf16 xyzzy=3");
  ASSERT_FALSE(nonsense);
  EXPECT_NE(nonsense.failure().text.find("this word is unknown. A line is"), std::string::npos);
}

}  // namespace
}  // namespace froghopper
