// SPDX-License-Identifier: Apache-2.0
// Claims: whether tensors have a byte in common is answered as by marking each byte; what is written shares none with
// any other tensor, large or small, and slices of one buffer that lie between each other are accepted.
#include <algorithm>
#include <chrono>
#include <functional>
#include <random>
#include <vector>

#include "src/problem/overlap.hpp"
#include "tests/support/somewhere.hpp"

namespace froghopper {
namespace {

using namespace test;

constexpr uintptr_t begin = 1 << 16;

std::vector<bool> marked(const View& view, size_t bytes) {
  std::vector<bool> mine(bytes);
  for (int64_t b = 0; b < view.batch; ++b)
    for (int64_t row = 0; row < view.seq; ++row)
      for (int64_t head = 0; head < view.heads; ++head)
        for (int64_t byte = 0; byte < view.dim * size_of(view.element); ++byte)
          mine[reinterpret_cast<uintptr_t>(view.address(b, row, head)) - begin + byte] = true;
  return mine;
}

TEST(overlap, is_what_marking_bytes_finds) {
  std::mt19937 random(1);
  const auto up_to = [&](int64_t most) { return std::uniform_int_distribution<int64_t>(0, most)(random); };
  const auto any = [&] {
    View view;
    view.element = std::array{Element::e4m3, Element::bf16, Element::f32}[up_to(2)];
    view.batch = 1 + up_to(2), view.seq = 1 + up_to(5), view.heads = 1 + up_to(3), view.dim = 1 + up_to(3);
    view.stride_batch = up_to(60), view.stride_seq = up_to(30), view.stride_head = up_to(12);
    view.data = reinterpret_cast<void*>(begin + up_to(150) / size_of(view.element) * size_of(view.element));
    return view;
  };
  int found[2] = {};
  for (int round = 0; round < 30'000; ++round) {
    const View a = any(), b = any();
    constexpr size_t bytes = 2000;
    const std::vector<bool> of_a = marked(a, bytes), of_b = marked(b, bytes);
    bool common = false;
    for (size_t i = 0; i < bytes; ++i) common |= of_a[i] && of_b[i];
    ASSERT_EQ(overlap_of(a, b), common ? Overlap::some : Overlap::none) << "round " << round;
    ASSERT_EQ(overlap_of(b, a), overlap_of(a, b)) << "round " << round;
    ++found[common];
  }
  EXPECT_GT(std::min(found[0], found[1]), 3000);
}

// q, k, v and o side by side in every row of one tensor, as a projection writes them.
fh_tensors slices_of_one(const Problem& p) {
  fh_tensors t = tensors_of(p);
  const int64_t row = (2 * p.heads_q + 2 * p.heads_kv) * p.dim_qk;
  auto* const buffer = somewhere<uint16_t>(100);
  const auto slice = [&](int64_t first) { return fh_tensor{buffer + first, row * p.seq_q, row, p.dim_qk}; };
  t.q = slice(0);
  t.k = slice(p.heads_q * p.dim_qk);
  t.v = slice((p.heads_q + p.heads_kv) * p.dim_qk);
  t.o = slice((p.heads_q + 2 * p.heads_kv) * p.dim_qk);
  return t;
}

TEST(overlap, slices_of_one_buffer_lie_between_each_other) {
  const Problem p = problem_of("fwd bf16 b3 hq8 hkv2 sq1000 skv1000 d64");
  fh_tensors t = slices_of_one(p);
  auto views = bind(p, t);
  EXPECT_TRUE(views) << views.failure().text;
  t.lse = reinterpret_cast<float*>(static_cast<uint16_t*>(t.o.data) + 3 * 1000 * 20 * 64);  // behind the last row
  EXPECT_TRUE(bind(p, t));
  t.o.data = static_cast<uint16_t*>(t.o.data) - 8;  // into the last columns of v
  views = bind(p, t);
  ASSERT_FALSE(views);
  EXPECT_EQ(views.failure().text,
            "o at 0x64000005f0 to 0x6400752fef and v at 0x6400000500 to 0x6400752bff have memory in common; o is "
            "written while v is still read. Give o its own memory, or check the strides and sizes of both.");

  // Heads of q and o in turns, of two tensors of which one is turned around, and batches in turns.
  t = tensors_of(p);
  t.q = {somewhere<uint16_t>(100), 1000 * 8 * 128, 8 * 128, 128};
  t.o = {somewhere<uint16_t>(100) + 64, 1000 * 8 * 128, 8 * 128, 128};
  EXPECT_TRUE(bind(p, t));
  t.q = {somewhere<uint16_t>(100), 2 * 1000 * 8 * 64, 8 * 64, 64};
  t.o = {somewhere<uint16_t>(100) + 1000 * 8 * 64, 2 * 1000 * 8 * 64, 64, 1000 * 64};
  EXPECT_TRUE(bind(p, t));
  t.o.data = static_cast<uint16_t*>(t.o.data) - 64;
  EXPECT_FALSE(bind(p, t));
}

// However large, and where no search may go through all of it.
TEST(overlap, is_found_quickly) {
  const Problem p = problem_of("fwd bf16 b100 hq64 hkv64 sq1000000 skv1000000 d64");
  const fh_tensors t = slices_of_one(p);
  View odd{somewhere<void>(1), Element::bf16, 1000, 1001, 1003, 8, 1'999'993, 1999, 17}, other = odd;
  other.data = somewhere<char>(1) + 1'000'002;
  other.stride_batch = 1'999'979, other.stride_seq = 1987, other.stride_head = 19;
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 100; ++i) {
    EXPECT_TRUE(bind(p, t));
    overlap_of(odd, other);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(1));
}

struct Shared {
  const char* line;
  std::function<void(fh_tensors&)> spoil;
  const char* message;
};

template <class T>
T* inside(const fh_tensor& tensor, int64_t bytes) {
  return reinterpret_cast<T*>(static_cast<char*>(tensor.data) + bytes);
}

const Shared all_shared[] = {
    {batched, [](fh_tensors& t) { t.o.data = inside<void>(t.q, 16); },
     "o at 0x100000010 to 0x10006400f and q at 0x100000000 to 0x100031fff have memory in common; o is written "
     "while q is still read. Give o its own memory, or check the strides and sizes of both."},
    {batched, [](fh_tensors& t) { t.o.data = inside<void>(t.q, -16); },
     "o at 0xfffffff0 to 0x100063fef and q at 0x100000000 to 0x100031fff have memory in common; o is written "
     "while q is still read. Give o its own memory, or check the strides and sizes of both."},
    {batched, [](fh_tensors& t) { t.lse = inside<float>(t.o, 2 * 2 * 100 * 8 * 128 - 4); },
     "lse at 0x400063ffc to 0x4000658fb and o at 0x400000000 to 0x400063fff have memory in common; both are "
     "written. Give lse its own memory, or check the strides and sizes of both."},
    {"fwd bf16 b2 hq8 hkv2 sq100 skv200 d64 acc", [](fh_tensors& t) { t.lse = inside<float>(t.o, 64); },
     "lse at 0x400000040 to 0x40000193f and o at 0x400000000 to 0x400063fff have memory in common; both are "
     "written. Give lse its own memory, or check the strides and sizes of both."},
    {packed, [](fh_tensors& t) { t.cu_seqlens_kv = inside<int32_t>(t.o, 64); },
     "o at 0x400000000 to 0x40007cfff and cu_seqlens_kv at 0x400000040 to 0x40000004f have memory in common; o is "
     "written while cu_seqlens_kv is still read. Give o its own memory, or check the strides and sizes of both."},
    {"fwd bf16 b2 hq8 hkv2 sq100 skv200 d64 seqused", [](fh_tensors& t) { t.seqused_kv = inside<int32_t>(t.o, 64); },
     "o at 0x400000000 to 0x400031fff and seqused_kv at 0x400000040 to 0x400000047 have memory in common; o is "
     "written while seqused_kv is still read. Give o its own memory, or check the strides and sizes of both."},
    {"fwd bf16 b2 hq8 hkv2 sq100 skv200 d64 sink", [](fh_tensors& t) { t.sink = t.lse + 1; },
     "lse at 0x500000000 to 0x5000018ff and sink at 0x500000004 to 0x500000023 have memory in common; lse is "
     "written while sink is still read. Give lse its own memory, or check the strides and sizes of both."},
    {"fwd bf16 b2 hq8 hkv2 sq100 skv200 d64 maxlogit", [](fh_tensors& t) { t.max_logit = t.lse + 1599; },
     "max_logit at 0x5000018fc to 0x50000193b and lse at 0x500000000 to 0x5000018ff have memory in common; both"
     " are written. Give max_logit its own memory, or check the strides and sizes of both."},
    {"fwd bf16 b2 hq8 hkv2 sq100 skv200 d64 alibi",
     [](fh_tensors& t) {
       t.alibi_slopes = {t.lse + 8, 0, 0, 1};
     },
     "lse at 0x500000000 to 0x5000018ff and alibi_slopes at 0x500000020 to 0x50000003f have memory in common; lse is "
     "written while alibi_slopes is still read. Give lse its own memory, or check the strides and sizes of both."},
    {"fwd bf16 kv=e4m3 b2 hq8 hkv2 sq100 skv200 d64",
     [](fh_tensors& t) {
       t.scale_k = {t.lse + 8, 0, 0, 0};
     },
     "lse at 0x500000000 to 0x5000018ff and scale_k at 0x500000020 to 0x500000023 have memory in common; lse is"
     " written while scale_k is still read. Give lse its own memory, or check the strides and sizes of both."},
    {"bwd bf16 b2 hq8 hkv2 sq100 skv200 d64", [](fh_tensors& t) { t.grad_k.data = inside<void>(t.o, 16); },
     "grad_k at 0x400000010 to 0x40001900f and o at 0x400000000 to 0x400031fff have memory in common; grad_k is"
     " written while o is still read. Give grad_k its own memory, or check the strides and sizes of both."},
    {"bwd bf16 b2 hq8 hkv2 sq100 skv200 d64 sink", [](fh_tensors& t) { t.grad_sink = inside<float>(t.grad_v, 64); },
     "grad_sink at 0xd00000040 to 0xd0000005f and grad_v at 0xd00000000 to 0xd00018fff have memory in common; "
     "both are written. Give grad_sink its own memory, or check the strides and sizes of both."},
    {"bwd bf16 b2 hq8 hkv2 sq100 skv200 d64 sink",
     [](fh_tensors& t) { t.grad_sink = const_cast<float*>(t.grad_lse) + 3; },
     "grad_sink at 0xe0000000c to 0xe0000002b and grad_lse at 0xe00000000 to 0xe000018ff have memory in common;"
     " grad_sink is written while grad_lse is still read. Give grad_sink its own memory, or check the strides "
     "and sizes of both."},
};

TEST(overlap, of_what_is_written_with_anything_is_refused) {
  for (const Shared& shared : all_shared) {
    const Problem p = problem_of(shared.line);
    fh_tensors t = tensors_of(p);
    ASSERT_TRUE(bind(p, t)) << shared.line;
    shared.spoil(t);
    const auto views = bind(p, t);
    ASSERT_FALSE(views) << "accepted, but expected: " << shared.message;
    EXPECT_EQ(views.failure().text, shared.message);
    EXPECT_EQ(views.failure().status, FH_INVALID_TENSOR);
  }
}

TEST(overlap, of_the_workspace_is_refused_with_what_is_read_too) {
  const Problem p = problem_of("fwd bf16 b2 hq8 hkv2 sq100 skv200 d64 sink");
  const auto views = bind(p, tensors_of(p));
  ASSERT_TRUE(views);
  EXPECT_EQ(shared_with_workspace(p, *views, somewhere<char>(9) + 32, 256), "");
  EXPECT_EQ(shared_with_workspace(p, *views, somewhere<char>(9) + 31, 0), "");
  EXPECT_EQ(shared_with_workspace(p, *views, somewhere<char>(9) + 31, 256),
            "workspace at 0x90000001f to 0x90000011e and sink at 0x900000000 to 0x90000001f have memory in common; "
            "workspace is written while sink is still read. Give workspace its own memory, or check the strides and "
            "sizes of both.");
  EXPECT_NE(shared_with_workspace(p, *views, somewhere<char>(4) - 255, 256), "");
  const Problem gradients = problem_of("bwd bf16 b1 hq1 hkv1 sq10 skv20 d64");
  const auto written = bind(gradients, tensors_of(gradients));
  ASSERT_TRUE(written);
  const std::string said = shared_with_workspace(gradients, *written, written->grad_k.data, 256);
  EXPECT_NE(said.find("grad_k and workspace are at the same address"), std::string::npos) << said;
  EXPECT_NE(said.find("both are written. Give grad_k its own memory."), std::string::npos) << said;
}

}  // namespace
}  // namespace froghopper
