// SPDX-License-Identifier: Apache-2.0
// runtime: whom the disk cache trusts. A kernel file is machine code with a checksum that anybody can compute, so
// nobody but the user and root may have a way to put one there.
#pragma once
#include <string>

struct stat;

namespace froghopper::runtime {

// Somebody else may change it: it belongs neither to this user nor to root, or its group or all others may write to it.
bool is_of_others(const struct stat&);

// Why somebody else may change what the folder holds, with a way out; "" where nobody can. As ssh looks at the files of
// its user: the folder and all above it belong to this user or to root, none but they may write there (above it a
// sticky folder will do, /tmp for instance), and links on the way are theirs too. What is not there yet will be made by
// make_private_folder.
std::string why_untrusted(const std::string& folder);

// With what is missing above it, each for this user alone (0700). False: it is not there.
bool make_private_folder(const std::string& folder);

}  // namespace froghopper::runtime
