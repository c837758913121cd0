// SPDX-License-Identifier: Apache-2.0
// files: tensor files on disk.
#include "files/tensor_file.hpp"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>

#include "files/source.hpp"
#include "src/base/new_file.hpp"
#include "src/base/text.hpp"

namespace froghopper::files {

namespace {

namespace fs = std::filesystem;

Failure unwritable(const std::string& path, const std::string& why) {
  return {FH_INTERNAL, text("{}: cannot be written: {}", path, why)};
}

// "byte 8: why" -> "PATH, byte 8: why"
template <class T>
Result<T> of_file(const std::string& path, Result<T> parsed) {
  if (parsed) return parsed;
  return Failure{parsed.failure().status, text("{}, {}.", path, parsed.failure().text)};
}

// While one lives, a signal that ends the process (Ctrl-C, kill, the limit on a file's size) takes the half-written
// file with it. Signals that the process ignores, as under nohup, stay ignored.
class RemovedBySignals {
 public:
  explicit RemovedBySignals(const std::string& path) : path_(path) {
    half_written = path_.c_str();
    struct sigaction remove {};
    remove.sa_handler = remove_and_end;
    remove.sa_flags = static_cast<int>(SA_RESETHAND);  // the signal then ends the process, as it would have
    for (size_t i = 0; i < signals.size(); ++i) {
      sigaction(signals[i], nullptr, &former_[i]);
      if (former_[i].sa_handler == SIG_DFL) sigaction(signals[i], &remove, nullptr);
    }
  }
  ~RemovedBySignals() {
    for (size_t i = 0; i < signals.size(); ++i) sigaction(signals[i], &former_[i], nullptr);
    half_written = nullptr;
  }
  RemovedBySignals(const RemovedBySignals&) = delete;

 private:
  static constexpr std::array signals{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGXFSZ};
  static inline std::atomic<const char*> half_written = nullptr;
  static_assert(std::atomic<const char*>::is_always_lock_free);  // a handler may use it

  static void remove_and_end(int signal) {
    if (const char* const path = half_written) unlink(path);
    raise(signal);
  }

  std::string path_;
  std::array<struct sigaction, signals.size()> former_{};
};

// What will be written: where it lies, and whose it is if it is there already.
struct Target {
  std::string path;
  bool exists;
  struct stat facts;
};

// Where a path leads in the end: a link stays a link, and the file it names is written. That need not exist yet.
Result<Target> target_of(const std::string& path) {
  constexpr int most_links = 40;  // as many as the system follows
  fs::path at = path;
  std::error_code error;
  for (int i = 0; fs::is_symlink(at, error); ++i) {
    if (i == most_links) return unwritable(path, "its links lead in a circle");
    const fs::path next = fs::read_symlink(at, error);
    if (error) return unwritable(path, error.message());
    at = at.parent_path() / next;
  }
  Target target{at.string(), false, {}};
  if (stat(target.path.c_str(), &target.facts) != 0) {
    if (errno == ENOENT) return target;
    return unwritable(path, std::strerror(errno));
  }
  target.exists = true;
  if (!S_ISREG(target.facts.st_mode))
    return unwritable(path, "it is a folder, a pipe or a device, not a regular file. Name another");
  // A rename asks nobody whether the file may be written to.
  if (access(target.path.c_str(), W_OK) != 0) return unwritable(path, std::strerror(errno));
  return target;
}

// The file that replaces another one has its owner, as far as this user may give it, and its rights. Where the group is
// another one, that one gets none.
bool take_after(int file, const Target& target) {
  if (!target.exists) return true;
  mode_t rights = target.facts.st_mode & 0777;
  const bool alike = fchown(file, target.facts.st_uid, target.facts.st_gid) == 0;
  if (!alike && fchown(file, static_cast<uid_t>(-1), target.facts.st_gid) != 0) rights &= ~S_IRWXG;
  return fchmod(file, rights) == 0;
}

// In a file beside the target, which a rename then puts in its place. Without bytes it only tries whether there may be
// such a file.
Result<void> write_beside(const std::string& path, std::optional<std::string_view> bytes) {
  const auto target = target_of(path);
  if (!target) return target.failure();
  const std::string part = name_beside(target->path);
  const RemovedBySignals guard(part);
  // Nobody else may look at what replaces a file before it has that file's rights.
  const int file = part.empty() ? -1 : create_file(part, target->exists ? 0600 : 0666);
  if (file < 0) return unwritable(path, std::strerror(errno));
  const bool written = bytes && take_after(file, *target) && write_all(file, *bytes);
  int why = errno;
  const bool closed = close(file) == 0;
  if (written && closed && std::rename(part.c_str(), target->path.c_str()) == 0) return {};
  if (written) why = errno;
  unlink(part.c_str());
  if (!bytes) return {};
  return unwritable(path, std::strerror(why));
}

}  // namespace

Result<TensorFile> read_safetensors(const std::string& path) {
  const auto source = open_file(path);
  return source ? of_file(path, parse_safetensors(**source)) : source.failure();
}

Result<FileTensor> read_npy(const std::string& path) {
  const auto source = open_file(path);
  return source ? of_file(path, parse_npy(**source)) : source.failure();
}

Result<void> can_write_file(const std::string& path) { return write_beside(path, std::nullopt); }
Result<void> write_file(const std::string& path, std::string_view bytes) { return write_beside(path, bytes); }

}  // namespace froghopper::files
