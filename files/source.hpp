// SPDX-License-Identifier: Apache-2.0
// files: where the bytes of a file come from. A parser reads the header, judges it against the size of the file, and
// takes memory for what the header promises only then; so it asks for bytes by their place.
#pragma once
#include <memory>

#include "files/tensor_file.hpp"

namespace froghopper::files {

class Source {
 public:
  virtual ~Source() = default;
  virtual uint64_t size() const = 0;
  // Exactly so many bytes from there on, all of them within size(). Failures are those of a parser: "byte N: ...".
  virtual Result<void> read(uint64_t at, size_t bytes, void* into) const = 0;
};

// A file on disk. Failures begin with the path. What has no size (a pipe, a device) is refused with a message.
Result<std::unique_ptr<Source>> open_file(const std::string& path);

Result<TensorFile> parse_safetensors(const Source&);
Result<FileTensor> parse_npy(const Source&);

// For the parsers: "byte N: why"; memory and the bytes for it; and a text of the file as messages show it, in quotes
// and with escapes as JSON writes it, and not longer than a line.
Failure refuse(uint64_t byte, const std::string& why);
Result<Bytes> read_bytes(const Source&, uint64_t at, uint64_t bytes);
Result<std::string> read_text(const Source&, uint64_t at, uint64_t bytes);
std::string shown(std::string_view of_file);

}  // namespace froghopper::files
