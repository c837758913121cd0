// SPDX-License-Identifier: Apache-2.0
// problem: whether two tensors have a byte of memory in common, by their addresses, extents and strides.
#pragma once
#include <cstddef>

#include "src/problem/tensors.hpp"

namespace froghopper {

// Answered exactly, so that slices of one buffer may lie between each other: q, k, v and o as columns of one tensor
// share nothing. Layouts that a bounded search cannot tell apart are `unclear`; slices of one buffer never are.
enum class Overlap : unsigned char { none, some, unclear };

// Both have data, and no strides beyond those that bind() lets pass.
Overlap overlap_of(const View&, const View&);

// What is written shares no byte with any other tensor of the problem, whether that is written or read. "" where it is
// so, else the message.
std::string shared_memory(const Problem&, const Views&);

// The same of the workspace, which every tensor has to keep clear of.
std::string shared_with_workspace(const Problem&, const Views&, const void* workspace, size_t bytes);

}  // namespace froghopper
