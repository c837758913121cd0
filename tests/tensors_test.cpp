// SPDX-License-Identifier: Apache-2.0
// Claims: tensors that fit a problem become views of their extents; each mistake in a pointer, a stride, a piece or a
// length has its own message, given here by its text; bind() follows no pointer.
#include "tests/support/somewhere.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <set>
#include <string>
#include <vector>

namespace froghopper {
namespace {

using namespace test;

constexpr int64_t huge = std::numeric_limits<int64_t>::max();

TEST(tensors, views_have_the_extents_of_the_problem) {
  const Problem p = problem_of(batched);
  const auto views = bind(p, tensors_of(p));
  ASSERT_TRUE(views) << views.failure().text;
  EXPECT_EQ(views->k.batch, 2);
  EXPECT_EQ(views->k.seq, 200);
  EXPECT_EQ(views->k.heads, 2);
  EXPECT_EQ(views->k.dim, 64);
  EXPECT_EQ(views->o.stride_seq, 8 * 128);
  EXPECT_EQ(views->lse.stride_batch, 8 * 100);
  EXPECT_EQ(views->lse.stride_head, 100);
  EXPECT_EQ(views->lse.stride_seq, 1);
}

TEST(tensors, packed_sequences_are_one_long_one) {
  const Problem p = problem_of(packed);
  fh_tensors t = tensors_of(p);
  t.q.stride_batch = -5;  // ignored
  const auto views = bind(p, t);
  ASSERT_TRUE(views) << views.failure().text;
  EXPECT_EQ(views->q.batch, 1);
  EXPECT_EQ(views->q.seq, 250);
  EXPECT_EQ(views->q.stride_batch, 0);
  EXPECT_EQ(views->v.seq, 500);
  EXPECT_EQ(views->lse.stride_batch, 0);
  EXPECT_EQ(views->lse.stride_head, 250);
}

TEST(tensors, lse_has_strides_of_its_own_where_one_is_set) {
  const Problem p = problem_of(batched);
  fh_tensors t = tensors_of(p);
  t.lse_stride_batch = 100 * 8, t.lse_stride_seq = 8, t.lse_stride_head = 1;
  const auto views = bind(p, t);
  ASSERT_TRUE(views) << views.failure().text;
  EXPECT_EQ(views->lse.at(1, 3, 2), 800 + 3 * 8 + 2);

  const Problem of_packed = problem_of(packed);
  fh_tensors rows = tensors_of(of_packed);
  rows.lse_stride_batch = -5;  // ignored
  rows.lse_stride_seq = 16, rows.lse_stride_head = 1;
  const auto bound = bind(of_packed, rows);
  ASSERT_TRUE(bound) << bound.failure().text;
  EXPECT_EQ(bound->lse.at(0, 249, 1), 249 * 16 + 1);

  // Where there are no rows, the address may be NULL as anybody's.
  fh_tensors none = tensors_of(problem_of("fwd bf16 b0 hq8 hkv2 sq100 skv200 d64"));
  none.lse = nullptr, none.lse_stride_seq = 8, none.lse_stride_head = 1;
  EXPECT_TRUE(bind(problem_of("fwd bf16 b0 hq8 hkv2 sq100 skv200 d64"), none));

  // A struct of an older header ends before them.
  t.size = offsetof(fh_tensors, lse_stride_batch);
  EXPECT_EQ(bind(p, t)->lse.at(1, 3, 2), 800 + 2 * 100 + 3);
}

TEST(tensors, strides_of_extents_of_one_do_not_matter) {
  const Problem p = problem_of("fwd bf16 b1 hq1 hkv1 sq1 skv1 d64");
  fh_tensors t = tensors_of(p);
  t.q.stride_batch = t.o.stride_seq = t.k.stride_head = -1;
  t.v.stride_seq = huge;
  const auto views = bind(p, t);
  ASSERT_TRUE(views) << views.failure().text;
  EXPECT_EQ(views->o.stride_seq, 0);
  EXPECT_EQ(views->v.stride_seq, 0);
}

TEST(tensors, empty_tensors_need_no_address) {
  const Problem p = problem_of("fwd bf16 b2 hq2 hkv2 sq5 skv0 d64");
  fh_tensors t = tensors_of(p);
  t.k.data = t.v.data = nullptr;
  EXPECT_TRUE(bind(p, t));
  const Problem none = problem_of("fwd bf16 b0 hq2 hkv2 sq5 skv5 d64 seqused");
  fh_tensors nothing = fh_tensors_init();
  EXPECT_TRUE(bind(none, nothing));
}

TEST(tensors, scales_are_one_a_block_of_rows_and_may_be_shared) {
  const Problem p = problem_of("fwd e4m3 b3 hq8 hkv2 sq100 skv300 d64 dv128 varlen tq250 tkv500 scales128");
  const auto views = bind(p, tensors_of(p));
  ASSERT_TRUE(views) << views.failure().text;
  EXPECT_EQ(views->q.element, Element::e4m3);
  EXPECT_EQ(views->o.element, Element::bf16);
  EXPECT_EQ(views->scale_q.batch, 3);  // sequences, also where they are packed
  EXPECT_EQ(views->scale_q.seq, 1);
  EXPECT_EQ(views->scale_q.heads, 8);
  EXPECT_EQ(views->scale_v.seq, 3);
  EXPECT_EQ(views->scale_v.stride_batch, 6);
  fh_tensors shared = tensors_of(p);
  shared.scale_k = {somewhere<void>(17), 0, 0, 0};
  shared.scale_v = {somewhere<void>(18), 0, 0, 1};
  EXPECT_TRUE(bind(p, shared));
}

TEST(tensors, a_column_of_v_has_a_scale) {
  const Problem p = problem_of("fwd bf16 kv=e5m2 b3 hq8 hkv2 sq100 skv300 d64 dv128 scales128 vcolumns");
  fh_tensors t = tensors_of(p);
  t.scale_v = {somewhere<void>(18), 2 * 128, 0, 128};
  const auto views = bind(p, t);
  ASSERT_TRUE(views) << views.failure().text;
  EXPECT_EQ(views->scale_v.seq, 1);
  EXPECT_EQ(views->scale_v.dim, 128);
  EXPECT_EQ(views->scale_k.seq, 3);
  EXPECT_EQ(views->scale_q.data, nullptr);
}

struct BadTensors {
  const char* line;
  std::function<void(fh_tensors&)> spoil;
  const char* message;
};

const BadTensors bad_tensors[] = {
    {batched, [](fh_tensors& t) { t.size = 8; },
     "fh_tensors.size is 8; it must hold sizeof(fh_tensors). Start from fh_tensors_init()."},
    {batched, [](fh_tensors& t) { t.v.data = nullptr; },
     "v.data is NULL; it has 2 x 200 x 2 x 128 elements. Point it to them."},
    {batched, [](fh_tensors& t) { t.k.data = static_cast<char*>(t.k.data) + 1; },
     "k.data must be at a multiple of 2 bytes, as its elements have so many, but is at address 0x200000001. Align "
     "it."},
    {batched, [](fh_tensors& t) { t.q.stride_head = -64; },
     "q.stride_head is -64; strides are not negative. Point q.data to the first element and count up."},
    {batched, [](fh_tensors& t) { t.k.stride_batch = huge; },
     "k.stride_batch is 9223372036854775807 with 1 step; that is past the end of memory. Strides count elements, not "
     "bytes. Without gaps the strides of batch, seq and head are 25600, 128 and 64."},
    {batched,
     [](fh_tensors& t) {
       t.k = {t.k.data, 0, 0, 0};
     },
     "all strides of k are 0, so its 2 x 200 x 2 rows would be the same one. Without gaps the strides of batch, seq "
     "and head are 25600, 128 and 64."},
    {batched, [](fh_tensors& t) { t.o.stride_seq = 0; },
     "o.stride_seq is 0, but 128 elements lie within one step of it, so rows of o would overlap. Without gaps the "
     "strides of batch, seq and head are 102400, 1024 and 128."},
    {batched, [](fh_tensors& t) { t.o.stride_seq = 8 * 128 - 8; },
     "o.stride_seq is 1016, but 1024 elements lie within one step of it, so rows of o would overlap. Without gaps "
     "the strides of batch, seq and head are 102400, 1024 and 128."},
    {batched, [](fh_tensors& t) { t.o.data = t.v.data; },
     "o and v are at the same address 0x300000000; o is written while v is still read. Give o its own memory."},
    {batched, [](fh_tensors& t) { t.lse = static_cast<float*>(t.q.data); },
     "lse and q are at the same address 0x100000000; lse is written while q is still read. Give lse its own memory."},
    {batched, [](fh_tensors& t) { t.lse = static_cast<float*>(t.o.data); },
     "lse and o are at the same address 0x400000000; both are written. Give lse its own memory."},
    {batched, [](fh_tensors& t) { t.lse = reinterpret_cast<float*>(uintptr_t{0x1002}); },
     "lse must be at a multiple of 4 bytes, as its elements have so many, but is at address 0x1002. Align it."},
    {batched, [](fh_tensors& t) { t.lse_stride_batch = 800, t.lse_stride_seq = 4, t.lse_stride_head = 1; },
     "lse_stride_seq is 4, but 8 elements lie within one step of it, so rows of lse would overlap. Without gaps the "
     "strides of batch, seq and head are 800, 1 and 100."},
    {batched, [](fh_tensors& t) { t.lse_stride_batch = 100, t.lse_stride_seq = 0, t.lse_stride_head = 100; },
     "lse_stride_seq is 0, but 1 element lies within one step of it, so rows of lse would overlap. Without gaps the "
     "strides of batch, seq and head are 800, 1 and 100."},
    {batched, [](fh_tensors& t) { t.lse_stride_batch = 800, t.lse_stride_seq = 8, t.lse_stride_head = -1; },
     "lse_stride_head is -1; strides are not negative. Point lse to the first element and count up."},
    {batched, [](fh_tensors& t) { t.lse = nullptr, t.lse_stride_seq = 8; },
     "lse has strides and is NULL; they would be ignored. Set lse, or its strides to 0."},
    {packed, [](fh_tensors& t) { t.cu_seqlens_kv = nullptr; },
     "cu_seqlens_kv is NULL; a problem with varlen needs the first row of each sequence and the end, batch + 1 "
     "values. Set it."},
    {batched, [](fh_tensors& t) { t.cu_seqlens_q = somewhere<int32_t>(6); },
     "cu_seqlens_q is set, but the problem has no varlen, so it would be ignored. Set varlen in the problem, or "
     "leave cu_seqlens_q NULL."},
    {"fwd bf16 b2 hq8 hkv2 sq100 skv200 d64 seqused", [](fh_tensors& t) { t.seqused_kv = nullptr; },
     "seqused_q and seqused_kv are NULL; a problem with seqused needs one of them. Set seqused_kv, the "
     "rows of k and v that count, or seqused_q."},
    {batched, [](fh_tensors& t) { t.seqused_q = somewhere<int32_t>(8); },
     "seqused_q is set, but the problem has no seqused, so it would be ignored. Set seqused in the problem, or leave "
     "seqused_q NULL."},
    {batched, [](fh_tensors& t) { t.seqused_kv = somewhere<int32_t>(8); },
     "seqused_kv is set, but the problem has no seqused, so it would be ignored. Set seqused in the problem, or "
     "leave seqused_kv NULL."},
    {batched, [](fh_tensors& t) { t.norm_q.data = somewhere<float>(8); },
     "norm_q is set, but op is FH_FORWARD, which has no norm_q. Set op to FH_APPEND, or leave norm_q NULL."},
    {"bwd bf16 b2 hq8 hkv2 sq100 skv200 d64", [](fh_tensors& t) { t.lse = nullptr; },
     "lse is NULL; a problem with a backward pass needs one value for each row and head. Set it."},
    {"bwd bf16 b2 hq8 hkv2 sq100 skv200 d64", [](fh_tensors& t) { t.grad_o.data = nullptr; },
     "grad_o.data is NULL; it has 2 x 100 x 8 x 64 elements. Point it to them."},
    {"bwd bf16 b2 hq8 hkv2 sq100 skv200 d64",
     [](fh_tensors& t) {
       t.o = {t.o.data, 0, 0, 0};
     },
     "all strides of o are 0, so its 2 x 100 x 8 rows would be the same one. Without gaps the strides of batch, seq "
     "and head are 51200, 512 and 64."},
    {"bwd bf16 b2 hq8 hkv2 sq100 skv200 d64 acc", [](fh_tensors& t) { t.grad_k.stride_seq = 64; },
     "grad_k.stride_seq is 64, but 128 elements lie within one step of it, so rows of grad_k would overlap. "
     "Without gaps the strides of batch, seq and head are 25600, 128 and 64."},
    {"bwd bf16 b2 hq8 hkv2 sq100 skv100 d64", [](fh_tensors& t) { t.grad_q = t.q; },
     "grad_q and q are at the same address 0x100000000; grad_q is written while q is still read. Give grad_q its own "
     "memory."},
    {"bwd bf16 b2 hq8 hkv2 sq100 skv200 d64", [](fh_tensors& t) { t.grad_v = t.grad_k; },
     "grad_v and grad_k are at the same address 0xc00000000; both are written. Give grad_v its own memory."},
    {"bwd bf16 b2 hq8 hkv2 sq100 skv200 d64 sink", [](fh_tensors& t) { t.grad_sink = nullptr; },
     "grad_sink is NULL; a problem with sink in a backward pass needs one value for each query head. Set it."},
    {"fwd bf16 b2 hq8 hkv2 sq100 skv200 d64 sink", [](fh_tensors& t) { t.grad_sink = somewhere<float>(15); },
     "grad_sink is set, but the problem has no sink in a backward pass, so it would be ignored. Set op to "
     "FH_BACKWARD and sink in the problem, or leave grad_sink NULL."},
    {batched, [](fh_tensors& t) { t.grad_o = t.q; },
     "grad_o is set, but the problem has no backward pass, so it would be ignored. Set op to FH_BACKWARD in the "
     "problem, or leave grad_o NULL."},
    {"fwd bf16 b2 hq8 hkv2 sq100 skv200 d64 sink", [](fh_tensors& t) { t.sink = nullptr; },
     "sink is NULL; a problem with sink needs one value for each query head. Set it."},
    {batched, [](fh_tensors& t) { t.sink = somewhere<float>(9); },
     "sink is set, but the problem has no sink, so it would be ignored. Set sink in the problem, or leave sink "
     "NULL."},
    {"fwd e4m3 b2 hq8 hkv2 sq100 skv200 d64 scales128", [](fh_tensors& t) { t.scale_k.data = nullptr; },
     "scale_k.data is NULL; it has 2 x 2 x 2 x 1 elements. Point it to them."},
    {"fwd e4m3 b2 hq8 hkv2 sq100 skv200 d64 scales128", [](fh_tensors& t) { t.scale_q.data = somewhere<void>(0); },
     "scale_q.data is NULL; it has 2 x 1 x 8 x 1 elements. Point it to them."},
    {"fwd bf16 kv=e4m3 b2 hq8 hkv2 sq100 skv200 d64", [](fh_tensors& t) { t.scale_q.data = somewhere<void>(16); },
     "scale_q is set, but the problem has no 8-bit q, so it would be ignored. Set dtype to FH_E4M3 or FH_E5M2 in the "
     "problem, or leave scale_q NULL."},
    {batched, [](fh_tensors& t) { t.scale_v.data = somewhere<void>(18); },
     "scale_v is set, but the problem has no 8-bit v, so it would be ignored. Set dtype_kv to FH_E4M3 or FH_E5M2 in "
     "the problem, or leave scale_v NULL."},
    {batched, [](fh_tensors& t) { t.cache_k = t.k; },
     "cache_k is set, but the problem has no new rows to append, so it would be ignored. Set op to FH_APPEND in the "
     "problem, or leave cache_k NULL."},
    {batched, [](fh_tensors& t) { t.quantised_q = t.q; },
     "quantised_q is set, but the problem has no 8-bit copies, so it would be ignored. Set op to FH_QUANTISE in the "
     "problem, or leave quantised_q NULL."},
};

TEST(tensors, every_mistake_has_its_own_message) {
  std::set<std::string> messages;
  for (const BadTensors& bad : bad_tensors) {
    const Problem p = problem_of(bad.line);
    fh_tensors t = tensors_of(p);
    ASSERT_TRUE(bind(p, t));
    bad.spoil(t);
    const auto views = bind(p, t);
    ASSERT_FALSE(views) << "accepted, but expected: " << bad.message;
    EXPECT_EQ(views.failure().text, bad.message);
    EXPECT_EQ(views.failure().status, FH_INVALID_TENSOR);
    EXPECT_TRUE(messages.insert(bad.message).second) << "twice: " << bad.message;
  }
}

struct Lengths {
  std::vector<int32_t> cu_q{0, 100, 150, 250}, cu_kv{0, 0, 200, 400}, used_q{100, 0, 99}, used_kv{0, 200, 1};
};

Views views_of(const Problem& p, const Lengths& lengths) {
  fh_tensors t = tensors_of(p);
  if (p.varlen) t.cu_seqlens_q = lengths.cu_q.data(), t.cu_seqlens_kv = lengths.cu_kv.data();
  if (p.seqused) t.seqused_q = lengths.used_q.data(), t.seqused_kv = lengths.used_kv.data();
  auto views = bind(p, t);
  EXPECT_TRUE(views) << views.failure().text;
  return *views;
}

TEST(tensors, rows_of_packed_sequences_come_from_cu_seqlens) {
  const Problem p = problem_of(std::string(packed) + " seqused");
  const Lengths lengths;
  const Views views = views_of(p, lengths);
  ASSERT_TRUE(check_lengths(p, views)) << check_lengths(p, views).failure().text;
  const Rows q = rows_q(p, views, 2), kv = rows_kv(p, views, 1);
  EXPECT_EQ(q.first, 150);
  EXPECT_EQ(q.extent, 100);
  EXPECT_EQ(q.used, 99);
  EXPECT_EQ(kv.first, 0);
  EXPECT_EQ(kv.extent, 200);
  EXPECT_EQ(kv.used, 200);
}

TEST(tensors, rows_of_batched_sequences_are_all_alike) {
  const Problem p = problem_of(batched);
  const Views views = views_of(p, {});
  ASSERT_TRUE(check_lengths(p, views));
  EXPECT_EQ(rows_q(p, views, 1).first, 0);
  EXPECT_EQ(rows_q(p, views, 1).extent, 100);
  EXPECT_EQ(rows_kv(p, views, 1).used, 200);
}

TEST(tensors, a_total_that_was_forgotten_is_named_with_its_number) {
  Problem p = problem_of(packed);
  const Lengths lengths;
  const Views views = views_of(p, lengths);
  p.total_kv = 0;
  const auto checked = check_lengths(p, views);
  ASSERT_FALSE(checked);
  EXPECT_EQ(checked.failure().text,
            "cu_seqlens_kv[2] is 200 and total_kv is 0; it counts the rows of all sequences. Set total_kv to 400.");
}

struct BadLengths {
  std::function<void(Lengths&)> spoil;
  const char* message;
};

const BadLengths bad_lengths[] = {
    {[](Lengths& l) { l.cu_q[0] = 1; },
     "cu_seqlens_q[0] is 1; the first sequence begins at row 0. Set it to 0. If these are lengths, give their "
     "sums behind a 0."},
    {[](Lengths& l) { l.cu_q[2] = 90; },
     "cu_seqlens_q falls from 100 to 90 at entry 2; sequences lie end to end. Let it rise."},
    {[](Lengths& l) { l.cu_q[1] = 0, l.cu_q[2] = 50, l.cu_q[3] = 0; },
     "cu_seqlens_q falls from 50 to 0 at entry 3; sequences lie end to end. Let it rise. Every other one is 0; if "
     "they "
     "have 64 bits, convert them to int32."},
    {[](Lengths& l) { l.cu_kv[1] = 5000; },
     "cu_seqlens_kv falls from 5000 to 200 at entry 2; sequences lie end to end. Let it rise."},
    {[](Lengths& l) { l.cu_kv[3] = 501; },
     "cu_seqlens_kv[3] is 501 and total_kv is 500; no sequence reaches past the total. Give all rows, or end "
     "earlier."},
    {[](Lengths& l) { l.cu_q[1] = 120; },
     "sequence 0 has 120 rows and seq_q is 100; seq_q is an upper bound on all of them. Set seq_q to 120."},
    {[](Lengths& l) { l.cu_q[1] = 101, l.cu_q[2] = 250; },
     "sequence 1 has 149 rows and seq_q is 100; seq_q is an upper bound on all of them. Set seq_q to 149."},
    {[](Lengths& l) { l.used_q[1] = 51; },
     "seqused_q[1] is 51 and the sequence has 50 rows; at most all of them count. Use 0 to 50."},
    {[](Lengths& l) { l.cu_q[1] = 0, l.used_q[0] = 1; },
     "seqused_q[0] is 1 and the sequence has 0 rows; at most all of them count. Use 0."},
    {[](Lengths& l) { l.used_kv[2] = -1; },
     "seqused_kv[2] is -1 and the sequence has 200 rows; at most all of them count. Use 0 to 200."},
};

// Left padding: what is before a sequence, and between two of them, belongs to none.
TEST(tensors, keys_may_begin_anywhere_where_seqused_says_how_many_there_are) {
  const auto checked = [](const std::string& line, const Lengths& lengths, bool used = true) {
    const Problem p = problem_of(line);
    Views views = views_of(p, lengths);
    if (!used) views.seqused_kv.data = nullptr;
    const auto found = check_lengths(p, views);
    return found ? std::string() : found.failure().text;
  };
  const std::string forward = std::string(packed) + " seqused";
  Lengths padded;
  padded.cu_kv[0] = 7, padded.cu_kv[1] = 290, padded.cu_kv[2] = 490, padded.cu_kv[3] = 500;
  padded.used_kv[0] = 200, padded.used_kv[1] = 3, padded.used_kv[2] = 10;
  EXPECT_EQ(checked(forward, padded), "");
  const Problem p = problem_of(forward);
  EXPECT_EQ(rows_kv(p, views_of(p, padded), 0).first, 7);
  EXPECT_EQ(rows_kv(p, views_of(p, padded), 0).used, 200);
  EXPECT_EQ(
      checked(forward, padded, /*used=*/false),
      "cu_seqlens_kv[0] is 7; the first sequence begins at row 0. Set it to 0. If these are lengths, give their "
      "sums behind a 0.");
  EXPECT_EQ(
      checked("bwd" + forward.substr(3), padded),
      "cu_seqlens_kv[0] is 7; the first sequence begins at row 0. Set it to 0. If these are lengths, give their "
      "sums behind a 0.");
  padded.used_kv[0] = 201;
  EXPECT_EQ(checked(forward, padded),
            "seqused_kv[0] is 201 and seq_kv is 200; seq_kv is an upper bound on all of them. Set seq_kv to 201.");
  padded.cu_kv[0] = -1;
  EXPECT_EQ(checked(forward, padded),
            "cu_seqlens_kv[0] is -1; no sequence begins before row 0. Set it to 0 or more.");
}

TEST(tensors, bad_lengths_are_refused) {
  const Problem p = problem_of(std::string(packed) + " seqused");
  for (const BadLengths& bad : bad_lengths) {
    Lengths lengths;
    bad.spoil(lengths);
    const auto checked = check_lengths(p, views_of(p, lengths));
    ASSERT_FALSE(checked) << "accepted, but expected: " << bad.message;
    EXPECT_EQ(checked.failure().text, bad.message);
    EXPECT_EQ(checked.failure().status, FH_INVALID_TENSOR);
  }
}

}  // namespace
}  // namespace froghopper
