// SPDX-License-Identifier: Apache-2.0
// runtime: kernels on disk, so that NVRTC runs once per machine. Any number of processes and threads may share a
// folder, and users that of root: one that others may change is not used (trust.hpp). Nothing here is an error: a cache
// that cannot be read or written costs a compilation, not a result.
#pragma once
#include <optional>
#include <string>

#include "src/runtime/kernel_file.hpp"

namespace froghopper::runtime {

class DiskCache {
 public:
  explicit DiskCache(std::string folder) : folder_(std::move(folder)) {}

  // $FROGHOPPER_CACHE, else $XDG_CACHE_HOME/froghopper, else ~/.cache/froghopper; "" where none of them is set.
  static std::string default_folder();

  // The bytes of a whole and unharmed kernel file of this key; nothing otherwise.
  std::optional<std::string> load(const std::string& name, const Key&) const;

  // True when the file is in place, for every reader at once or not at all.
  bool store(const std::string& name, const Key&, const std::string& packed) const;

  std::string path(const std::string& name, const Key&) const;

 private:
  std::string folder_;
};

}  // namespace froghopper::runtime
