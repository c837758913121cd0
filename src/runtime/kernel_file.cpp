// SPDX-License-Identifier: Apache-2.0
// runtime: a kernel file written and read: the header with its checksum, and constants looked up in the cubin, which
// is an ELF file.
#include "src/runtime/kernel_file.hpp"

#include <elf.h>

#include <cstring>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "src/base/text.hpp"

namespace froghopper::runtime {

namespace {

// What comes before the cubin. The checksum covers the rest of the header and the cubin, so that a file that
// was cut off, or whose bytes changed, is recognised. 128 bytes keep the cubin aligned as the driver wants it.
struct Header {
  char magic[8];
  uint64_t checksum;
  uint64_t cubin_bytes;
  Key key;
  KernelFacts facts;
  char reserved[56];
};
static_assert(sizeof(Header) == packed_header_bytes);
constexpr char magic[8] = {'f', 'h', 'k', 'e', 'r', 'n', '0', '1'};
constexpr size_t checked_from = offsetof(Header, cubin_bytes);

uint64_t checksum(std::string_view packed) {
  return XXH3_64bits(packed.data() + checked_from, packed.size() - checked_from);
}

// A copy of the struct at an offset; nothing where the bytes end before it does.
template <class T>
std::optional<T> read(std::string_view bytes, uint64_t offset) {
  if (offset > bytes.size() || bytes.size() - offset < sizeof(T)) return {};
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

std::optional<Elf64_Shdr> section(std::string_view elf, const Elf64_Ehdr& header, uint64_t index) {
  return read<Elf64_Shdr>(elf, header.e_shoff + index * sizeof(Elf64_Shdr));
}

}  // namespace

std::string Key::hex() const {
  std::string digits;
  for (const unsigned char byte : bytes) digits += text("{:02x}", byte);
  return digits;
}

std::string pack(const CompiledKernel& kernel) {
  Header header{};
  std::memcpy(header.magic, magic, sizeof magic);
  header.cubin_bytes = kernel.cubin.size();
  header.key = kernel.key;
  header.facts = kernel.facts;
  std::string packed(reinterpret_cast<const char*>(&header), sizeof header);
  packed += kernel.cubin;
  const uint64_t sum = checksum(packed);
  std::memcpy(packed.data() + offsetof(Header, checksum), &sum, sizeof sum);
  return packed;
}

std::optional<KernelView> unpack(std::string_view bytes) {
  const auto header = read<Header>(bytes, 0);
  if (!header || std::memcmp(header->magic, magic, sizeof magic) != 0) return {};
  if (header->cubin_bytes != bytes.size() - sizeof(Header) || header->checksum != checksum(bytes)) return {};
  return KernelView{header->key, header->facts, bytes.substr(sizeof(Header))};
}

std::optional<uint64_t> packed_bytes(std::string_view beginning) {
  constexpr uint64_t most = 64 << 20;  // cubins have less than 1 MB; what says more is none
  const auto header = read<Header>(beginning, 0);
  if (!header || std::memcmp(header->magic, magic, sizeof magic) != 0 || header->cubin_bytes > most) return {};
  return sizeof(Header) + header->cubin_bytes;
}

std::optional<int32_t> cubin_constant(std::string_view cubin, std::string_view name) {
  const auto header = read<Elf64_Ehdr>(cubin, 0);
  if (!header || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0) return {};
  for (int i = 0; i < header->e_shnum; ++i) {
    const auto symbols = section(cubin, *header, i);
    if (!symbols || symbols->sh_type != SHT_SYMTAB) continue;
    const auto names = section(cubin, *header, symbols->sh_link);
    if (!names) return {};
    for (uint64_t at = 0; at + sizeof(Elf64_Sym) <= symbols->sh_size; at += sizeof(Elf64_Sym)) {
      const auto symbol = read<Elf64_Sym>(cubin, symbols->sh_offset + at);
      if (!symbol) return {};
      const uint64_t spelled = names->sh_offset + symbol->st_name;
      if (spelled > cubin.size() || cubin.substr(spelled, name.size()) != name) continue;
      if (read<char>(cubin, spelled + name.size()) != '\0') continue;
      const auto home = section(cubin, *header, symbol->st_shndx);
      if (!home || home->sh_type == SHT_NOBITS) return {};
      return read<int32_t>(cubin, home->sh_offset + symbol->st_value);
    }
  }
  return {};
}

}  // namespace froghopper::runtime
