// SPDX-License-Identifier: Apache-2.0
// tests: the plan of a problem line for a GPU that need not be here.
#pragma once
#include <gtest/gtest.h>

#include <string>

#include "src/plan/plan.hpp"

namespace froghopper::test {

inline Plan planned(const std::string& line, const char* device = "h200") {
  const auto problem = Problem::parse(line);
  EXPECT_TRUE(problem) << line << "\n" << problem.failure().text;
  const auto plan = make_gpu_plan(*problem, known_device(device));
  EXPECT_TRUE(plan) << plan.failure().text;
  return *plan;
}

}  // namespace froghopper::test
