// SPDX-License-Identifier: Apache-2.0
// runtime: many kernel files in one block of bytes, compressed. Kernels of one tile repeat one another, so they are
// compressed together in groups; who wants one unpacks its group, of 1.5 megabytes, in some two milliseconds.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace froghopper::runtime {

// What a bundle looks like, in this order: the header, all kernels by name, all groups, and what they point at. Offsets
// count from the beginning of the bundle, except for a kernel's within its group. tools/bundle.cpp writes it.
struct BundleHeader {
  char magic[8];
  uint32_t kernels, groups;
};
inline constexpr char bundle_magic[8] = {'f', 'h', 'b', 'u', 'n', 'd', '0', '1'};
struct BundledKernel {
  uint32_t name;  // offset of a text that ends with a zero byte
  uint32_t group, offset, bytes;
};
struct BundledGroup {
  uint64_t offset, packed_bytes, bytes;
};

// A view: the bytes stay where they are. A kernel file has a checksum of its own, so a bundle has none.
class Bundle {
 public:
  Bundle() = default;  // of no kernels
  // Of no kernels also where the bytes are no bundle.
  explicit Bundle(std::string_view bytes);

  bool empty() const { return kernels_.empty(); }
  std::vector<std::string> names() const;  // sorted
  bool has(std::string_view name) const { return find(name) != nullptr; }
  size_t packed_bytes() const { return bytes_.size(); }
  uint64_t unpacked_bytes() const;

  // A kernel file; nothing where there is no such kernel, or where its bytes are damaged.
  std::optional<std::string> kernel(std::string_view name) const;

 private:
  const BundledKernel* find(std::string_view name) const;
  std::string_view name_of(const BundledKernel&) const;

  std::string_view bytes_;
  std::vector<BundledKernel> kernels_;
  std::vector<BundledGroup> groups_;
};

// What zstd packed, of exactly that many bytes; nothing where it is something else.
std::optional<std::string> decompressed(std::string_view packed, size_t bytes);

}  // namespace froghopper::runtime
