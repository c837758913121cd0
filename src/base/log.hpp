// SPDX-License-Identifier: Apache-2.0
// base: the one place that logs, and only to the function the user has set.
#pragma once
#include <froghopper/froghopper.h>

#include <string>

namespace froghopper {

bool log_wanted();  // so that a line that is not wanted is not put together
void log(const std::string& line);
// When it returns no former function is running any more, nor will be; called by one of them it waits for none.
void set_log(fh_log_function, void* user);

}  // namespace froghopper
