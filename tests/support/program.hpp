// SPDX-License-Identifier: Apache-2.0
// tests: the program froghopper as a script runs it, in a folder of its own, and small files for it.
#pragma once
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "files/tensor_file.hpp"

namespace froghopper::files {

struct Ran {
  int code = -1;
  std::string out, err;
};

inline std::string contents(const std::string& path) {
  std::stringstream all;
  all << std::ifstream(path).rdbuf();
  return all.str();
}

class Program : public testing::Test {
 protected:
  // A folder of its own, as tests run side by side, and those of other users and checkouts too.
  void SetUp() override {
    folder_ = testing::TempDir() + "froghopper_cli_" + std::to_string(getpid()) + "_" +
              testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return folder_ + "/" + name; }

  // arguments as a shell reads them; what goes to another file than ours is not read
  Ran run(const std::string& arguments, const std::string& out = "") const {
    const std::string command = std::string("timeout 60 ") + FROGHOPPER_PROGRAM + " " + arguments + " >" +
                                (out.empty() ? path("stdout") : out) + " 2>" + path("stderr");
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, contents(path("stdout")), contents(path("stderr"))};
  }

  void write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path(name), std::ios::binary) << bytes;
  }

  std::string folder_;
};

inline testing::AssertionResult has(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "\"" << part << "\" is not in:\n" << text;
}

inline FileTensor ones(Element element, std::vector<int64_t> shape) {
  FileTensor t{element, std::move(shape), {}};
  int64_t numbers = 1;
  for (const int64_t extent : t.shape) numbers *= extent;
  const std::array<unsigned char, 4> fp32{0, 0, 0x80, 0x3f}, fp16{0, 0x3c, 0, 0}, int32{1, 0, 0, 0};
  const auto& one = element == Element::f16 ? fp16 : element == Element::f32 ? fp32 : int32;
  for (int64_t i = 0; i < numbers; ++i) t.bytes.insert(t.bytes.end(), one.begin(), one.begin() + size_of(element));
  return t;
}

inline TensorFile small_file() {
  TensorFile file;
  for (const char* const name : {"q", "k", "v"}) file.tensors[name] = ones(Element::f32, {1, 3, 2, 8});
  return file;
}

}  // namespace froghopper::files
