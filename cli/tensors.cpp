// SPDX-License-Identifier: Apache-2.0
// cli: the tables of tensors as Markdown. Every cell is what the library's own table answers about problems whose sizes
// and types are all different, so that each number and type tells where it comes from.
#include "cli/tensors.hpp"

#include <algorithm>
#include <array>
#include <span>
#include <string>
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
  const char* usual = nullptr;  // the label of a variant whose options this one has too; it is named where it differs
};
struct Operation {
  const char *title, *begin;  // of the line
  const char* typed;          // where each type is another one
  std::vector<Variant> variants;
};

constexpr const char* accumulating = "`accumulate`";
constexpr const char* sizes = " b2 hq21 hkv7 sq500 skv1500 d64 dv32 ";

const std::array<Operation, 4> operations = {
    {{"Forward, `FH_FORWARD`",
      "fwd f16",
      "fwd f16 kv=e4m3 o=bf16 gate",
      {{"`varlen`", "varlen tq900 tkv2500"},
       {"`page_size`", "page16 pages11"},
       {"`page_size`", "page16 pages11 seqused"},
       {"", "sink alibi maxlogit gate"},
       {accumulating, "acc maxlogit"},
       {"`FH_PHASE_FIRST`", "phase=first maxlogit", nullptr, ""},
       {"`FH_PHASE_MIDDLE`", "phase=middle maxlogit", nullptr, ""},
       {"`FH_PHASE_LAST`", "phase=last maxlogit", nullptr, ""},
       {"`FH_PHASE_ONLY`", "phase=only maxlogit", nullptr, "`FH_PHASE_FIRST`"},
       {"`varlen`", "varlen tq900 tkv2500 phase=first"},
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
      {{"", "seqused sink alibi gate"},
       {"`varlen`", "varlen tq900 tkv2500 gate"},
       {accumulating, "acc sink"},
       {"`FH_PHASE_FIRST`", "acc sink phase=first", nullptr, accumulating},
       {"`FH_PHASE_MIDDLE`", "acc sink phase=middle", nullptr, accumulating},
       {"`FH_PHASE_LAST`", "acc sink phase=last", nullptr, accumulating},
       {"`FH_PHASE_ONLY`", "acc sink phase=only", nullptr, accumulating}}},
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

struct Asked {
  Variant variant;
  Problem problem;
};

// What a cell says of the first problem that has the tensor, and where another one differs, that. A variant that has a
// usual one differs from that, and all of these that say the same are named.
class Cell {
 public:
  void add(const Variant& of, const std::string& said) {
    if (empty()) return all_.push_back({"", said});
    if (of.usual ? usual(of) == said : std::ranges::find(all_, said, &Part::said) != all_.end()) return;
    const auto same =
        std::ranges::find_if(all_, [&](const Part& part) { return part.said == said && !part.label.empty(); });
    if (same == all_.end())
      all_.push_back({of.label, said});
    else
      same->label += text(", {}", of.label);
  }
  bool empty() const { return all_.empty(); }
  // What is said of the usual variant; of the first one where that does not differ.
  std::string usual(const Variant& of) const {
    const auto its = std::ranges::find_if(all_, [&](const Part& part) { return part.label.starts_with(of.usual); });
    return its == all_.end() ? all_.front().said : its->said;
  }
  std::string words() const {
    std::string words;
    for (const auto& [label, said] : all_) words += label.empty() ? said : text("; {}: {}", label, said);
    return words;
  }

 private:
  struct Part {
    std::string label, said;
  };
  std::vector<Part> all_;
};

std::string row_of(const Tensor& tensor, std::span<const Asked> problems, const Problem& typed) {
  Cell type, shape, use;
  const auto has_it = [&](const Problem& p) { return tensor.use(p) != Use::absent; };
  const bool always = has_it(problems.front().problem);
  const auto usually = [&](const Variant& of) {
    const auto at =
        std::ranges::find_if(problems, [&](const Asked& x) { return of.usual == std::string(x.variant.label); });
    return has_it(at->problem);
  };
  for (const auto& [variant, p] : problems) {
    if (!has_it(p) && variant.usual && usually(variant)) use.add(variant, "NULL");
    if (!has_it(p)) continue;
    // The first one's types may be alike; `typed` tells them apart.
    const bool told = type.empty() && has_it(typed);
    const bool from_f32 = variant.usual && !type.empty() && type.usual(variant) == "f32";
    const bool as_before = !told && !from_f32 && type_of(tensor, p) != "f32" && !type.empty();
    if (!as_before) type.add(variant, type_of(tensor, told ? typed : p));
    shape.add(variant, shape_of(tensor, p));
    use.add(variant, use_of(tensor, p));
  }
  if (shape.empty()) return {};
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
    std::vector<Asked> problems{{{"", ""}, problem_of(operation.begin, "")}};
    for (const Variant& v : operation.variants)
      problems.push_back({v, problem_of(v.begin ? v.begin : operation.begin, v.words)});
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
