// SPDX-License-Identifier: Apache-2.0
// problem: a problem writes rows of q's tensors, and of k's where it makes gradients or 8-bit copies; in addition to
// these lists that have values for sequences and heads, also where there are no rows.
#include "src/problem/nothing.hpp"

#include "src/base/text.hpp"

namespace froghopper {
namespace {

bool writes_lists(const Problem& p) {
  if (p.backward()) return p.sink;
  if (p.quantises())  // means and scales
    return p.batch > 0 && (p.smooth || p.scale_blocks(p.seq_q) > 0 || p.scale_blocks(p.seq_kv) > 0);
  return p.batch > 0 && p.max_logit;
}

}  // namespace

std::string why_nothing(const Problem& p) {
  const bool of_keys = p.backward() || p.quantises();
  if (p.rows_q() > 0 || (of_keys && p.rows_kv() > 0) || writes_lists(p)) return {};
  if (p.batch == 0 && !p.varlen) return "batch is 0";
  const char* const rows = p.varlen ? "total" : "seq";
  return of_keys ? text("{0}_q and {0}_kv are 0", rows) : text("{}_q is 0", rows);
}

}  // namespace froghopper
