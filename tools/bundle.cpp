// SPDX-License-Identifier: Apache-2.0
// tools/compile: kernels of one tile are put into a group, and each group is compressed as one text: 8 such kernels
// take half of what they take one by one.
#include "tools/bundle.hpp"

#include <zstd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <tuple>
#include <vector>

#include "src/runtime/bundle.hpp"

namespace froghopper::tools {

namespace {

using namespace runtime;

// The presets of CUDA 13, 52.2 MB, take 5.5 MB in groups of 1 MiB, 5.0 MB of 1.5 MiB, 4.4 MB of 3 MiB; sorted by name
// instead of by tile they take a quarter more. But all of a group is unpacked for one of them, and a new page of memory
// costs as much as the bytes in it: 1.5 MiB take 1.5 milliseconds, 2.5 in a virtual machine.
constexpr size_t bytes_of_a_group = 3 << 19;

constexpr int level = 19;  // 22 takes half as long again and saves nothing

std::string compressed(const std::string& bytes) {
  std::string packed(ZSTD_compressBound(bytes.size()), '\0');
  const size_t size = ZSTD_compress(packed.data(), packed.size(), bytes.data(), bytes.size(), level);
  if (ZSTD_isError(size)) throw std::runtime_error(ZSTD_getErrorName(size));
  packed.resize(size);
  return packed;
}

// Where a kernel stands among the others: kernels of one family whose sizes are the same are neighbours, since bf16 and
// f16, or a mask more or less, change few instructions. Words of a name that end in a digit are sizes, and types.
std::tuple<std::string, std::string, std::string> by_tile(const std::string& name) {
  const size_t first = std::min(name.find('.'), name.size()),
               second = std::min(name.find('.', first + 1), name.size());
  std::string sizes, words;
  for (size_t at = second; at < name.size();) {
    const size_t end = std::min(name.find('.', at + 1), name.size());
    const bool is_size = name[end - 1] >= '0' && name[end - 1] <= '9';
    (is_size ? sizes : words) += name.substr(at, end - at);
    at = end;
  }
  return {name.substr(0, first) + sizes, words, name};
}

// As many threads as cores, and no more: each takes 65 MB.
std::vector<std::string> all_compressed(const std::vector<std::string>& groups) {
  std::vector<std::string> parts(groups.size());
  std::atomic<size_t> next = 0;
  std::vector<std::jthread> threads;
  for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i)
    threads.emplace_back([&] {
      for (size_t group; (group = next++) < groups.size();) parts[group] = compressed(groups[group]);
    });
  threads.clear();  // when all have ended
  return parts;
}

template <class T>
void add(std::string& bytes, const T& value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

}  // namespace

std::string bundle_of(const std::map<std::string, std::string>& kernel_files) {
  std::vector<std::string> order;
  for (const auto& [name, file] : kernel_files) order.push_back(name);
  std::ranges::sort(order, {}, by_tile);

  std::map<std::string, BundledKernel> placed;
  std::vector<std::string> files(1);  // of each group, one after the other
  for (const std::string& name : order) {
    const std::string& file = kernel_files.at(name);
    if (!files.back().empty() && files.back().size() + file.size() > bytes_of_a_group) files.emplace_back();
    placed[name] = {.name = 0,
                    .group = static_cast<uint32_t>(files.size() - 1),
                    .offset = static_cast<uint32_t>(files.back().size()),
                    .bytes = static_cast<uint32_t>(file.size())};
    files.back() += file;
  }

  std::vector<BundledKernel> kernels;  // by name
  std::string names;
  for (auto& [name, kernel] : placed) {
    kernel.name = static_cast<uint32_t>(names.size());
    kernels.push_back(kernel);
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
  const std::vector<std::string> parts = all_compressed(files);
  for (size_t i = 0; i < files.size(); ++i) {
    add(bytes, BundledGroup{names_at + names.size() + packed.size(), parts[i].size(), files[i].size()});
    packed += parts[i];
  }
  return bytes + names + packed;
}

}  // namespace froghopper::tools
