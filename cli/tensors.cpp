// SPDX-License-Identifier: Apache-2.0
// cli: the tables of tensors as Markdown. Every cell is what the library's own table answers about problems whose sizes
// and types are all different, so that each number and type tells where it comes from.
#include "cli/tensors.hpp"

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "src/base/text.hpp"
#include "src/problem/tensors.hpp"

namespace froghopper::cli {
namespace {

// A problem with some options, and what is to be said where it differs from the operation without options.
struct Variant {
  const char* label;
  const char* words;
  const char* begin = nullptr;  // where it is not that of the operation
};
struct Operation {
  const char *title, *begin;  // of the line
  const char* typed;          // where each type is another one
  std::vector<Variant> variants;
};

constexpr const char* sizes = " b2 hq21 hkv7 sq500 skv1500 d64 dv32 ";

const std::array<Operation, 4> operations = {
    {{"Forward, `FH_FORWARD`",
      "fwd f16",
      "fwd f16 kv=e4m3 o=bf16 gate",
      {{"`varlen`", "varlen tq900 tkv2500"},
       {"`page_size`", "page16 pages11"},
       {"`page_size`", "page16 pages11 seqused"},
       {"", "sink alibi maxlogit gate"},
       {"`accumulate`", "acc maxlogit"},
       {"`phase`", "phase=first"},
       {"`phase`", "phase=last"},
       {"", "kv=e4m3 smooth"},
       {"", "", "fwd e4m3 o=bf16"},
       {"`scale_rows`", "kv=e4m3 scales128"},
       {"`scale_rows`", "scales128", "fwd e4m3 o=bf16"},
       {"`varlen`", "varlen tq900 tkv2500 gate"},
       {"`scale_v_columns`", "kv=e4m3 vcolumns"},
       {"`scale_tokens`", "kv=e4m3 tokenscales"},
       {"`scale_tokens` and `varlen`", "kv=e4m3 tokenscales varlen tq900 tkv2500"},
       {"`scale_tokens` and `page_size`", "kv=e4m3 tokenscales page16 pages11"}}},
     {"Backward, `FH_BACKWARD`",
      "bwd f16",
      "bwd f16",
      {{"", "seqused sink alibi gate"}, {"`varlen`", "varlen tq900 tkv2500 gate"}, {"`accumulate`", "acc sink"}}},
     {"Quantise, `FH_QUANTISE`",
      "quantise f16 kv=e4m3",
      "quantise f16 kv=e4m3",
      {{"`varlen`", "varlen tq900 tkv2500"}, {"", "seqused smooth"}, {"`scale_rows`", "scales128"}}},
     {"Append, `FH_APPEND`",
      "append f16",
      "append f16 kv=e4m3",
      {{"`varlen`", "varlen tq900 seqused"},
       {"`page_size`", "page16 pages11"},
       {"", "slots positions rotary48 rows777 norm"},
       {"`varlen`", "varlen tq900 positions rotary48 rows777"},
       {"", "kv=e4m3"},
       {"`scale_tokens`", "kv=e4m3 tokenscales"},
       {"`scale_tokens` and `page_size`", "kv=e4m3 tokenscales page16 pages11"}}}}};

std::string size_word(int64_t size) {
  constexpr std::pair<int64_t, const char*> words[] = {{1, "1"},
                                                       {2, "batch"},
                                                       {3, "batch + 1"},
                                                       {4, "ceil(seq_q / scale_rows)"},
                                                       {7, "heads_kv"},
                                                       {11, "pages"},
                                                       {12, "ceil(seq_kv / scale_rows)"},
                                                       {16, "page_size"},
                                                       {21, "heads_q"},
                                                       {24, "rotary_dim / 2"},
                                                       {32, "dim_v"},
                                                       {64, "dim_qk"},
                                                       {94, "ceil(seq_kv / page_size)"},
                                                       {500, "seq_q"},
                                                       {777, "rotary_rows"},
                                                       {900, "total_q"},
                                                       {1000, "batch, seq_q"},
                                                       {1500, "seq_kv"},
                                                       {2500, "total_kv"}};
  const auto* const found = std::ranges::find(words, size, &std::pair<int64_t, const char*>::first);
  return found == std::end(words) ? text("{}", size) : found->second;
}

// Packed tensors have no batch, and dense lists lie as [batch, heads, seq].
std::string shape_of(const Tensor& tensor, const Problem& p) {
  const Shape s = tensor.shape(p);
  std::vector<int64_t> extents = {s.batch, s.seq, s.heads, s.dim};
  if (!tensor.field.strided()) extents = {s.batch, s.heads, s.seq};
  const bool packed = p.varlen && s.batch == 1 && (s.seq == p.total_q || s.seq == p.total_kv);
  if (packed && tensor.field.strided()) extents.erase(extents.begin());
  if (!tensor.field.strided()) std::erase(extents, 1);
  while (s.element == Element::i32 && extents.back() == 1) extents.pop_back();
  std::string all;
  for (const int64_t extent : extents) all += text("{}{}", all.empty() ? "" : ", ", size_word(extent));
  return text("[{}]", all);
}

std::string type_of(const Tensor& tensor, const Problem& p) {
  if (tensor.view == &Views::rotary_cos || tensor.view == &Views::rotary_sin) return "`dtype_rotary`";
  if (tensor.view == &Views::norm_q || tensor.view == &Views::norm_k) return "`dtype_norm`";
  const Element element = tensor.shape(p).element;
  if (element == Element::i32) return "int32";
  if (element == Element::i64) return "int64";
  if (element == Element::f32) return "f32";
  if (element == element_of(p.dtype)) return "`dtype`";
  return element == element_of(p.dtype_kv) ? "`dtype_kv`" : "`dtype_o`";
}

std::string use_of(const Tensor& tensor, const Problem& p) {
  switch (tensor.use(p)) {
    case Use::absent: break;
    case Use::read: return "read";
    case Use::may_read: return "read, may be NULL";
    case Use::written: return "written";
    case Use::may_write: return "written, may be NULL";
    case Use::added_to: return "read and written";
  }
  return "";
}

// What a cell says of the first problem that has the tensor, and where another one differs, that.
class Cell {
 public:
  void add(const char* label, std::string said) {
    if (std::ranges::find(all_, said) != all_.end()) return;
    words_ += all_.empty() ? said : text("; {}: {}", label, said);
    all_.push_back(std::move(said));
  }
  const std::string& words() const { return words_; }

