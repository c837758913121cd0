// SPDX-License-Identifier: Apache-2.0
// runtime: reads the figures that we keep about a kernel out of the text that ptxas prints.
#include "src/runtime/compiler_report.hpp"

#include <cctype>
#include <cstdlib>

namespace froghopper::runtime {

namespace {

// The number before a phrase, as in "16 bytes spill stores".
int32_t number_before(const std::string& report, const std::string& phrase) {
  const size_t end = report.find(phrase);
  if (end == std::string::npos) return 0;
  size_t begin = end;
  while (begin > 0 && std::isdigit(static_cast<unsigned char>(report[begin - 1]))) --begin;
  return static_cast<int32_t>(std::strtol(report.c_str() + begin, nullptr, 10));
}

}  // namespace

KernelFacts facts_of(const std::string& report) {
  KernelFacts facts;
  facts.registers = number_before(report, " registers");
  facts.stack_bytes = number_before(report, " bytes stack frame");
  facts.spill_store_bytes = number_before(report, " bytes spill stores");
  facts.spill_load_bytes = number_before(report, " bytes spill loads");
  facts.serialised = report.find("C75") != std::string::npos;  // C7510 to C7514: up to half of the speed is lost
  return facts;
}

}  // namespace froghopper::runtime
