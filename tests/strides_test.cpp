// SPDX-License-Identifier: Apache-2.0
// Claims: which orders of axes and which shared rows are accepted; where all strides were forgotten, or where a TMA map
// cannot count rows, the message has a way out that works.
#include "src/base/text.hpp"
#include "src/runtime/tensor_map.hpp"
#include "tests/support/dense_view.hpp"
#include "tests/support/somewhere.hpp"

namespace froghopper {
namespace {

using namespace test;

TEST(strides, inputs_may_be_read_twice) {
  const Problem p = problem_of("fwd f16 b2 hq8 hkv2 sq100 skv100 d64");
  fh_tensors t = tensors_of(p);
  t.k.stride_batch = t.k.stride_head = 0;  // broadcast
  t.v = t.k;                               // k and v the same
  EXPECT_TRUE(bind(p, t));
}

TEST(strides, any_order_of_the_axes_of_o_is_allowed) {
  const Problem p = problem_of("fwd f16 b2 hq8 hkv2 sq100 skv100 d64");
  fh_tensors t = tensors_of(p);
  t.o.stride_batch = 8 * 100 * 64, t.o.stride_head = 100 * 64, t.o.stride_seq = 64;  // [batch, heads, seq, dim]
  EXPECT_TRUE(bind(p, t));
  t.o.stride_seq = 2 * 8 * 64, t.o.stride_batch = 8 * 64, t.o.stride_head = 64;  // [seq, batch, heads, dim]
  EXPECT_TRUE(bind(p, t));
  t.o.stride_head = 3 * 64, t.o.stride_seq = 8 * 3 * 64, t.o.stride_batch = 100 * 8 * 3 * 64;  // a slice of qkv
  EXPECT_TRUE(bind(p, t));
}

TEST(strides, rows_that_are_read_may_be_shared) {
  Problem p = problem_of(batched);
  fh_tensors t = tensors_of(p);
  t.q.stride_seq = t.q.stride_head = 0, t.k.stride_batch = 0, t.v.stride_head = t.v.stride_batch = 0;
  EXPECT_TRUE(bind(p, t));
  p = problem_of("fwd bf16 b1 hq8 hkv2 sq1 skv1 d64");  // a row for each head
  t = tensors_of(p);
  t.q = {t.q.data, 64, 64, 0};  // of axes of one row no stride counts, but it tells that they were not forgotten
  EXPECT_TRUE(bind(p, t));
  p = problem_of("bwd bf16 b2 hq8 hkv2 sq100 skv200 d64");
  t = tensors_of(p);
  t.grad_o = {t.grad_o.data, 0, 0, 0};  // the gradient of a sum over all rows
  EXPECT_TRUE(bind(p, t));
  p = problem_of("fwd bf16 kv=e4m3 b2 hq8 hkv2 sq100 skv200 d64 scales128");
  t = tensors_of(p);
  for (fh_tensor* const one : {&t.scale_k, &t.scale_v}) *one = {one->data, 0, 0, 0};
  EXPECT_TRUE(bind(p, t)) << "one number for the whole tensor";
  p = problem_of("fwd bf16 b2 hq1 hkv1 sq100 skv200 d64 alibi");
  t = tensors_of(p);
  t.alibi_slopes = {t.alibi_slopes.data, 0, 0, 0};
  EXPECT_TRUE(bind(p, t)) << "the slope of the only head";
}

// What says of a tensor without strides that they were forgotten. Scales may be one number for all.
TEST(strides, that_were_forgotten_are_refused_where_one_row_cannot_be_meant) {
  const struct {
    const char *line, *name, *rest;
    fh_tensor fh_tensors::*tensor;
  } all[] = {
      {"fwd bf16 b2 hq8 hkv2 sq100 skv200 d64 gate", "gate",
       "2 x 100 x 8 rows would be the same one. Without gaps the strides of batch, seq and head are 51200, 512 and "
       "64.",
       &fh_tensors::gate},
      {"bwd bf16 b2 hq8 hkv2 sq100 skv200 d64 gate", "gate",
       "2 x 100 x 8 rows would be the same one. Without gaps the strides of batch, seq and head are 51200, 512 and "
       "64.",
       &fh_tensors::gate},
      {"fwd bf16 kv=e4m3 b2 hq8 hkv2 sq100 skv200 d64 smooth", "mean_k",
       "2 x 1 x 2 rows would be the same one. Without gaps the strides of batch, seq and head are 128, 128 and 64.",
       &fh_tensors::mean_k},
      {"fwd bf16 kv=e4m3 b2 hq8 hkv2 sq100 skv200 d64 smooth", "mean_v",
       "2 x 1 x 2 rows would be the same one. Without gaps the strides of batch, seq and head are 128, 128 and 64.",
       &fh_tensors::mean_v},
      {"fwd bf16 b1 hq8 hkv2 sq1 skv200 d64", "q",
       "1 x 1 x 8 rows would be the same one. Without gaps the strides of batch, seq and head are 512, 512 and 64.",
       &fh_tensors::q},
      {"fwd bf16 b2 hq1 hkv1 sq1 skv200 d64", "q",
       "2 x 1 x 1 rows would be the same one. Without gaps the strides of batch, seq and head are 64, 64 and 64.",
       &fh_tensors::q},
      {"fwd bf16 kv=e4m3 b1 hq8 hkv2 sq100 skv200 d64 smooth", "mean_k",
       "1 x 1 x 2 rows would be the same one. Without gaps the strides of batch, seq and head are 128, 128 and 64.",
       &fh_tensors::mean_k},
      {"fwd bf16 b2 hq8 hkv2 sq100 skv200 d64 alibi", "alibi_slopes",
       "2 x 1 x 8 rows would be the same one. Where each head has a slope, the same in all sequences, they are 0, 0 "
       "and 1.",
       &fh_tensors::alibi_slopes},
      {"bwd bf16 b1 hq8 hkv2 sq100 skv200 d64 alibi", "alibi_slopes",
       "1 x 1 x 8 rows would be the same one. Where each head has a slope, the same in all sequences, they are 0, 0 "
       "and 1.",
       &fh_tensors::alibi_slopes},
  };
  for (const auto& [line, name, rest, tensor] : all) {
    const Problem p = problem_of(line);
    fh_tensors t = tensors_of(p);
    ASSERT_TRUE(bind(p, t)) << line << ": " << bind(p, t).failure().text;
    t.*tensor = {(t.*tensor).data, 0, 0, 0};
    const auto views = bind(p, t);
    ASSERT_FALSE(views) << line << ": " << name;
    EXPECT_EQ(views.failure().text, text("all strides of {} are 0, so its {}", name, rest));
  }
}

// Named before memory is compared: in one heap a tensor that is written may lie where the pool would have its pages.
TEST(strides, of_pages_that_were_forgotten_are_refused_by_name) {
  const char* const paged = "fwd bf16 b1 hq4 hkv2 sq1 skv100 d64 page16 pages7";
  const char* const scaled = "fwd bf16 kv=e4m3 b1 hq4 hkv2 sq1 skv100 d64 page16 pages7 tokenscales";
  const struct {
    const char *line, *name;
    fh_tensor fh_tensors::*tensor;
    int64_t stride_seq, stride_head, dense;
  } all[] = {{paged, "k", &fh_tensors::k, 128, 64, 16 * 2 * 64},
             {paged, "v", &fh_tensors::v, 64, 16 * 64, 16 * 2 * 64},
             {"fwd bf16 b1 hq4 hkv1 sq1 skv7 d64 page1 pages7", "k", &fh_tensors::k, 0, 0, 64},
             {scaled, "scale_k", &fh_tensors::scale_k, 2, 1, 16 * 2}};  // of rows, which lie as theirs do
  for (const auto& [line, name, tensor, stride_seq, stride_head, dense] : all) {
    const Problem p = problem_of(line);
    fh_tensors t = tensors_of(p);
    t.*tensor = {(t.*tensor).data, 0, stride_seq, stride_head};
    t.o.data = static_cast<char*>((t.*tensor).data) + 64;  // touches the first page
    const auto views = bind(p, t);
    ASSERT_FALSE(views) << line;
    EXPECT_EQ(views.failure().text,
              text("{}.stride_batch is 0, but is the stride of pages where page_size is set, and the pool has 7 "
                   "pages, which would all be the same one. Without gaps it is {}.",
                   name, dense));
  }
  // One scale may be that of the whole pool.
  const Problem p = problem_of(scaled);
  fh_tensors t = tensors_of(p);
  t.scale_k.stride_batch = t.scale_k.stride_seq = t.scale_k.stride_head = 0;
  EXPECT_TRUE(bind(p, t)) << bind(p, t).failure().text;
}

// Pages of one row have no stride of rows, so that they are counted in 16 bytes.
TEST(strides, beyond_what_a_map_counts_are_refused_with_a_way_out) {
  const auto refusal = [](const View& given) {
    const auto shape = runtime::ragged_shape({"k", given}, 64, nullptr);
    return shape ? std::string() : shape.failure().text;
  };
  EXPECT_NE(refusal(view(int64_t{1} << 27, 1, 8, 128)).find("Use pages of 2 rows or more"), std::string::npos);
  EXPECT_EQ(refusal(view(int64_t{1} << 26, 2, 8, 128)), "") << "as many rows, on the way out";
  EXPECT_NE(refusal(view(int64_t{1} << 27, 16, 1, 8)).find("divide them between calls"), std::string::npos);
  EXPECT_EQ(refusal(view(int64_t{1} << 26, 16, 1, 8)), "");
}

}  // namespace
}  // namespace froghopper
