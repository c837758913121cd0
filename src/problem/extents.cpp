// SPDX-License-Identifier: Apache-2.0
// problem: the rules about sizes: which go together, and that no product of them is too large.
#include <algorithm>
#include <initializer_list>

#include "src/base/text.hpp"
#include "src/problem/finding.hpp"

namespace froghopper {

Finding packing(const fh_problem& p) {
  if (p.varlen) return {};
  if (p.total_q != 0)
    return text("total_q is {} without varlen; only packed sequences have a total. Set varlen or leave it 0.",
                p.total_q);
  if (p.total_kv != 0)
    return text("total_kv is {} without varlen; only packed sequences have a total. Set varlen or leave it 0.",
                p.total_kv);
  return {};
}

Finding paging(const fh_problem& p) {
  if (p.page_size == 0 && p.pages != 0)
    return text("pages is {} and page_size is 0; k and v are not in pages then. Set page_size, or pages to 0.",
                p.pages);
  if (p.page_size != 0 && p.total_kv != 0)
    return text(
        "total_kv is {} and page_size is {}; k and v are a pool of pages, which has no total. Set total_kv to 0.",
        p.total_kv, p.page_size);
  return {};
}

namespace {

bool product_fits(std::initializer_list<int64_t> sizes) {
  int64_t product = 1;
  for (int64_t size : sizes)
    if (__builtin_mul_overflow(product, size > 0 ? size : 1, &product)) return false;
  return true;
}

}  // namespace

// Every later product of sizes (elements, bytes, tiles) is one of these or smaller, so none of them can overflow.
// Sizes count as 1 at least: then products of fewer of them fit too.
Finding reach(const fh_problem& p) {
  // Head dims above 512 have a rule of their own.
  const int64_t dim = std::clamp<int64_t>(std::max(p.dim_qk, p.dim_v), 256, 512);
  const int64_t widest_row = dim * static_cast<int64_t>(sizeof(float));  // bytes
  const char* const rule = "the bytes of a tensor are counted in 64 bits. Set the sizes right.";
  if (!product_fits({p.batch, p.seq_q, p.heads_q, widest_row}))
    return text("batch {} x seq_q {} x heads_q {} is too large; {}", p.batch, p.seq_q, p.heads_q, rule);
  if (!product_fits({p.batch, p.seq_kv, p.heads_q, widest_row}))
    return text("batch {} x seq_kv {} x heads_q {} is too large; {}", p.batch, p.seq_kv, p.heads_q, rule);
  if (!product_fits({p.total_q, p.heads_q, widest_row}))
    return text("total_q {} x heads_q {} is too large; {}", p.total_q, p.heads_q, rule);
  if (!product_fits({p.total_kv, p.heads_q, widest_row}))
    return text("total_kv {} x heads_q {} is too large; {}", p.total_kv, p.heads_q, rule);
  if (!product_fits({p.pages, p.page_size, p.heads_q, widest_row}))
    return text("pages {} x page_size {} x heads_q {} is too large; {}", p.pages, p.page_size, p.heads_q, rule);
  return {};
}

}  // namespace froghopper
