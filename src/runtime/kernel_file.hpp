// SPDX-License-Identifier: Apache-2.0
// runtime: one compiled kernel as bytes, the same in the disk cache and among the presets: a header that can be
// checked, then the cubin. A torn, foreign or outdated file is recognised and never reaches the driver.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace froghopper::runtime {

// 128-bit hash of everything that changes the machine code, see kernel_key.
struct Key {
  std::array<unsigned char, 16> bytes{};
  std::string hex() const;
  bool operator==(const Key&) const = default;
};

struct KernelFacts {  // of one compilation, read off the compiler's report and the cubin
  int32_t registers = 0, stack_bytes = 0, spill_store_bytes = 0, spill_load_bytes = 0;
  int32_t smem_bytes = 0, params_bytes = 0;  // what the kernel thinks; the loader compares it with the host's view
  int32_t compiler = 0;                      // 13050 for NVRTC 13.5
  int32_t serialised = 0;                    // nonzero: the compiler serialised wgmma (C75xx), right but slow
};

struct CompiledKernel {
  Key key;
  KernelFacts facts;
  std::string cubin;
};

std::string pack(const CompiledKernel&);

// A view into packed bytes; nothing if they are not a whole, unharmed kernel file.
struct KernelView {
  Key key;
  KernelFacts facts;
  std::string_view cubin;
};
std::optional<KernelView> unpack(std::string_view bytes);

// How many bytes a kernel file says that it has, from its first packed_header_bytes; nothing if it is none.
inline constexpr size_t packed_header_bytes = 128;
std::optional<uint64_t> packed_bytes(std::string_view beginning);

// Values of the constants that every kernel carries, read from the cubin's symbol table; no driver is needed.
std::optional<int32_t> cubin_constant(std::string_view cubin, std::string_view name);

}  // namespace froghopper::runtime
