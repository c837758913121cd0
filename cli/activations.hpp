// SPDX-License-Identifier: Apache-2.0
// cli: tensors from files as a problem and its inputs, and the result back into files.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "check/check.hpp"
#include "files/tensor_file.hpp"

namespace froghopper::cli {

// What the files do not say.
struct Wishes {
  bool causal = false, top_left = false;
  std::vector<int64_t> window;  // left, right; empty: none
  float scale = 0, softcap = 0;
  bool max_logit = false;
  std::string grad;  // file with grad_o; "": the input may hold it
};

struct Activations {
  Problem problem;
  std::unique_ptr<check::Inputs> inputs;
  std::map<std::string, std::string> metadata;
  std::vector<std::vector<int64_t>> shapes;  // of what is written, by index in tensors(); as many extents as q has
  std::optional<files::FileTensor> grad_o, grad_lse;
  std::vector<std::string> read_from;  // paths, which no output may overwrite
  std::string seem_turned;             // why heads seem to be before rows, a word for the user; "": they do not
  std::vector<std::string> unused;     // tensors of the input: misspelt, or another one is used instead
};

// IN.safetensors with tensors q, k, v and, if wanted, cu_seqlens (or cu_seqlens_q and cu_seqlens_kv), seqused_q,
// seqused_kv, sink, alibi_slopes, gate, grad_o, grad_lse; or Q.npy K.npy V.npy [CU_SEQLENS.npy], as words or as one
// word with commas between.
Result<Activations> load_activations(const std::vector<std::string>& in, const Wishes&);

// After the forward problem was computed, where there is a grad_o: the problem becomes the backward one, with o and lse
// as they are and room for the gradients. max_logit stays where it is, to be written too.
void turn_around(Activations&);

// Whether save_activations could write, and over no input: before anything is computed.
Result<void> can_save_activations(const std::string& out, const Activations&, bool with_lse);

// OUT.safetensors with o, lse and max_logit if wanted, gradients if they were computed, the metadata of the input and
// the forward problem's line; or OUT.npy with o and OUT.NAME.npy next to it with the others. Returns what was written,
// for people.
Result<std::string> save_activations(const std::string& out, const Activations&, bool with_lse);

}  // namespace froghopper::cli
