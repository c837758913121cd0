// SPDX-License-Identifier: Apache-2.0
// base: the variables of the environment.
#pragma once

#include <stdlib.h>  // secure_getenv
#include <string>

namespace froghopper {

// The value of a variable; "" where it is not set, and where the program has rights that its caller lacks (setuid):
// variables name the folder of kernels and the compiler to load.
inline std::string environment(const char* name) {
  const char* value = secure_getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace froghopper
