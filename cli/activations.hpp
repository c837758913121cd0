// SPDX-License-Identifier: Apache-2.0
// cli: tensors from files as a problem and its inputs, and the result back into files.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "check/check.hpp"

namespace froghopper::cli {

// What the files do not say.
struct Wishes {
  bool causal = false, top_left = false;
  std::vector<int64_t> window;  // left, right; empty: none
  float scale = 0, softcap = 0;
};

struct Activations {
  Problem problem;
  std::unique_ptr<check::Inputs> inputs;
  std::map<std::string, std::string> metadata;
  std::vector<int64_t> shape_o, shape_lse;  // as many extents as q has
};

// IN.safetensors with tensors q, k, v and, if wanted, cu_seqlens (or cu_seqlens_q and cu_seqlens_kv), seqused_q,
// seqused_kv, sink; or Q.npy K.npy V.npy [CU_SEQLENS.npy], as words or as one word with commas between.
Result<Activations> load_activations(const std::vector<std::string>& in, const Wishes&);

// OUT.safetensors with o, lse if wanted, the metadata of the input and the problem line; or OUT.npy and, with lse,
// OUT.lse.npy next to it. Returns what was written, for people.
Result<std::string> save_activations(const std::string& out, const Activations&, bool with_lse);

}  // namespace froghopper::cli
