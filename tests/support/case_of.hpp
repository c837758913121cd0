// SPDX-License-Identifier: Apache-2.0
// tests: a case from the line that names it.
#pragma once
#include <gtest/gtest.h>

#include "check/check.hpp"

namespace froghopper::test {

inline check::Case case_of(const std::string& line) {
  const auto c = check::parse_case(line);
  EXPECT_TRUE(c) << line << "\n" << (c ? "" : c.failure().text);
  return c ? *c : check::Case{};
}

}  // namespace froghopper::test
