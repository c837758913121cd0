// SPDX-License-Identifier: Apache-2.0
// cli: results of `attend` -> one .safetensors, or .npy files beside one another.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>

#include "cli/activations.hpp"
#include "src/base/text.hpp"

namespace froghopper::cli {
namespace {

// Of the forward problem, and of the backward one where gradients are asked for: before it is computed and after.
bool is_result(const Activations& a, const Tensor& tensor, bool with_lse) {
  if (tensor.view == &Views::o) return true;
  if (tensor.view == &Views::lse) return with_lse;
  if (tensor.view == &Views::max_logit) return !a.inputs->blocks[index_of(tensor.view)].empty();
  Problem backward = a.problem;
  backward.op = FH_BACKWARD, backward.max_logit = false;
  return a.grad_o && is_written(tensor.use(backward));
}

bool is_safetensors(const std::string& path) { return path.ends_with(".safetensors"); }

// OUT.npy has o, OUT.NAME.npy next to it the tensor NAME.
std::string path_of(const std::string& path, const std::string& name) {
  if (is_safetensors(path) || name == "o") return path;
  return text("{}.{}.npy", path.substr(0, path.size() - std::strlen(".npy")), name);
}

// Also by another name, as ./q.npy or a link.
bool is_input(const Activations& a, const std::string& path) {
  std::error_code none;  // of them need not be there
  return std::ranges::any_of(a.read_from,
                             [&](const std::string& in) { return std::filesystem::equivalent(in, path, none); });
}

}  // namespace

Result<void> can_save_activations(const std::string& path, const Activations& a, bool with_lse) {
  for (const Tensor& tensor : tensors()) {
    if (!is_result(a, tensor, with_lse)) continue;
    const std::string to = path_of(path, tensor.name);
    if (is_input(a, to)) {
      return Failure{FH_INVALID_TENSOR,
                     text("the output, {}, is an input too, which would be lost. Name another file.", to)};
    }
    if (auto can = files::can_write_file(to); !can) return can;
  }
  return {};
}

Result<std::string> save_activations(const std::string& path, const Activations& a, bool with_lse) {
  std::map<std::string, files::FileTensor> out;
  std::string said;
  for (const Tensor& tensor : tensors()) {
    const size_t i = index_of(tensor.view);
    if (!is_result(a, tensor, with_lse)) continue;
    const Element element = tensor.shape(a.problem).element;
    out[tensor.name] = {element, a.shapes[i], a.inputs->blocks[i]};
    said += text("{}{} {} [{}]", said.empty() ? "" : ", ", tensor.name, name_of(element), joined(a.shapes[i], ", "));
  }
  if (is_safetensors(path)) {
    files::TensorFile file;
    file.metadata = a.metadata;
    file.metadata["problem"] = a.problem.forward().line();
    file.tensors = std::move(out);
    if (auto written = files::write_file(path, print_safetensors(file)); !written) return written.failure();
    return text("{}: {}", path, said);
  }
  std::string paths = path;
  for (const auto& [name, tensor] : out) {
    const std::string beside = path_of(path, name);
    const auto printed = print_npy(tensor);
    if (!printed) return printed.failure();
    if (auto written = files::write_file(beside, *printed); !written) return written.failure();
    if (name != "o") paths += ", " + beside;
  }
  return text("{}: {}", paths, said);
}

}  // namespace froghopper::cli
