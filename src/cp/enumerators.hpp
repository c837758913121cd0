// SPDX-License-Identifier: Apache-2.0
// cp: the enumerators of the public headers by their names, for messages.
#pragma once
#include <froghopper/cp.h>

#include <string>

namespace froghopper::cp {

// "FH_CP_RING"; a number that names nothing: "7".
std::string c_name(fh_op);
std::string c_name(fh_dtype);
std::string c_name(fh_cp_scheme);
std::string c_name(fh_cp_layout);
std::string c_name(fh_cp_transfers);

// Of a field with a number that names nothing: "layout is 7, which names no fh_cp_layout. Use FH_CP_LAYOUT_AUTO, ...".
// "": it has a name.
std::string no_name(fh_cp_scheme);
std::string no_name(fh_cp_layout);
std::string no_name(fh_cp_transfers, const char* field = "transfers");

}  // namespace froghopper::cp
