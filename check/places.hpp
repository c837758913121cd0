// SPDX-License-Identifier: Apache-2.0
// check: how long the sequences of a case are, and where their rows lie: what the case says, else pseudo-random numbers
// of a stream.
#pragma once
#include "check/check.hpp"

namespace froghopper::check {

void put_cu_seqlens_q(const Case&, const Views&, uint64_t stream);
void put_cu_seqlens_kv(const Case&, const Views&, uint64_t stream);
void put_seqused_q(const Case&, const Views&, uint64_t stream);
// Of an append problem: rows that the cache has already, so that those that come fit behind them.
void put_seqused_kv(const Case&, const Views&, uint64_t stream);

// Whether the pool has a page for each that a sequence needs; else how many it must have. Reads the lengths.
Result<void> pages_suffice(const Problem&, const Views&);

// These read the lengths. The pages of a sequence lie anywhere in the pool, no page is in two sequences, and what no
// row that counts needs is no number of a page.
void put_pages(const Case&, const Views&, uint64_t stream);
// The rows of an append problem go to slots anywhere in the cache, no two to one; every fifth row is padding.
void put_slots(const Case&, const Views&, uint64_t stream);
void put_positions(const Case&, const Views&, uint64_t stream);

}  // namespace froghopper::check
