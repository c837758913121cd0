// SPDX-License-Identifier: Apache-2.0
// check: where the elements of a tensor lie, by name.
#pragma once
#include <span>
#include <string>

#include "src/problem/tensors.hpp"

namespace froghopper::check {

std::span<const char* const> all_layouts();
bool is_layout(const std::string& name);
bool shares_places(const std::string& name);  // among sequences or heads, in tensors that are read

// The tensor of these extents (packed: batch extent 1). `written` ones are never laid over themselves.
struct Layout {
  int64_t stride_batch, stride_seq, stride_head;  // what the user's struct says, also for extents of 1
  int64_t offset;                                 // elements from an aligned address to the first element
};
Layout lay_out(const std::string& name, View Views::*tensor, const View& extents, bool packed, bool written);

// Elements from the first to one past the last. 0 for a tensor without elements.
int64_t span_of(const View& extents, const Layout&);

}  // namespace froghopper::check
