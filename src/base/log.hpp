// SPDX-License-Identifier: Apache-2.0
// base: the one place that logs, and only to the function the user has set.
#pragma once
#include <froghopper/froghopper.h>

#include <string>

namespace froghopper {

bool log_wanted();  // so that a line that is not wanted is not put together
void log(const std::string& line);
void set_log(fh_log_function, void* user);  // when it returns, the former function is not running any more

}  // namespace froghopper
