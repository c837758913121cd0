// SPDX-License-Identifier: Apache-2.0
// runtime: a bundle read. Nothing is looked at beyond the bytes that are there, whatever they say.
#include "src/runtime/bundle.hpp"

#include <algorithm>
#include <cstring>

namespace froghopper::runtime {

namespace {

// `count` structs from `at` on; false where there are fewer bytes.
template <class T>
bool read(std::string_view bytes, size_t at, size_t count, std::vector<T>& all) {
  if (at > bytes.size() || (bytes.size() - at) / sizeof(T) < count) return false;
  all.resize(count);
  if (count > 0) std::memcpy(all.data(), bytes.data() + at, count * sizeof(T));
  return true;
}

// The part of `all`; empty where it is not all there.
std::string_view part(std::string_view all, uint64_t offset, uint64_t bytes) {
  return offset <= all.size() && bytes <= all.size() - offset ? all.substr(offset, bytes) : std::string_view();
}

}  // namespace

Bundle::Bundle(std::string_view bytes) {
  std::vector<BundleHeader> header;
  if (!read(bytes, 0, 1, header) || std::memcmp(header[0].magic, bundle_magic, sizeof bundle_magic) != 0) return;
  const size_t kernels = header[0].kernels, groups = header[0].groups;
  const size_t groups_at = sizeof(BundleHeader) + kernels * sizeof(BundledKernel);
  if (!read(bytes, groups_at, groups, groups_) || !read(bytes, sizeof(BundleHeader), kernels, kernels_)) return;
  bytes_ = bytes;
}

std::string_view Bundle::name_of(const BundledKernel& kernel) const {
  const std::string_view rest =
      part(bytes_, kernel.name, bytes_.size() - std::min<size_t>(kernel.name, bytes_.size()));
  return rest.substr(0, std::min(rest.find('\0'), rest.size()));
}

const BundledKernel* Bundle::find(std::string_view name) const {
  const auto found = std::ranges::lower_bound(kernels_, name, {}, [this](const auto& k) { return name_of(k); });
  return found != kernels_.end() && name_of(*found) == name ? &*found : nullptr;
}

std::vector<std::string> Bundle::names() const {
  std::vector<std::string> all;
  for (const BundledKernel& kernel : kernels_) all.emplace_back(name_of(kernel));
  return all;
}

uint64_t Bundle::unpacked_bytes() const {
  uint64_t sum = 0;
  for (const BundledGroup& group : groups_) sum += group.bytes;
  return sum;
}

std::optional<std::string> Bundle::kernel(std::string_view name) const {
  const BundledKernel* const kernel = find(name);
  if (kernel == nullptr || kernel->group >= groups_.size()) return {};
  const BundledGroup& group = groups_[kernel->group];
  const auto files = decompressed(part(bytes_, group.offset, group.packed_bytes), group.bytes);
  if (!files) return {};
  const std::string_view file = part(*files, kernel->offset, kernel->bytes);
  if (file.empty()) return {};
  return std::string(file);
}

}  // namespace froghopper::runtime
