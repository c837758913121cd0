// SPDX-License-Identifier: Apache-2.0
// Claims: two copies of the shared library in one process do not disturb each other, however they were loaded; it
// needs nothing beyond what every C++ program has; and it shows nothing but fh_*.
#include <dlfcn.h>
#include <elf.h>
#include <froghopper/froghopper.h>
#include <gtest/gtest.h>
#include <link.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

// A folder of its own for each test process, gone with it.
class Folder {
 public:
  Folder() : path_(fs::temp_directory_path() / ("froghopper_two_copies_" + std::to_string(getpid()))) {
    fs::create_directories(path_);
  }
  ~Folder() { fs::remove_all(path_); }
  fs::path operator/(const char* name) const { return path_ / name; }

 private:
  fs::path path_;
};

class Copy {
 public:
  Copy(const Folder& folder, const char* name, int flags) {
    fs::copy_file(FROGHOPPER_LIBRARY, folder / name, fs::copy_options::overwrite_existing);
    handle_ = dlopen((folder / name).c_str(), RTLD_NOW | flags);
    EXPECT_NE(handle_, nullptr) << dlerror();
  }
  ~Copy() { EXPECT_EQ(dlclose(handle_), 0); }

  template <class Function>
  Function* get(const char* name) const {
    auto* const found = reinterpret_cast<Function*>(dlsym(handle_, name));
    EXPECT_NE(found, nullptr) << name;
    return found;
  }

  std::string last_error() const { return get<decltype(fh_last_error)>("fh_last_error")(); }
  fh_status parse(const char* line, fh_problem* problem) const {
    return get<decltype(fh_problem_parse)>("fh_problem_parse")(line, problem);
  }
  fh_status plan(const fh_problem* problem, fh_plan** plan) const {
    return get<decltype(fh_plan_create)>("fh_plan_create")(problem, "cpu", plan);
  }
  // One query, one key: o is the key's v.
  float run(const fh_plan* plan, float value) const {
    std::vector<float> qk(64, 1.0f), v(64, value), o(64, 0.0f);
    fh_tensors tensors = fh_tensors_init();
    tensors.q.data = tensors.k.data = qk.data();
    tensors.v.data = v.data();
    tensors.o.data = o.data();
    EXPECT_EQ(get<decltype(fh_plan_run)>("fh_plan_run")(plan, &tensors, nullptr, 0, nullptr), FH_OK) << last_error();
    return o[63];
  }
  void forget(fh_plan* plan) const { get<decltype(fh_plan_destroy)>("fh_plan_destroy")(plan); }
  void set_log(fh_log_function function, void* user) const {
    get<decltype(fh_set_log)>("fh_set_log")(function, user);
  }

 private:
  void* handle_;
};

void count_lines(const char*, void* user) { ++*static_cast<int*>(user); }

void expect_apart(const Copy& one, const Copy& two) {
  fh_problem problem = fh_problem_init();
  EXPECT_EQ(one.parse("nonsense_one", &problem), FH_INVALID_PROBLEM);
  EXPECT_EQ(two.last_error(), "") << "the error of one copy shows in the other";
  EXPECT_EQ(two.parse("nonsense_two", &problem), FH_INVALID_PROBLEM);
  EXPECT_NE(one.last_error().find("nonsense_one"), std::string::npos) << one.last_error();
  EXPECT_NE(two.last_error().find("nonsense_two"), std::string::npos) << two.last_error();

  int lines_one = 0, lines_two = 0;
  one.set_log(count_lines, &lines_one);
  two.set_log(count_lines, &lines_two);
  ASSERT_EQ(one.parse("fwd f32 b1 hq1 hkv1 sq1 skv1 d64", &problem), FH_OK);
  fh_plan *plan_one = nullptr, *plan_two = nullptr;
  EXPECT_EQ(one.plan(&problem, &plan_one), FH_OK) << one.last_error();
  EXPECT_EQ(lines_one, 1);
  EXPECT_EQ(lines_two, 0) << "what one copy does is logged by the other";
  EXPECT_EQ(two.plan(&problem, &plan_two), FH_OK) << two.last_error();
  EXPECT_EQ(lines_one, 1);
  EXPECT_EQ(lines_two, 1);
  EXPECT_EQ(one.run(plan_one, 3), 3);
  EXPECT_EQ(two.run(plan_two, 4), 4);
  one.set_log(nullptr, nullptr);
  two.set_log(nullptr, nullptr);
  one.forget(plan_one);
  two.forget(plan_two);
}

TEST(two_copies, loaded_each_for_itself) {
  const Folder folder;
  const Copy one(folder, "libone.so", RTLD_LOCAL), two(folder, "libtwo.so", RTLD_LOCAL);
  expect_apart(one, two);
}

