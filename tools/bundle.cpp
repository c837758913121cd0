// SPDX-License-Identifier: Apache-2.0
// tools/compile: neighbours in order of name are put into groups, and each group is compressed as one text: 8 kernels
// of one tile take half of what they take one by one.
#include "tools/bundle.hpp"

#include <zstd.h>

#include <cstring>
#include <stdexcept>
#include <vector>

#include "src/runtime/bundle.hpp"

namespace froghopper::tools {

namespace {

using namespace runtime;

// Of 35 kernels of 4.2 MB, groups of 1 MiB take 482 kB, of 2 MiB 411 kB, all together 312 kB. But all of a group is
// unpacked for one of them: 2 MiB in two milliseconds.
constexpr size_t bytes_of_a_group = 2 << 20;

constexpr int level = 19;  // 22 takes half as long again and saves nothing

std::string compressed(const std::string& bytes) {
  std::string packed(ZSTD_compressBound(bytes.size()), '\0');
  const size_t size = ZSTD_compress(packed.data(), packed.size(), bytes.data(), bytes.size(), level);
  if (ZSTD_isError(size)) throw std::runtime_error(ZSTD_getErrorName(size));
  packed.resize(size);
  return packed;
}

template <class T>
void add(std::string& bytes, const T& value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

}  // namespace

std::string bundle_of(const std::map<std::string, std::string>& kernel_files) {
  std::vector<BundledKernel> kernels;
  std::vector<std::string> files(1);  // of each group, one after the other
  std::string names;
  for (const auto& [name, file] : kernel_files) {
    if (!files.back().empty() && files.back().size() + file.size() > bytes_of_a_group) files.emplace_back();
    kernels.push_back({.name = static_cast<uint32_t>(names.size()),
                       .group = static_cast<uint32_t>(files.size() - 1),
                       .offset = static_cast<uint32_t>(files.back().size()),
                       .bytes = static_cast<uint32_t>(file.size())});
    files.back() += file;
    names += name + '\0';
  }

  BundleHeader header{
      .magic = {}, .kernels = static_cast<uint32_t>(kernels.size()), .groups = static_cast<uint32_t>(files.size())};
  std::memcpy(header.magic, bundle_magic, sizeof bundle_magic);
  const size_t names_at =
      sizeof header + kernels.size() * sizeof(BundledKernel) + files.size() * sizeof(BundledGroup);
  std::string bytes, packed;
  add(bytes, header);
  for (BundledKernel kernel : kernels) {
    kernel.name += static_cast<uint32_t>(names_at);
    add(bytes, kernel);
  }
  for (const std::string& group : files) {
    const std::string part = compressed(group);
    add(bytes, BundledGroup{names_at + names.size() + packed.size(), part.size(), group.size()});
    packed += part;
  }
  return bytes + names + packed;
}

}  // namespace froghopper::tools
