// SPDX-License-Identifier: Apache-2.0
// problem: the words of others, and the fields of fh_problem, for words of a line.
#include "src/problem/other_words.hpp"

#include <algorithm>
#include <cctype>
#include <vector>

#include "src/base/near_word.hpp"
#include "src/base/text.hpp"
#include "src/problem/options.hpp"

namespace froghopper {
namespace {

struct Other {
  std::string_view theirs, ours;
};

constexpr Other types[] = {
    {"fp16", "f16"},         {"float16", "f16"},   {"half", "f16"},    {"bfloat16", "bf16"},
    {"fp32", "f32"},         {"float32", "f32"},   {"float", "f32"},   {"single", "f32"},
    {"fp8", "e4m3 e5m2"},    {"f8", "e4m3 e5m2"},  {"e4m3fn", "e4m3"}, {"float8_e4m3fn", "e4m3"},
    {"float8_e4m3", "e4m3"}, {"fp8_e4m3", "e4m3"}, {"f8e4m3", "e4m3"}, {"fp8e4m3", "e4m3"},
    {"float8_e5m2", "e5m2"}, {"fp8_e5m2", "e5m2"}, {"f8e5m2", "e5m2"}, {"fp8e5m2", "e5m2"},
    {"fh_f16", "f16"},       {"fh_bf16", "bf16"},  {"fh_f32", "f32"},  {"fh_e4m3", "e4m3"},
    {"fh_e5m2", "e5m2"},
};

constexpr Other operations[] = {
    {"forward", "fwd"},    {"attention", "fwd"},        {"attn", "fwd"},         {"attend", "fwd"},
    {"decode", "fwd"},     {"prefill", "fwd"},          {"fh_forward", "fwd"},   {"backward", "bwd"},
    {"grad", "bwd"},       {"gradients", "bwd"},        {"fh_backward", "bwd"},  {"quantize", "quantise"},
    {"quant", "quantise"}, {"fh_quantise", "quantise"}, {"fh_append", "append"},
};

// Beside the names of the fields: PyTorch's, FlashAttention's, FlashInfer's, vLLM's, cuDNN's, and those of models'
// configurations. With several words for one of ours, separated by blanks.
constexpr Other words[] = {
    {"bs bsz batch_size batchsize num_seqs n_batch", "bN"},
    {"h nh heads nheads n_heads n_head num_heads num_head", "hqN and hkvN"},
    {"num_qo_heads num_q_heads num_heads_q num_query_heads num_attention_heads n_q_heads nheads_q q_heads qheads",
     "hqN"},
    {"hk hv num_kv_heads num_heads_kv num_heads_k num_key_value_heads n_kv_heads nheads_kv nheads_k kv_heads kvheads "
     "heads_k k_heads",
     "hkvN"},
    {"s seq seqlen seq_len sequence_length max_seqlen n_ctx length", "sqN and skvN"},
    {"seqlen_q seq_len_q max_seqlen_q q_seqlen q_seq_len q_len qlen len_q s_q query_len max_query_len max_q_len",
     "sqN"},
    {"qo_len qo_seqlen", "sqN"},
    {"sk sv seqlen_k seqlen_kv seq_len_k seq_len_kv max_seqlen_k max_seqlen_kv k_seqlen kv_seqlen kv_seq_len kv_len "
     "kvlen k_len len_k len_kv s_k s_kv seq_k max_kv_len max_seq_len context context_len ctx ctx_len cache_len",
     "skvN"},
    {"dim dq dqk d_k d_qk d_head head_dim headdim head_size hdim hd head_dim_qk qk_head_dim hdim_qk hdim_q", "dN"},
    {"head_dim_v head_dim_vo head_size_v headdim_v hdim_v v_head_dim", "dvN"},
    {"total total_tokens num_tokens cu_seqlens cu_seqlens_q cu_seqlens_k cu_seqlens_kv query_start_loc thd packed "
     "ragged",
     "varlen, tqN and tkvN"},
    {"seqused_q seqused_k seqused_kv seqlens seq_lens seqlens_k kv_lens cache_seqlens context_lens "
     "lengths use_padding_mask padding_mask",
     "seqused"},
    {"is_causal use_causal_mask causal_mask use_causal_mask_bottom_right", "causal"},
    {"local sliding_window sliding_window_size sliding_window_length window_size local_window_size window_right "
     "window_size_left window_size_right diagonal_band_left_bound diagonal_band_right_bound left_bound swa",
     "windowL,R"},
    {"chunk_size chunked_attention", "chunk=N"},
    {"softmax_scale sm_scale attn_scale qk_scale scaling", "scaleX"},
    {"soft_cap logits_soft_cap logit_softcap attn_logit_softcapping logit_cap softcapping", "softcapX"},
    {"s_aux learnable_sink attention_sink attention_sinks attn_sink", "sink"},
    {"alibi_slopes slopes use_alibi use_alibi_mask", "alibi"},
    {"fp8 kv_cache_dtype kv_dtype cache_dtype kv_type", "kv=DTYPE"},
    {"out_dtype o_dtype output_dtype", "o=DTYPE"},
    {"block_size page_block_size kv_block_size", "pageN"},
    {"num_pages num_blocks page_count n_blocks n_pages num_gpu_blocks", "pagesN"},
    {"paged paged_kv block_table block_tables page_table paged_kv_indices paged_kv_indptr", "pageN and pagesN"},
    {"slot_mapping", "slots"},
    {"position_ids pos_ids", "positions"},
    {"rope rope_theta rotary_emb rotary_cos rotary_sin", "rotaryN and rowsN"},
    {"rope_dim rot_dim rotary_ndims rotary_embedding_dim", "rotaryN"},
    {"rms_norm rmsnorm qk_norm", "norm"},
    {"rms_norm_eps rms_eps", "epsX"},
    {"num_sms sm_margin num_threads threads", "smsN"},
    {"return_max_logit max_logits", "maxlogit"},
    {"sigmoid_gate output_gate attn_output_gate", "gate"},
    {"rotary_interleaved rope_interleaved is_interleaved", "interleaved"},
};

// What a line does not say.
constexpr Other sentences[] = {
    {"dropout dropout_p dropout_rate p_dropout attn_dropout attention_dropout", "There is no dropout. Leave it out."},
    {"device backend target cuda gpu cpu hopper auto",
     "The target says where a problem runs, not its line. Leave it out."},
    {"dtype type torch_dtype q_dtype input_dtype precision",
     "The type is the second word of a line, as in fwd bf16."},
    {"op mode direction operation", "The operation is the first word of a line: fwd, bwd, quantise or append."},
    {"backward bwd requires_grad grad", "A line that begins with bwd computes gradients. Leave it out."},
    {"bottomright bottom_right lower_right use_bottom_right",
     "That is where the diagonal ends anyway. Leave it out."},
    {"no_causal non_causal noncausal is_inference", "That is so without a word for it. Leave it out."},
    {"leftpad leftpad_k left_pad cache_leftpad",
     "With varlen and seqused, cu_seqlens_kv says where a sequence begins. Leave it out."},
    {"scheduler_metadata", "Each launch finds its work by itself. Leave it out."},
    {"cp_size context_parallel_size sp_size ring zigzag ulysses document documents",
     "A line describes what one rank computes: docs/15-context-parallel.md. Leave it out."},
    {"cascade tree_mask", "There is neither cascade nor tree attention. Leave it out."},
    {"tp tp_size tensor_parallel_size", "A line has the heads of one GPU: divide hqN and hkvN by it."},
    {"is_neox is_neox_style neox", "That is so without a word for it; the other way is interleaved. Leave it out."},
    {"rope_scaling yarn", "The tables of cosines and sines have the angles. Leave it out."},
    {"mla kv_lora_rank q_lora_rank qk_rope_head_dim",
     "Latent rows (MLA) are not read as k and v: expand them to those of each head, such as d192 dv128."},
    {"sparse block_mask", "Masks are rules here: causal, windowL,R or chunk=N. Leave it out."},
    {"workspace stream", "A line names no memory and no stream. Leave it out."},
    {"lse return_lse return_softmax_lse softmax_lse return_softmax generate_stats grad_lse",
     "A line names no tensors, and lse is one. Leave it out."},
    {"return_attn_probs need_weights return_weights", "Weights are never stored. Leave it out."},
    {"mask attn_mask attention_mask attn_bias bias",
     "Masks are rules here, and not tensors. Use causal, windowL,R or chunk=N, and seqused for padding."},
    {"gqa mqa mha enable_gqa", "hqN and hkvN say how many query heads share a key head. Leave it out."},
    {"layout bshd bhsd sbhd nhd hnd kv_layout qkv_format qkv_layout input_layout",
     "The strides of tensors say how they lie in memory, and a line has none. Leave it out."},
    {"num_splits n_splits splits pack_gqa block_m block_n num_stages num_warps tiles section tail deferred packgqa "
     "parts dequantised",
     "Splits, PackGQA and tiles are hints, which follow the target: 'hopper parts=4'. Leave it out."},
    {"hidden_size hidden d_model embed_dim model_dim",
     "A line has the head dim, dN: the columns of one head. Divide by the heads."},
    {"q_descale k_descale v_descale descale descale_q descale_k descale_v q_scale k_scale v_scale kv_scale kv_scales "
     "scale_q scale_k scale_v",
     "8-bit types always have scales. Leave it out, or write scales128 where each 128 rows have one."},
};

std::string lower(std::string_view word) {
  std::string all(word);
  std::ranges::transform(all, all.begin(), [](char c) { return static_cast<char>(std::tolower(c)); });
  return all;
}

bool is_among(std::string_view word, std::string_view list) {
  return !word.empty() && text(" {} ", list).find(text(" {} ", word)) != std::string::npos;
}

template <size_t n>
std::string_view ours(const Other (&all)[n], std::string_view theirs) {
  const auto* const found = std::ranges::find_if(all, [&](const Other& o) { return is_among(theirs, o.theirs); });
  return found == std::end(all) ? std::string_view() : found->ours;
}

std::string_view without_dashes(std::string_view word) {
  word.remove_prefix(std::min(word.find_first_not_of('-'), word.size()));
  return word;
}

// "max_logit", and "page_size" of "page_size16" and "--Page_Size=16"; "fp8", whose digits belong to it.
std::string name_of_word(std::string_view word) {
  const std::string all = lower(without_dashes(word));
  if (all == "fp8") return all;
  return {all.begin(), std::ranges::find_if(all, [](char c) { return !std::islower(c) && c != '_'; })};
}

}  // namespace

std::vector<Dtype> meant_types(std::string_view word, const std::vector<Dtype>& taken) {
  const std::string low = lower(word);
  const std::string other = text(" {} ", ours(types, low));
  std::vector<Dtype> all;
  for (const Dtype type : taken)
    if (low == name_of(type) || other.find(text(" {} ", name_of(type))) != other.npos) all.push_back(type);
  return all;
}

std::string meant_operation(std::string_view word) {
  constexpr std::string_view known[] = {"fwd", "bwd", "quantise", "append"};
  const std::string low = lower(word);
  if (const std::string_view other = ours(operations, low); !other.empty()) return std::string(other);
  return std::string(near_word(low, known));
}

std::string meant_words(std::string_view word) {
  const std::string name = name_of_word(word);
  for (const Option& option : options())
    if (!option.word.empty() && !name.empty() && (name == option.key() || name == option.name))
      return form_of(option);
  if (!ours(sentences, name).empty()) return {};
  if (const std::string_view other = ours(words, name); !other.empty()) return std::string(other);
  std::vector<std::string_view> known;
  for (const Option& option : options())
    if (!option.word.empty()) known.push_back(option.key());
  const std::string_view near = near_word(name, known);
  for (const Option& option : options())
    if (!near.empty() && option.key() == near) return form_of(option);
  return {};
}

std::string no_word(std::string_view word) { return std::string(ours(sentences, name_of_word(word))); }

std::string no_type(std::string_view word) {
  while (word.starts_with('=')) word.remove_prefix(1);
  const bool is_one = is_among(lower(word), "int8 i8 uint8 u8 int4 i4 fp4 f4 nvfp4 mxfp4 fp64 f64 float64 double");
  return is_one ? text(" There is no {}.", word) : "";
}

std::string_view value_of_word(std::string_view word) {
  word = without_dashes(word);
  return lower(word) == "fp8" ? word : word.substr(std::min(name_of_word(word).size(), word.size()));
}

bool means_none(std::string_view value) {
  while (value.starts_with('=') || value.starts_with(':')) value.remove_prefix(1);
  return is_among(lower(value), "none null false no off");
}

}  // namespace froghopper
