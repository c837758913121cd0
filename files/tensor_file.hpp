// SPDX-License-Identifier: Apache-2.0
// files: tensors in files. Reads and writes .safetensors and .npy, as far as attention needs them: dense, C order,
// little endian. A malformed file is refused with the byte where it goes wrong, and never read past its end.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/element.hpp"
#include "src/base/result.hpp"
#include "src/base/unwritten.hpp"

namespace froghopper::files {

struct FileTensor {
  Element element = Element::f32;
  std::vector<int64_t> shape;
  Bytes bytes;
};

struct TensorFile {
  std::map<std::string, FileTensor> tensors;
  std::map<std::string, std::string> metadata;  // safetensors only; what it says is passed through
};

// Failures: FH_INVALID_TENSOR and "byte N: ...", without the file's name.
Result<TensorFile> parse_safetensors(std::string_view bytes);
std::string print_safetensors(const TensorFile&);
Result<FileTensor> parse_npy(std::string_view bytes);
Result<std::string> print_npy(const FileTensor&);  // .npy has no bf16

// By file. Failures begin with the path. Only regular files are read, and a file is judged before memory is taken.
Result<TensorFile> read_safetensors(const std::string& path);
Result<FileTensor> read_npy(const std::string& path);
// Whole or not at all, by rename; a signal that ends the process meanwhile leaves no part of it. A link is followed,
// and a file that was there before keeps its rights.
Result<void> write_file(const std::string& path, std::string_view bytes);
// Whether write_file could begin: for whoever has to compute for a long time first. It changes nothing.
Result<void> can_write_file(const std::string& path);

}  // namespace froghopper::files
