// SPDX-License-Identifier: Apache-2.0
// cp: how a call of the C interface fails.
#pragma once
#include "src/base/result.hpp"

namespace froghopper::cp {

// Keeps the text for fh_cp_last_error() and gives the status.
fh_status failed(const char* call, const Failure& failure) noexcept;

}  // namespace froghopper::cp
