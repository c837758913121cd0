// SPDX-License-Identifier: Apache-2.0
// files: tensor files on disk.
#include "files/tensor_file.hpp"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>

#include "files/source.hpp"
#include "src/base/text.hpp"

namespace froghopper::files {

namespace {

namespace fs = std::filesystem;

struct Close {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, Close>;

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

// Where a path leads in the end: a link stays a link, and the file it names is written. That need not exist yet.
Result<std::string> end_of_links(const std::string& path) {
  constexpr int most_links = 40;  // as many as the system follows
  fs::path at = path;
  std::error_code error;
  for (int i = 0; fs::is_symlink(at, error); ++i) {
    if (i == most_links) return unwritable(path, "its links lead in a circle");
    const fs::path next = fs::read_symlink(at, error);
    if (error) return unwritable(path, error.message());
    at = at.parent_path() / next;
  }
  const fs::file_status found = fs::status(at, error);
  if (fs::exists(found) && !fs::is_regular_file(found)) {
    return unwritable(path, "it is a folder, a pipe or a device, not a regular file. Name another");
  }
  return at.string();
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

Result<void> write_file(const std::string& path, std::string_view bytes) {
  const auto target = end_of_links(path);
  if (!target) return target.failure();
  const std::string part = text("{}.part{}", *target, getpid());
  const RemovedBySignals guard(part);
  errno = 0;
  File file(std::fopen(part.c_str(), "wbe"));
  if (!file) return unwritable(path, std::strerror(errno));
  const bool written = std::fwrite(bytes.data(), 1, bytes.size(), file.get()) == bytes.size();
  const bool closed = std::fclose(file.release()) == 0;
  if (written && closed && std::rename(part.c_str(), target->c_str()) == 0) return {};
  const int why = errno;
  std::remove(part.c_str());
  return unwritable(path, std::strerror(why));
}

}  // namespace froghopper::files