 private:
  std::vector<std::string> all_;
  std::string words_;
};

struct Asked {
  const char* label;
  Problem problem;
};

std::string row_of(const Tensor& tensor, std::span<const Asked> problems, const Problem& typed) {
  Cell type, shape, use;
  for (const auto& [label, p] : problems) {
    if (tensor.use(p) == Use::absent) continue;
    // The first one's types may be alike; `typed` tells them apart.
    const bool told = type.words().empty() && tensor.use(typed) != Use::absent;
    const bool as_before = !told && type_of(tensor, p) != "f32" && !type.words().empty();
    if (!as_before) type.add(label, type_of(tensor, told ? typed : p));
    shape.add(label, shape_of(tensor, p));
    use.add(label, use_of(tensor, p));
  }
  if (shape.words().empty()) return {};
  const bool always = tensor.use(problems.front().problem) != Use::absent;
  return text("| `{}` | {} | {} | {} | {} | {} |\n", tensor.name, type.words(), shape.words(), use.words(),
              always ? "" : tensor.option, tensor.holds);
}

Problem problem_of(const char* begin, const char* words) {
  return *Problem::parse(std::string(begin) + sizes + words);
}

}  // namespace

std::string tensors_tables() {
  std::string all;
  for (const Operation& operation : operations) {
    std::vector<Asked> problems{{"", problem_of(operation.begin, "")}};
    for (const Variant& v : operation.variants)
      problems.push_back({v.label, problem_of(v.begin ? v.begin : operation.begin, v.words)});
    all += text(
        "{}## {}\n\n| tensor | type | shape | what is done with it | only with | what it holds "
        "|\n|---|---|---|---|---|---|\n",
        all.empty() ? "" : "\n", operation.title);
    const Problem typed = problem_of(operation.typed, "");
    for (const Tensor& tensor : tensors()) all += row_of(tensor, problems, typed);
  }
  return all;
}

}  // namespace froghopper::cli
