// SPDX-License-Identifier: Apache-2.0
// problem: the rules about sizes: which there are, which go together, and that no product of them is too large.
#include <algorithm>
#include <initializer_list>

#include "src/base/text.hpp"
#include "src/problem/finding.hpp"

namespace froghopper {

Finding sizes(const fh_problem& p) {
  const struct {
    const char* name;
    int64_t value;
  } all[] = {
      {"batch", p.batch}, {"seq_q", p.seq_q}, {"seq_kv", p.seq_kv}, {"total_q", p.total_q}, {"total_kv", p.total_kv}};
  for (const auto& size : all)
    if (size.value < 0) return text("{} is {}; sizes are not negative. Use 0 for none.", size.name, size.value);
  if (p.max_sms < 0) return text("max_sms is {}; it is a number of SMs or threads. Use 0 for all.", p.max_sms);
  return {};
}

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
  if (p.page_size < 0)
    return text("page_size is {}; it counts the rows of a page. Use 0 for k and v without pages.", p.page_size);
  if (p.pages < 0) return text("pages is {}; it counts the pages of the pool. Use 0 or more.", p.pages);
  if (p.page_size == 0 && p.pages != 0)
    return text("pages is {} and page_size is 0; k and v are not in pages then. Set page_size, or pages to 0.",
                p.pages);
  if (p.page_size == 0) return {};
  if (p.op != FH_FORWARD)
    return not_computed(
        text("page_size is {} and op is {}; only the forward pass reads pages. Copy k and v to dense tensors, or set "
             "op to FH_FORWARD.",
             p.page_size, name_of(p.op)));
  if (p.total_kv != 0)
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
  // Of more columns than 512 there is a rule of its own.
  const int64_t columns = std::clamp<int64_t>(std::max(p.dim_qk, p.dim_v), 256, 512);
  const int64_t widest_row = columns * static_cast<int64_t>(sizeof(float));  // bytes
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
