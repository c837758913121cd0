// SPDX-License-Identifier: Apache-2.0
// runtime: the disk cache's files. A kernel is written next to its place and renamed into it, so that no reader sees
// half of one, and what does not fit its key counts as absent.
#include "src/runtime/cache.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "src/base/environment.hpp"
#include "src/base/log.hpp"
#include "src/base/text.hpp"

namespace froghopper::runtime {

namespace {

struct Close {
  int file;
  ~Close() { close(file); }
};

// The next bytes of a file; nothing where there are fewer.
std::optional<std::string> read_exactly(int file, size_t count) {
  std::string bytes(count, '\0');
  for (size_t done = 0; done < count;) {
    const ssize_t got = read(file, bytes.data() + done, count - done);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return {};
    done += static_cast<size_t>(got);
  }
  return bytes;
}

// A folder that is shared may hold anything under a kernel's name. So nothing but a regular file is read, without
// waiting for it, and only if it has as many bytes as its header says.
std::optional<std::string> read_kernel(int file) {
  struct stat facts {};
  if (fstat(file, &facts) != 0 || !S_ISREG(facts.st_mode)) return {};
  auto bytes = read_exactly(file, packed_header_bytes);
  if (!bytes) return {};
  const auto said = packed_bytes(*bytes);
  if (!said || static_cast<uint64_t>(facts.st_size) != *said) return {};
  const auto rest = read_exactly(file, *said - packed_header_bytes);
  if (!rest) return {};
  return *bytes += *rest;
}

// On disk when it returns true: a rename that survives a crash while the bytes do not would leave a torn file.
bool write_all(int file, const std::string& bytes) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t put = write(file, bytes.data() + done, bytes.size() - done);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return false;
    done += static_cast<size_t>(put);
  }
  return fsync(file) == 0;
}

// A new file next to the target, under a name that no other process or machine has. mkstemp would make one that only
// its owner may read; this one has the rights that the user's umask leaves.
int open_part(const std::string& target, std::string& part) {
  constexpr int attempts = 100;
  for (int i = 0; i < attempts; ++i) {
    uint64_t number = 0;
    if (getentropy(&number, sizeof number) != 0) return -1;
    part = text("{}.{:016x}", target, number);
    const int file = open(part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file >= 0 || errno != EEXIST) return file;
  }
  return -1;
}

// In a file of its own next to the target, which a rename then puts in place at once, over whatever was there.
bool write_in_place(const std::string& target, const std::string& bytes) {
  std::string part;
  const int file = open_part(target, part);
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
    if (const std::string value = environment(name); !value.empty()) return value + below;
  return "";
}

std::string DiskCache::path(const std::string& name, const Key& key) const {
  return text("{}/{}-{}.kernel", folder_, name, key.hex());
}

std::optional<std::string> DiskCache::load(const std::string& name, const Key& key) const {
  if (folder_.empty()) return {};
  const int file = open(path(name, key).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (file < 0) return {};
  const Close at_end{file};
  auto bytes = read_kernel(file);
  const auto kernel = bytes ? unpack(*bytes) : std::nullopt;
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
