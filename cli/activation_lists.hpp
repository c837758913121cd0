// SPDX-License-Identifier: Apache-2.0
// cli: from the tensors of a file to those of a problem: what the readers of rows and of lists share, and the lists.
#pragma once
#include <array>
#include <optional>
#include <string>

#include "check/check.hpp"
#include "files/tensor_file.hpp"

namespace froghopper::cli {

inline Failure wrong(std::string why) { return {FH_INVALID_TENSOR, std::move(why)}; }

inline std::optional<files::FileTensor> take(files::TensorFile& file, const std::string& name) {
  const auto node = file.tensors.extract(name);
  return node.empty() ? std::nullopt : std::optional(std::move(node.mapped()));
}

// Moves a tensor's bytes into its block. Rows are dense, [batch, seq, heads, dim]; numbers without strides too.
void keep(check::Inputs&, View Views::*, Bytes, std::array<int64_t, 4> extents = {});

// cu_seqlens, of both sides or of each: the problem gets varlen, its batch, its totals and its longest sequences.
Result<void> keep_all_cu_seqlens(check::Inputs&, files::TensorFile&, fh_problem&);
// What the file has besides q, k and v: used lengths, sinks, slopes; and whether it has a gate.
Result<void> keep_options(check::Inputs&, files::TensorFile&, fh_problem&);

// What the lists of both sides are called in the file, where one may be that of both.
struct NamesOfLists {
  std::string q, kv;
};
NamesOfLists names_of_lists(const files::TensorFile&);
// A failure of the library, which knows them as cu_seqlens_q and cu_seqlens_kv.
Failure with_names_of_lists(Failure, const NamesOfLists&);

}  // namespace froghopper::cli
