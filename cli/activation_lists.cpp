// SPDX-License-Identifier: Apache-2.0
// cli: the lists of a file: lengths of sequences, sinks and slopes, with what they add to the problem.
#include "cli/activation_lists.hpp"

#include <algorithm>
#include <cstring>

#include "src/base/counted.hpp"
#include "src/base/text.hpp"

namespace froghopper::cli {

namespace {

using files::FileTensor;
using files::TensorFile;

// int32, or int64 that fits.
Result<std::vector<int32_t>> as_int32(const std::string& name, const FileTensor& t) {
  if (t.shape.size() != 1)
    return wrong(text("{} must be a list, but has {}. Flatten it.", name, counted(t.shape.size(), "extent")));
  std::vector<int32_t> list;
  for (int64_t i = 0; i < t.shape[0]; ++i) {
    int64_t n = 0;
    if (t.element == Element::i32) {
      int32_t narrow = 0;
      std::memcpy(&narrow, t.bytes.data() + i * 4, 4);
      n = narrow;
    } else if (t.element == Element::i64) {
      std::memcpy(&n, t.bytes.data() + i * 8, 8);
    } else {
      return wrong(text("{} must be int32 or int64, but is {}. Convert it.", name, name_of(t.element)));
    }
    if (n < 0 || n > INT32_MAX)
      return wrong(text("{}[{}] is {}; rows are counted from 0 to 2^31 - 1. Correct it.", name, i, n));
    list.push_back(static_cast<int32_t>(n));
  }
  return list;
}

void keep_list(check::Inputs& in, View Views::*view, const std::vector<int32_t>& list) {
  Bytes bytes(list.size() * sizeof(int32_t));
  if (!list.empty()) std::memcpy(bytes.data(), list.data(), bytes.size());
  keep(in, view, std::move(bytes));
}

// Lengths of one side.
struct Side {
  View Views::*view;
  const char *own, *rows_are_of;  // cu_seqlens_q, without which cu_seqlens has the lengths; q
  int64_t fh_problem::*total, fh_problem::*longest;

  std::string name_in(const TensorFile& file) const { return file.tensors.contains(own) ? own : "cu_seqlens"; }
};
constexpr Side sides[] = {
    {&Views::cu_seqlens_q, "cu_seqlens_q", "q", &fh_problem::total_q, &fh_problem::seq_q},
    {&Views::cu_seqlens_kv, "cu_seqlens_kv", "k", &fh_problem::total_kv, &fh_problem::seq_kv},
};

// The rows of the tensor become the total, and the problem gets its batch and its longest sequence.
Result<void> keep_cu_seqlens(check::Inputs& in, const Side& side, TensorFile& file, fh_problem& p) {
  const std::string name = side.name_in(file);
  if (!file.tensors.contains(name)) {
    return wrong(
        text("there is no {}, but one for the other side. Add it, or name the one cu_seqlens, for both.", side.own));
  }
  const auto list = as_int32(name, file.tensors[name]);
  if (!list) return list.failure();
  if (list->empty()) {
    return wrong(text("{} must have one number more than there are sequences, but is empty. Begin it with 0.", name));
  }
  const int64_t rows = p.*side.longest;
  int64_t longest = 0;
  for (size_t i = 0; i < list->size(); ++i) {
    const int64_t end = (*list)[i];
    if (end > rows) {
      return wrong(text("{}[{}] is {}, but {} has {}; no sequence ends after the last one. Use {}.", name, i, end,
                        side.rows_are_of, counted(rows, "row"), from_0_to(rows)));
    }
    if (i > 0) longest = std::max<int64_t>(longest, end - (*list)[i - 1]);
  }
  p.*side.total = rows, p.*side.longest = longest;
  p.batch = static_cast<int64_t>(list->size()) - 1;
  keep_list(in, side.view, *list);
  return {};
}

}  // namespace

void keep(check::Inputs& in, View Views::*view, Bytes bytes, std::array<int64_t, 4> extents) {
  in.block(view) = std::move(bytes);
  const UserField& field = tensors()[index_of(view)].field;
  const int64_t head = field.strided() ? extents[3] : 0, seq = extents[2] * head;
  field.set(in.tensors, {in.block(view).data(), extents[1] * seq, seq, head});
}

Result<void> keep_all_cu_seqlens(check::Inputs& in, TensorFile& file, fh_problem& p) {
  p.varlen = 1;
  if (auto kept = keep_cu_seqlens(in, sides[0], file, p); !kept) return kept;
  const int64_t batch = p.batch;
  if (auto kept = keep_cu_seqlens(in, sides[1], file, p); !kept) return kept;
  const std::string of_q = sides[0].name_in(file), of_kv = sides[1].name_in(file);
  if (of_q == of_kv && p.total_q != p.total_kv)
    return wrong(
        text("k must have the rows of q, {}, where {} is for both, but has {}. Write a .safetensors with "
             "cu_seqlens_q and cu_seqlens_kv.",
             p.total_q, of_q, p.total_kv));
  if (p.batch != batch) {
    return wrong(text("{} has {} and {} has {}; both have one more than there are sequences. Give them equally many.",
                      of_q, counted(batch + 1, "number"), of_kv, p.batch + 1));
  }
  file.tensors.erase(of_q), file.tensors.erase(of_kv);
  return {};
}

Result<void> keep_options(check::Inputs& in, TensorFile& file, fh_problem& p) {
  for (View Views::*const view : {&Views::seqused_q, &Views::seqused_kv}) {
    const char* const name = tensors()[index_of(view)].name;
    const auto found = take(file, name);
    if (!found) continue;
    const auto list = as_int32(name, *found);
    if (!list) return list.failure();
    if (static_cast<int64_t>(list->size()) != p.batch) {
      return wrong(text("{} must have {}, one for each sequence, but has {}. Give it as many.", name,
                        counted(p.batch, "number"), list->size()));
    }
    p.seqused = 1;
    keep_list(in, view, *list);
  }
  for (const auto& [view, option] :
       {std::pair{&Views::sink, &fh_problem::sink}, {&Views::alibi_slopes, &fh_problem::alibi}}) {
    const char* const name = tensors()[index_of(view)].name;
    auto found = take(file, name);
    if (!found) continue;
    if (found->element != Element::f32 || found->shape != std::vector<int64_t>{p.heads_q}) {
      return wrong(
          text("{} must be fp32 with {}, one for each query head, but is {} with {}. Convert it, or give it as "
               "many.",
               name, counted(p.heads_q, "number"), name_of(found->element),
               counted(found->bytes.size() / static_cast<size_t>(size_of(found->element)), "number")));
    }
    p.*option = 1;
    keep(in, view, std::move(found->bytes), {1, 0, p.heads_q, 1});  // the same in all sequences
  }
  p.gate = file.tensors.contains("gate");
  return {};
}

NamesOfLists names_of_lists(const TensorFile& file) { return {sides[0].name_in(file), sides[1].name_in(file)}; }

Failure with_names_of_lists(Failure failure, const NamesOfLists& names) {
  const std::pair<std::string, const std::string&> all[] = {{sides[0].own, names.q}, {sides[1].own, names.kv}};
  for (const auto& [own, name] : all)
    if (const size_t at = failure.text.find(own); at != failure.text.npos && name != own)
      failure.text.replace(at, own.size(), name);
  return failure;
}

}  // namespace froghopper::cli
