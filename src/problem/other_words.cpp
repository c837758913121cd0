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

// Beside the names of the fields.
constexpr Other words[] = {
    {"h", "hqN and hkvN"},
    {"heads", "hqN and hkvN"},
    {"s", "sqN and skvN"},
    {"seq", "sqN and skvN"},
    {"seqlen", "sqN and skvN"},
    {"hk", "hkvN"},
    {"hv", "hkvN"},
    {"sk", "skvN"},
    {"sv", "skvN"},
    {"dim", "dN"},
    {"dq", "dN"},
    {"dqk", "dN"},
    {"head_dim", "dN"},
    {"bs", "bN"},
    {"total", "tqN and tkvN"},
    {"local", "windowL,R"},
    {"sliding_window", "windowL,R"},
    {"paged", "pageN and pagesN"},
    {"page_count", "pagesN"},
    {"fp8", "kv=e4m3 or kv=e5m2"},
    {"window_right", "windowL,R"},
};

std::string lower(std::string_view word) {
  std::string all(word);
  std::ranges::transform(all, all.begin(), [](char c) { return static_cast<char>(std::tolower(c)); });
  return all;
}

template <size_t n>
std::string_view ours(const Other (&all)[n], std::string_view theirs) {
  const auto* const found = std::ranges::find(all, theirs, &Other::theirs);
  return found == std::end(all) ? std::string_view() : found->ours;
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
  const std::string all = lower(word);
  // Letters of fields and of others' words: "max_logit", "page_size" of "page_size16".
  const std::string name(all.begin(), std::ranges::find_if(all, [](char c) { return !std::islower(c) && c != '_'; }));
  for (const Option& option : options())
    if (!option.word.empty() && !name.empty() && (name == option.key() || name == option.name))
      return form_of(option);
  if (const std::string_view other = ours(words, name); !other.empty()) return std::string(other);
  std::vector<std::string_view> known;
  for (const Option& option : options())
    if (!option.word.empty()) known.push_back(option.key());
  const std::string_view near = near_word(name, known);
  for (const Option& option : options())
    if (!near.empty() && option.key() == near) return form_of(option);
  return {};
}

}  // namespace froghopper
