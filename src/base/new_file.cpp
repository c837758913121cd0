// SPDX-License-Identifier: Apache-2.0
// base: files that appear whole or not at all, by the system's calls.
#include "src/base/new_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>

#include "src/base/text.hpp"

namespace froghopper {

std::string name_beside(const std::string& target) {
  uint64_t number = 0;
  if (getentropy(&number, sizeof number) != 0) return "";
  return text("{}.part{:016x}", target, number);
}

int create_file(const std::string& path, mode_t rights) {
  return open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, rights);
}

bool write_all(int file, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t put = write(file, bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return false;
    bytes.remove_prefix(static_cast<size_t>(put));
  }
  return true;
}

bool write_in_place(const std::string& target, std::string_view bytes, mode_t rights) {
  const std::string part = name_beside(target);
  const int file = part.empty() ? -1 : create_file(part, rights);
  if (file < 0) return false;
  const bool written = write_all(file, bytes) && fsync(file) == 0;
  const int why_not_written = errno;
  const bool closed = close(file) == 0;
  if (written && closed && std::rename(part.c_str(), target.c_str()) == 0) return true;
  const int why = written ? errno : why_not_written;
  unlink(part.c_str());
  errno = why;
  return false;
}

}  // namespace froghopper
