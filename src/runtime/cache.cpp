// SPDX-License-Identifier: Apache-2.0
// runtime: the disk cache's files. A kernel is written beside its place and renamed into it, so that no reader sees
// half of one, and what does not fit its key counts as absent.
#include "src/runtime/cache.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "src/base/log.hpp"
#include "src/base/text.hpp"

namespace froghopper::runtime {

namespace {

std::optional<std::string> read_file(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return {};
  std::string bytes;
  char block[1 << 16];
  ssize_t got;
  while ((got = read(file, block, sizeof block)) > 0) bytes.append(block, static_cast<size_t>(got));
  close(file);
  if (got < 0) return {};
  return bytes;
}

// On disk when it returns true: a rename that survives a crash while the bytes do not would leave a torn file.
bool write_all(int file, const std::string& bytes) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t put = write(file, bytes.data() + done, bytes.size() - done);
    if (put <= 0) return false;
    done += static_cast<size_t>(put);
  }
  return fsync(file) == 0;
}

// In a file of its own beside the target, which a rename then puts in place at once, over whatever was there.
bool write_in_place(const std::string& target, const std::string& bytes) {
  std::string part = target + ".XXXXXX";
  const int file = mkostemp(part.data(), O_CLOEXEC);
  if (file < 0) return false;
  const bool written = write_all(file, bytes);
  if (close(file) == 0 && written && rename(part.c_str(), target.c_str()) == 0) return true;
  unlink(part.c_str());
  return false;
}

}  // namespace

std::string DiskCache::default_folder() {
  for (const auto& [name, below] :
       {std::pair{"FROGHOPPER_CACHE", ""}, {"XDG_CACHE_HOME", "/froghopper"}, {"HOME", "/.cache/froghopper"}})
    if (const char* value = std::getenv(name); value != nullptr && *value != '\0') return std::string(value) + below;
  return "";
}

std::string DiskCache::path(const std::string& name, const Key& key) const {
  return text("{}/{}-{}.kernel", folder_, name, key.hex());
}

std::optional<std::string> DiskCache::load(const std::string& name, const Key& key) const {
  if (folder_.empty()) return {};
  auto bytes = read_file(path(name, key));
  if (!bytes) return {};
  const auto kernel = unpack(*bytes);
  if (kernel && kernel->key == key) return bytes;
  log(text("cache: {} is damaged and will be replaced", path(name, key)));
  return {};
}

bool DiskCache::store(const std::string& name, const Key& key, const std::string& packed) const {
  if (folder_.empty()) return false;
  std::error_code ignored;
  std::filesystem::create_directories(folder_, ignored);
  const std::string target = path(name, key);
  if (write_in_place(target, packed)) return true;
  log(text("cache: {} cannot be written; the kernel will be compiled again in the next process", target));
  return false;
}

}  // namespace froghopper::runtime
