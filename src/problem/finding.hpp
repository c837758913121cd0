// SPDX-License-Identifier: Apache-2.0
// problem: what a rule of validate.cpp or extents.cpp says about a description.
#pragma once
#include <cstdint>
#include <cstring>
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

// A C caller can put any number into an enum; C++ may only look at it as a number.
template <class Enum>
int32_t raw(const Enum& field) {
  int32_t value;
  static_assert(sizeof field == sizeof value);
  std::memcpy(&value, &field, sizeof value);
  return value;
}

inline Finding not_computed(std::string text) { return {std::move(text), FH_UNSUPPORTED}; }

// extents.cpp.
Finding packing(const fh_problem&);
Finding paging(const fh_problem&);
Finding reach(const fh_problem&);

// append.cpp
Finding only_append(const fh_problem&);  // all rules that only an append problem has
Finding no_append(const fh_problem&);    // of other operations: the types of its tables are as they were

}  // namespace froghopper
