// SPDX-License-Identifier: Apache-2.0
// cpu: features of this processor that __builtin_cpu_supports of GCC knows and that of Clang 14 does not. Whether the
// system allows their use is asked elsewhere.
#pragma once
#include <cstdint>

#if defined(__x86_64__)
#include <cpuid.h>

namespace froghopper::cpu {

struct Processor {
  bool f16c = false, avx512bf16 = false, amx_bf16 = false, amx_tile = false;

  Processor() {
    uint32_t eax, ebx, ecx, edx;  // Intel's manual, CPUID leaves 1 and 7
    if (__get_cpuid(1, &eax, &ebx, &ecx, &edx)) f16c = ecx >> 29 & 1;
    if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) {
      amx_bf16 = edx >> 22 & 1, amx_tile = edx >> 24 & 1;
      if (eax >= 1 && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx)) avx512bf16 = eax >> 5 & 1;
    }
  }
};

inline const Processor& processor() {
  static const Processor here;
  return here;
}

}  // namespace froghopper::cpu
#endif
