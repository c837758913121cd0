// SPDX-License-Identifier: Apache-2.0
// runtime: the way to a folder, walked from the root, link by link.
#include "src/runtime/trust.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <list>

#include "src/base/text.hpp"

namespace froghopper::runtime {
namespace {

namespace fs = std::filesystem;

bool is_of_another_user(const struct stat& facts) { return facts.st_uid != 0 && facts.st_uid != geteuid(); }
bool others_may_write(const struct stat& facts) { return (facts.st_mode & (S_IWGRP | S_IWOTH)) != 0; }

std::string of_another_user(const fs::path& path, const struct stat& facts) {
  return text(
      "{} belongs to user {}; kernels are taken from folders of user {} or of root. Set FROGHOPPER_CACHE to one.",
      path.string(), facts.st_uid, geteuid());
}
std::string writable(const fs::path& path) {
  return text(
      "{0} can be written to by others; kernels are taken from where only this user and root can put them. Look "
      "at what it holds and call chmod go-w {0}, or set FROGHOPPER_CACHE.",
      path.string());
}

// The steps that a path still asks for.
using Steps = std::list<fs::path>;

void put_before(Steps& steps, const fs::path& path) {
  Steps more;
  for (const fs::path& step : path.relative_path())
    if (!step.empty() && step != ".") more.push_back(step);
  steps.splice(steps.begin(), more);
}

}  // namespace

bool is_of_others(const struct stat& facts) { return is_of_another_user(facts) || others_may_write(facts); }

std::string why_untrusted(const std::string& folder) {
  constexpr int most_links = 40;  // as many as the system follows
  std::error_code error;
  Steps steps;
  put_before(steps, fs::absolute(folder, error));
  if (error) return text("{}: {}. Set FROGHOPPER_CACHE to a folder that is there.", folder, error.message());
  fs::path at = "/";
  struct stat facts {};
  for (int links = 0;;) {
    if (lstat(at.c_str(), &facts) != 0) {
      if (errno == ENOENT) return "";  // it will be made
      return text("{}: {}. Set FROGHOPPER_CACHE to another.", at.string(), std::strerror(errno));
    }
    if (is_of_another_user(facts)) return of_another_user(at, facts);
    if (S_ISLNK(facts.st_mode)) {
      const fs::path next = fs::read_symlink(at, error);
      if (error || ++links > most_links) return text("{} is a link that leads nowhere. Remove it.", at.string());
      put_before(steps, next);
      at = next.is_absolute() ? fs::path("/") : at.parent_path();
      continue;
    }
    if (!S_ISDIR(facts.st_mode)) return text("{} is no folder. Set FROGHOPPER_CACHE to one.", at.string());
    const bool holds = steps.empty() || (facts.st_mode & S_ISVTX) == 0;
    if (holds && others_may_write(facts)) return writable(at);
    if (steps.empty()) return "";
    at = steps.front() == ".." ? at.parent_path() : at / steps.front();
    steps.pop_front();
  }
}

bool make_private_folder(const std::string& folder) {
  if (mkdir(folder.c_str(), 0700) == 0 || errno == EEXIST) return true;
  const fs::path above = fs::path(folder).parent_path();
  if (errno != ENOENT || above.empty() || above == folder) return false;
  return make_private_folder(above) && (mkdir(folder.c_str(), 0700) == 0 || errno == EEXIST);
}

}  // namespace froghopper::runtime
