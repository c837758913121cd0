// SPDX-License-Identifier: Apache-2.0
// cp: how a call of the C interface fails.
#pragma once
#include <string>

#include "src/base/result.hpp"

namespace froghopper::cp {

// Keeps the text for fh_cp_last_error() and gives the status.
fh_status failed(const char* call, const Failure& failure) noexcept;
// Of an argument that a function reads, and of one that it writes to.
fh_status is_null(const char* call, const char* argument, fh_status status = FH_INVALID_PROBLEM);
fh_status has_no_place(const char* call, const char* result, fh_status status = FH_INVALID_PROBLEM);

// fh_last_error() without the name of the function of libfroghopper: `failed` sets that of the function of this library
// which the user has called.
std::string words_of_library();

}  // namespace froghopper::cp
