// SPDX-License-Identifier: Apache-2.0
// files: bytes of a file on disk, or of memory.
#include "files/source.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "src/base/counted.hpp"
#include "src/base/text.hpp"

namespace froghopper::files {

namespace {

class Memory final : public Source {
 public:
  explicit Memory(std::string_view bytes) : bytes_(bytes) {}
  uint64_t size() const override { return bytes_.size(); }
  Result<void> read(uint64_t at, size_t bytes, void* into) const override {
    if (bytes > 0) std::memcpy(into, bytes_.data() + at, bytes);
    return {};
  }

 private:
  std::string_view bytes_;
};

class Disk final : public Source {
 public:
  Disk(int file, uint64_t size) : file_(file), size_(size) {}
  ~Disk() override { close(file_); }
  uint64_t size() const override { return size_; }
  Result<void> read(uint64_t at, size_t bytes, void* into) const override {
    for (size_t done = 0; done < bytes;) {
      const ssize_t got = pread(file_, static_cast<char*>(into) + done, bytes - done, static_cast<off_t>(at + done));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return refuse(at + done, text("cannot be read: {}", std::strerror(errno)));
      if (got == 0) return refuse(at + done, "the file became shorter while it was read");
      done += static_cast<size_t>(got);
    }
    return {};
  }

 private:
  int file_;
  uint64_t size_;
};

const char* kind_of(mode_t mode) {
  return S_ISDIR(mode) ? "a folder" : S_ISFIFO(mode) ? "a pipe" : S_ISSOCK(mode) ? "a socket" : "a device";
}

uint64_t memory_of_machine() {
  const long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
  return pages > 0 && page_bytes > 0 ? static_cast<uint64_t>(pages) * static_cast<uint64_t>(page_bytes) : UINT64_MAX;
}

template <class All>
Result<All> read_into(const Source& source, uint64_t at, uint64_t bytes) {
  All all;
  try {
    all.resize(bytes);
  } catch (const std::bad_alloc&) {
    return refuse(
        at, text("{}, and the system gives no memory for that", counted(bytes, "byte follows", "bytes follow")));
  } catch (const std::length_error&) { return refuse(at, text("{} bytes follow, more than memory can have", bytes)); }
  const auto read = source.read(at, all.size(), all.data());
  if (!read) return read.failure();
  return all;
}

}  // namespace

Result<std::unique_ptr<Source>> open_file(const std::string& path) {
  const auto wrong = [&](const std::string& why) { return Failure{FH_INVALID_TENSOR, text("{}: {}", path, why)}; };
  // Without waiting: opening a pipe without a writer would wait forever.
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (file < 0) return wrong(text("cannot be opened: {}", std::strerror(errno)));
  struct stat facts {};
  if (fstat(file, &facts) != 0) {
    const int why = errno;
    close(file);
    return wrong(text("cannot be read: {}", std::strerror(why)));
  }
  auto source = std::make_unique<Disk>(file, static_cast<uint64_t>(facts.st_size));
  if (!S_ISREG(facts.st_mode)) {
    return wrong(text("is {}; tensors are read from regular files, whose size is known. Save it to one.",
                      kind_of(facts.st_mode)));
  }
  if (source->size() > memory_of_machine()) {
    return wrong(text("has {} bytes and this machine has {} of memory, where a file has to fit. Cut it into parts.",
                      source->size(), memory_of_machine()));
  }
  return std::unique_ptr<Source>(std::move(source));
}

Result<TensorFile> parse_safetensors(std::string_view bytes) { return parse_safetensors(Memory(bytes)); }
Result<FileTensor> parse_npy(std::string_view bytes) { return parse_npy(Memory(bytes)); }

Failure refuse(uint64_t byte, const std::string& why) { return {FH_INVALID_TENSOR, text("byte {}: {}", byte, why)}; }

Result<Bytes> read_bytes(const Source& source, uint64_t at, uint64_t bytes) {
  return read_into<Bytes>(source, at, bytes);
}

Result<std::string> read_text(const Source& source, uint64_t at, uint64_t bytes) {
  return read_into<std::string>(source, at, bytes);
}

std::string shown(std::string_view of_file) {
  constexpr size_t most = 80;
  const bool cut = of_file.size() > most;
  const auto replace = nlohmann::json::error_handler_t::replace;  // the cut may go through a character
  return nlohmann::json(of_file.substr(0, most)).dump(-1, ' ', false, replace) + (cut ? "..." : "");
}

}  // namespace froghopper::files
