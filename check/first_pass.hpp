// SPDX-License-Identifier: Apache-2.0
// check: o and lse of a backward problem.
#pragma once
#include "check/check.hpp"

namespace froghopper::check {

// Into the query rows that count, from the case's q, k, v and sink.
void put_first_pass(const Case&, const Inputs&, const Views&);

}  // namespace froghopper::check
