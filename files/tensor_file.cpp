// SPDX-License-Identifier: Apache-2.0
// files: tensor files on disk.
#include "files/tensor_file.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "src/base/text.hpp"

namespace froghopper::files {

namespace {

struct Close {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, Close>;

Failure trouble(fh_status status, const std::string& path, const char* what) {
  return {status, text("{}: {}: {}", path, what, std::strerror(errno))};
}

Result<std::string> read_whole(const std::string& path) {
  errno = 0;
  const File file(std::fopen(path.c_str(), "rb"));
  if (!file) return trouble(FH_INVALID_TENSOR, path, "cannot be opened");
  std::string bytes;
  char piece[1 << 16];
  size_t got = 0;
  while ((got = std::fread(piece, 1, sizeof piece, file.get())) > 0) bytes.append(piece, got);
  if (std::ferror(file.get())) return trouble(FH_INVALID_TENSOR, path, "cannot be read");
  return bytes;
}

// "byte 8: why" -> "PATH, byte 8: why"
template <class T>
Result<T> of_file(const std::string& path, Result<T> parsed) {
  if (parsed) return parsed;
  return Failure{parsed.failure().status, text("{}, {}.", path, parsed.failure().text)};
}

}  // namespace

Result<TensorFile> read_safetensors(const std::string& path) {
  const auto bytes = read_whole(path);
  return bytes ? of_file(path, parse_safetensors(*bytes)) : bytes.failure();
}

Result<FileTensor> read_npy(const std::string& path) {
  const auto bytes = read_whole(path);
  return bytes ? of_file(path, parse_npy(*bytes)) : bytes.failure();
}

Result<void> write_file(const std::string& path, std::string_view bytes) {
  const std::string part = text("{}.part{}", path, getpid());
  errno = 0;
  File file(std::fopen(part.c_str(), "wb"));
  if (!file) return trouble(FH_INTERNAL, path, "cannot be written");
  const bool written = std::fwrite(bytes.data(), 1, bytes.size(), file.get()) == bytes.size();
  const bool closed = std::fclose(file.release()) == 0;
  if (written && closed && std::rename(part.c_str(), path.c_str()) == 0) return {};
  Failure failure = trouble(FH_INTERNAL, path, "cannot be written");
  std::remove(part.c_str());
  return failure;
}

}  // namespace froghopper::files
