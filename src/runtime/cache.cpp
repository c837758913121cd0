// SPDX-License-Identifier: Apache-2.0
// runtime: the disk cache's files. What does not fit its key, or what others may have put there, counts as absent.
#include "src/runtime/cache.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "src/base/environment.hpp"
#include "src/base/log.hpp"
#include "src/base/new_file.hpp"
#include "src/base/text.hpp"
#include "src/runtime/trust.hpp"

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

// A folder may hold anything under a kernel's name. So nothing but a regular file that nobody else may change is read,
// without waiting for it, and only if it has as many bytes as its header says.
std::optional<std::string> read_kernel(int file) {
  struct stat facts {};
  if (fstat(file, &facts) != 0 || !S_ISREG(facts.st_mode) || is_of_others(facts)) return {};
  auto bytes = read_exactly(file, packed_header_bytes);
  if (!bytes) return {};
  const auto said = packed_bytes(*bytes);
  if (!said || static_cast<uint64_t>(facts.st_size) != *said) return {};
  const auto rest = read_exactly(file, *said - packed_header_bytes);
  if (!rest) return {};
  return *bytes += *rest;
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
  if (const std::string why = why_untrusted(folder_); !why.empty()) {
    log(text("cache: {} is not used: {}", folder_, why));
    return {};
  }
  const int file = open(path(name, key).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (file < 0) return {};
  const Close at_end{file};
  auto bytes = read_kernel(file);
  const auto kernel = bytes ? unpack(*bytes) : std::nullopt;
  if (kernel && kernel->key == key) return bytes;
  log(text("cache: {} is damaged, or others may change it, and will be replaced", path(name, key)));
  return {};
}

bool DiskCache::store(const std::string& name, const Key& key, const std::string& packed) const {
  if (folder_.empty()) return false;
  const std::string target = path(name, key);
  const auto trusted = [&] { return why_untrusted(folder_).empty(); };
  // Looked at again once it is there: somebody else may have made it first.
  if (trusted() && make_private_folder(folder_) && trusted() && write_in_place(target, packed, 0644)) return true;
  log(text("cache: {} cannot be written; the kernel will be compiled again in the next process", target));
  return false;
}

}  // namespace froghopper::runtime