TEST(two_copies, loaded_into_the_global_scope) {
  const Folder folder;
  const Copy one(folder, "libone_global.so", RTLD_GLOBAL), two(folder, "libtwo_global.so", RTLD_GLOBAL);
  expect_apart(one, two);
}

TEST(two_copies, one_may_go_while_the_other_stays) {
  const Folder folder;
  const Copy stays(folder, "libstays.so", RTLD_GLOBAL);
  fh_problem problem = fh_problem_init();
  {
    const Copy goes(folder, "libgoes.so", RTLD_GLOBAL);
    expect_apart(goes, stays);
  }
  EXPECT_EQ(stays.parse("fwd f32 b1 hq1 hkv1 sq1 skv1 d64", &problem), FH_OK);
  fh_plan* plan = nullptr;
  ASSERT_EQ(stays.plan(&problem, &plan), FH_OK) << stays.last_error();
  EXPECT_EQ(stays.run(plan, 5), 5);
  stays.forget(plan);
}

// What the dynamic linker reads of a shared library, out of its file.
class SharedObject {
 public:
  explicit SharedObject(const char* path) {
    std::ifstream file(path, std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(file), {});
  }

  std::set<std::string> needed() const {
    std::set<std::string> names;
    const auto [section, strings] = section_with_strings(SHT_DYNAMIC);
    for (const auto* entry = at<ElfW(Dyn)>(section->sh_offset); entry->d_tag != DT_NULL; ++entry)
      if (entry->d_tag == DT_NEEDED) names.insert(strings + entry->d_un.d_val);
    return names;
  }

  // That of the file itself, its name for the loader, and those of its symbols.
  std::set<std::string> versions() const {
    std::set<std::string> names;
    const auto [section, strings] = section_with_strings(SHT_GNU_verdef);
    for (size_t offset = section->sh_offset, i = 0; i < section->sh_info; ++i) {
      const auto* const version = at<ElfW(Verdef)>(offset);
      names.insert(strings + at<ElfW(Verdaux)>(offset + version->vd_aux)->vda_name);
      offset += version->vd_next;
    }
    return names;
  }

  std::set<std::string> exported() const {
    std::set<std::string> names;
    const auto [section, strings] = section_with_strings(SHT_DYNSYM);
    const auto* const symbols = at<ElfW(Sym)>(section->sh_offset);
    for (size_t i = 0; i < section->sh_size / sizeof *symbols; ++i)
      if (symbols[i].st_shndx != SHN_UNDEF) names.insert(strings + symbols[i].st_name);
    return names;
  }

 private:
  template <class T>
  const T* at(size_t offset) const {
    return reinterpret_cast<const T*>(bytes_.data() + offset);
  }

  struct Section {
    const ElfW(Shdr) * section;
    const char* strings;
  };
  Section section_with_strings(uint32_t type) const {
    const auto* const header = at<ElfW(Ehdr)>(0);
    const auto* const sections = at<ElfW(Shdr)>(header->e_shoff);
    for (int i = 0; i < header->e_shnum; ++i)
      if (sections[i].sh_type == type) return {&sections[i], at<char>(sections[sections[i].sh_link].sh_offset)};
    ADD_FAILURE() << "no section of type " << type;
    return {};
  }

  std::vector<char> bytes_;
};

TEST(two_copies, the_library_needs_only_what_every_cpp_program_has) {
  const std::set<std::string> allowed = {"libc.so.6", "libm.so.6", "libgcc_s.so.1", "libstdc++.so.6",
                                         "ld-linux-x86-64.so.2"};
  for (const std::string& name : SharedObject(FROGHOPPER_LIBRARY).needed())
    EXPECT_TRUE(allowed.contains(name)) << "libfroghopper.so needs " << name;
}

// By these the loader tells two versions in one process apart; tests/versions.c shows that it does.
TEST(two_copies, symbols_have_the_version_of_the_librarys_name) {
  const std::string of_interface = std::to_string(FH_VERSION_MAJOR) + "." + std::to_string(FH_VERSION_MINOR);
  const std::set<std::string> expected = {
      "libfroghopper.so." + of_interface, "FROGHOPPER_" + of_interface,
      "FROGHOPPER_PRIVATE_" + of_interface + "." + std::to_string(FH_VERSION_PATCH)};
  EXPECT_EQ(SharedObject(FROGHOPPER_LIBRARY).versions(), expected);
}

TEST(two_copies, the_library_shows_only_its_c_interface) {
  const std::set<std::string> exported = SharedObject(FROGHOPPER_LIBRARY).exported();
  EXPECT_TRUE(exported.contains("fh_plan_run"));
  for (const std::string& name : exported)
    EXPECT_TRUE(name.starts_with("fh_") || name.starts_with("FROGHOPPER_")) << "libfroghopper.so exports " << name;
}

}  // namespace
