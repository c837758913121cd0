// SPDX-License-Identifier: Apache-2.0
// base: files that appear whole or not at all: written beside their place under a name that nobody can guess, so that
// no planted link is followed and no other process writes the same one, then renamed into it.
#pragma once
#include <sys/types.h>

#include <string>
#include <string_view>

namespace froghopper {

// A name beside the target for what will be renamed into it; "": the system gives no random numbers, errno says why.
std::string name_beside(const std::string& target);

// A new file, open to be written, with these rights as far as the umask leaves them. Never one that is there already,
// nor what a link names. -1: errno says why.
int create_file(const std::string& path, mode_t rights);

bool write_all(int file, std::string_view bytes);  // false: errno says why

// All of the above, and on disk when it returns true: a rename that survives a crash while the bytes do not would leave
// a torn file. false: errno says why, and nothing has changed.
bool write_in_place(const std::string& target, std::string_view bytes, mode_t rights);

}  // namespace froghopper
