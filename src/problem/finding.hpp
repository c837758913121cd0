// SPDX-License-Identifier: Apache-2.0
// problem: what a rule of validate.cpp or extents.cpp says about a description.
#pragma once
#include <string>
#include <utility>

#include "src/base/result.hpp"

namespace froghopper {

// What a rule finds in a description; no text: nothing.
struct Finding {
  std::string text;
  fh_status status = FH_INVALID_PROBLEM;
  Finding() = default;
  Finding(std::string contradiction) : text(std::move(contradiction)) {}
  Finding(std::string found, fh_status what) : text(std::move(found)), status(what) {}
};

inline Finding not_computed(std::string text) { return {std::move(text), FH_UNSUPPORTED}; }

// extents.cpp.
Finding packing(const fh_problem&);
Finding paging(const fh_problem&);
Finding reach(const fh_problem&);

}  // namespace froghopper
