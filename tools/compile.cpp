// SPDX-License-Identifier: Apache-2.0
// tools/compile: names of kernels -> kernel files, at build time, with the function that also compiles at run time.
//   froghopper_compile --nvrtc LIBRARY --out FOLDER NAMES.txt   compiles what the folder does not hold already, in as
//                                                               many processes as there are cores
//   froghopper_compile --bundle FOLDER OUT                      all kernels of the folder in one compressed file
//   froghopper_compile --table FOLDER...                        registers, stack and spills of every kernel there
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "src/base/new_file.hpp"
#include "src/base/text.hpp"
#include "src/plan/kernel.hpp"
#include "src/runtime/cache.hpp"
#include "src/runtime/kernel_file.hpp"
#include "src/runtime/nvrtc.hpp"
#include "tools/bundle.hpp"

namespace fs = std::filesystem;
using namespace froghopper;
using namespace froghopper::runtime;

namespace {

int fail(const std::string& message) {
  std::fprintf(stderr, "froghopper_compile: %s\n", message.c_str());
  return 1;
}

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::string> read_names(const fs::path& path) {
  std::vector<std::string> names;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    line.erase(std::find(line.begin(), line.end(), '#'), line.end());
    while (!line.empty() && line.back() == ' ') line.pop_back();
    if (!line.empty()) names.push_back(line);
  }
  return names;
}

// From the build folder, else from the disk cache that run time has too, else from the compiler.
Result<std::string> kernel_file(const Compiler& compiler, const KernelSpec& spec, const fs::path& path) {
  const Key key = compiler.key(spec);
  std::string old = read_file(path);
  if (const auto known = unpack(old); known && known->key == key) return old;
  const DiskCache cache(DiskCache::default_folder());
  if (auto stored = cache.load(spec.name, key)) return std::move(*stored);
  const auto kernel = compiler.compile(spec);
  if (!kernel) return kernel.failure();
  std::string packed = pack(*kernel);
  cache.store(spec.name, key, packed);
  return packed;
}

// Nothing went wrong: "".
std::string compile_one(const Compiler& compiler, const std::string& name, const fs::path& folder) {
  const auto spec = kernel_named(name);
  if (!spec) return text("{}: {}", name, spec.failure().text);
  const fs::path path = folder / (name + ".kernel");
  const auto packed = kernel_file(compiler, *spec, path);
  if (!packed) return packed.failure().text;
  if (unpack(*packed)->facts.serialised)
    return text("{}: {} serialises wgmma (C75xx). Change the kernel, or take the preset out.", name, compiler.name());
  if (!write_in_place(path, *packed, 0666)) return text("{} cannot be written", path.string());
  return "";
}

// Files of presets that were taken out of the list are removed: tests go through the folder.
void remove_others(const fs::path& folder, const std::vector<std::string>& names) {
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().extension() == ".kernel" &&
        std::find(names.begin(), names.end(), entry.path().stem().string()) == names.end())
      fs::remove(entry.path());
}

// One process of those that compile: takes the next name until there is none. How many failed.
int work(const std::string& library, const fs::path& folder, const std::vector<std::string>& names,
         std::atomic<size_t>& next) {
  const auto compiler = Compiler::open(library);
  if (!compiler) return fail(compiler.failure().text);
  int failures = 0;
  for (size_t i; (i = next.fetch_add(1)) < names.size();)
    if (const std::string why = compile_one(*compiler, names[i], folder); !why.empty()) failures += fail(why);
  return failures;
}

// As many processes as cores, since NVRTC compiles one program at a time in each, but at most 32: each takes some
// 150 MB. The compiler is opened in them alone.
int compile(const std::string& library, const fs::path& folder, const fs::path& list) {
  fs::create_directories(folder);
  const std::vector<std::string> names = read_names(list);
  remove_others(folder, names);
  void* const shared =
      mmap(nullptr, sizeof(std::atomic<size_t>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return fail("the system gives no memory that processes share");
  auto& next = *new (shared) std::atomic<size_t>(0);
  std::vector<pid_t> workers;
  for (unsigned i = 0; i < std::clamp(std::thread::hardware_concurrency(), 1u, 32u); ++i) {
    const pid_t child = fork();
    if (child == 0) _exit(work(library, folder, names, next) == 0 ? 0 : 1);
    if (child > 0) workers.push_back(child);
  }
  if (workers.empty()) return work(library, folder, names, next) == 0 ? 0 : 1;
  int failures = 0;
  for (const pid_t child : workers) {
    int status = 0;
    if (waitpid(child, &status, 0) != child || status != 0) ++failures;
  }
  return failures == 0 ? 0 : 1;
}

int bundle(const fs::path& folder, const fs::path& out) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().extension() == ".kernel") files[entry.path().stem().string()] = read_file(entry.path());
  for (const auto& [name, bytes] : files)
    if (!unpack(bytes)) return fail(text("{}/{}.kernel is no kernel file", folder.string(), name));
  return write_in_place(out.string(), tools::bundle_of(files), 0666)
             ? 0
             : fail(text("{} cannot be written", out.string()));
}

int table(const std::vector<std::string>& folders) {
  std::vector<std::string> lines;
  for (const std::string& folder : folders)
    for (const auto& entry : fs::directory_iterator(folder)) {
      if (entry.path().extension() != ".kernel") continue;
      const std::string bytes = read_file(entry.path());
      const auto kernel = unpack(bytes);
      if (!kernel) return fail(text("{} is no kernel file", entry.path().string()));
      const KernelFacts& facts = kernel->facts;
      lines.push_back(text("{:<60} {:>4}.{} {:>9} {:>5} {:>12} {:>11} {:>7}\n", entry.path().stem().string(),
                           facts.compiler / 1000, facts.compiler % 1000 / 10, facts.registers, facts.stack_bytes,
                           facts.spill_store_bytes, facts.spill_load_bytes, facts.smem_bytes));
    }
  std::sort(lines.begin(), lines.end());
  std::printf(
      "# What the compilers make of each preset; bytes a thread, shared memory a CTA. Made by the build:\n"
      "# cmake --build BUILD --target registers\n");
  std::printf("%-60s %6s %9s %5s %12s %11s %7s\n", "# preset", "nvrtc", "registers", "stack", "spill_stores",
              "spill_loads", "smem");
  for (const std::string& line : lines) std::fputs(line.c_str(), stdout);
  if (std::fflush(stdout) != 0 || std::ferror(stdout)) return fail("writing to stdout failed");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() == 5 && words[0] == "--nvrtc" && words[2] == "--out") return compile(words[1], words[3], words[4]);
  if (words.size() == 3 && words[0] == "--bundle") return bundle(words[1], words[2]);
  if (words.size() >= 2 && words[0] == "--table") return table({words.begin() + 1, words.end()});
  return fail(
      "usage: froghopper_compile --nvrtc LIBRARY --out FOLDER NAMES.txt | --bundle FOLDER OUT | "
      "--table FOLDER...");
}
