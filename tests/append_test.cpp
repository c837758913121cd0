// SPDX-License-Identifier: Apache-2.0
// tests: new rows that go into a cache, on the CPU and on a Hopper GPU: every layout, ways to say where they go, both
// rotations, norms and 8-bit caches, judged against the oracle; no other byte may change. What is refused, and how.
#include <gtest/gtest.h>

#include "src/cpu/work.hpp"
#include "src/plan/plan.hpp"
#include "tests/support/appended.hpp"
#include "tests/support/preset_lists.hpp"

namespace froghopper {
namespace {

using test::Appended;
using test::Lies;

TEST(Problem, HasAnAppendLine) {
  for (const char* line :
       {"append bf16 b2 hq16 hkv4 sq1 skv4096 d128 seqused",
        "append f16 kv=e4m3 b1 hq8 hkv8 sq70 skv0 d96 page16 pages100 slots rotary64 rows4096 interleaved tables=f32 "
        "positions norm eps1e-06 weights=f32 tokenscales sms3",
        "append f32 kv=e5m2 b3 hq2 hkv1 sq9 skv50 d64 dv512 varlen tq20 seqused page3 pages70 rotary2 rows1"}) {
    const auto p = Problem::parse(line);
    ASSERT_TRUE(p) << p.failure().text;
    EXPECT_EQ(p->line(), line);
    EXPECT_EQ(*Problem::from(p->user_struct()), *p);
  }
}

// What a line says, and where its tensors lie.
struct Case {
  const char* line;
  Lies lies = Lies::rows_first;
  bool in_place = false;
};
const Case cases[] = {
    // one row of each sequence, as in decode: dense, in pages, by slots
    {"append bf16 b5 hq8 hkv2 sq1 skv40 d128 seqused"},
    {"append bf16 b5 hq8 hkv2 sq1 skv40 d128 seqused page16 pages20", Lies::heads_first},
    {"append f16 b1 hq4 hkv4 sq33 skv0 d64 page16 pages7 slots", Lies::k_beside_v},
    {"append f16 b3 hq4 hkv2 sq7 skv19 d80 slots", Lies::between_layers},
    // without lengths: from row 0 on
    {"append bf16 b2 hq3 hkv3 sq11 skv11 d72"},
    // packed, with sequences without rows and rows of no sequence; pages of one row and of an odd number
    {"append bf16 b6 hq4 hkv1 sq50 skv90 d128 varlen tq120 seqused page1 pages600", Lies::heads_first},
    {"append f16 b6 hq4 hkv1 sq50 skv90 d192 dv128 varlen tq120 seqused page7 pages90", Lies::k_beside_v},
    {"append bf16 b6 hq2 hkv2 sq50 skv90 d128 varlen tq120 rotary128 rows50", Lies::rows_first, true},
    // rotations: half-split and interleaved, whole and of some columns, tables of either type, q in place
    {"append bf16 b4 hq8 hkv2 sq3 skv40 d128 seqused rotary128 rows40", Lies::heads_first, true},
    {"append bf16 b4 hq8 hkv2 sq3 skv40 d128 seqused rotary32 rows40 interleaved tables=f32", Lies::k_beside_v},
    {"append f16 b4 hq8 hkv8 sq3 skv40 d256 seqused rotary96 rows40", Lies::between_layers, true},
    {"append f16 b1 hq8 hkv1 sq21 skv0 d64 dv512 page64 pages2 slots rotary64 rows99 interleaved positions",
     Lies::k_beside_v, true},
    {"append bf16 b1 hq2 hkv1 sq21 skv0 d512 page8 pages9 slots rotary512 rows99 positions", Lies::rows_first, true},
    // norms, then rotations
    {"append bf16 b4 hq8 hkv2 sq3 skv40 d128 seqused norm eps1e-06", Lies::rows_first, true},
    {"append bf16 b4 hq8 hkv2 sq3 skv40 d128 seqused rotary128 rows40 norm eps1e-06 weights=f32", Lies::heads_first},
    {"append f16 b4 hq8 hkv2 sq3 skv40 d96 seqused rotary48 rows40 tables=f32 norm eps0.01"},
    {"append bf16 b2 hq2 hkv2 sq3 skv40 d512 seqused rotary256 rows40 norm eps1e-06", Lies::k_beside_v, true},
    // 8 bits: given scales, and those of rows
    {"append bf16 kv=e4m3 b5 hq8 hkv2 sq1 skv40 d128 seqused page16 pages20", Lies::heads_first},
    {"append f16 kv=e5m2 b1 hq4 hkv4 sq33 skv0 d64 page16 pages7 slots", Lies::k_beside_v},
    {"append bf16 kv=e4m3 b3 hq4 hkv2 sq7 skv19 d128 seqused rotary64 rows19 norm eps1e-05 tokenscales"},
    {"append bf16 kv=e4m3 b1 hq4 hkv1 sq40 skv0 d64 dv512 page16 pages5 slots tokenscales", Lies::k_beside_v},
    {"append f16 kv=e5m2 b3 hq4 hkv2 sq7 skv19 d256 seqused rotary256 rows19 interleaved tokenscales",
     Lies::between_layers, true},
    // nothing to do
    {"append bf16 b0 hq4 hkv2 sq7 skv19 d128"},
    {"append bf16 b3 hq4 hkv2 sq0 skv19 d128 seqused"},
    {"append bf16 b3 hq4 hkv2 sq7 skv0 d128 page16 pages0 slots"},
    // more rows than a launch has CTAs at once
    {"append bf16 b3 hq32 hkv8 sq400 skv900 d128 seqused page16 pages200 rotary128 rows900", Lies::heads_first, true},
};
// What the Hopper kernel leaves to the CPU.
const Case cpu_cases[] = {
    {"append f32 b4 hq8 hkv2 sq3 skv40 d128 seqused rotary64 rows40 norm eps1e-06", Lies::heads_first, true},
    {"append f32 b4 hq8 hkv2 sq3 skv40 d8 seqused rotary6 rows40 interleaved"},
    {"append bf16 b4 hq8 hkv2 sq3 skv40 d72 seqused rotary20 rows40", Lies::k_beside_v},
    {"append f32 kv=e4m3 b1 hq4 hkv4 sq33 skv0 d64 page16 pages7 slots tokenscales"},
};

void check_on_cpu(const Case& c) {
  SCOPED_TRACE(c.line);
  Appended t(c.line, c.lies, c.in_place);
  const check::Inputs before = t.in;
  const auto plan = check::create_plan(t.p, "cpu");
  ASSERT_TRUE(plan) << plan.failure().text;
  const auto ran = check::run_on_cpu(plan->get(), t.in);
  ASSERT_TRUE(ran) << ran.failure().text;
  EXPECT_EQ(t.wrong(before), "");
}

TEST(Append, OnTheCpu) {
  for (const Case& c : cases) check_on_cpu(c);
  for (const Case& c : cpu_cases) check_on_cpu(c);
}

// One function of each vector unit makes all of it.
TEST(Append, OnEveryVectorUnit) {
  for (const cpu::Kernel* kernel : cpu::kernels(Dtype::bf16))
    for (const Case& c : cases) {
      SCOPED_TRACE(text("{} {}", kernel->name, c.line));
      Appended t(c.line, c.lies, c.in_place);
      const check::Inputs before = t.in;
      const auto ran = cpu::run(cpu::plan_with(*kernel, t.p), t.views());
      ASSERT_TRUE(ran) << ran.failure().text;
      EXPECT_EQ(t.wrong(before), "");
    }
}

TEST(Append, OnHopper) {
  if (const auto here = check::hopper_is_here(); !here) GTEST_SKIP() << here.failure().text;
  for (const Case& c : cases) {
    SCOPED_TRACE(c.line);
    Appended t(c.line, c.lies, c.in_place);
    const check::Inputs before = t.in;
    const auto plan = check::create_plan(t.p, "hopper");
    if (!plan && plan.failure().text.find("no usable libnvrtc") != std::string::npos)
      GTEST_SKIP() << plan.failure().text;
    ASSERT_TRUE(plan) << plan.failure().text;
    const auto ran = check::run_on_gpu(plan->get(), t.in);
    ASSERT_TRUE(ran) << ran.failure().text;
    EXPECT_EQ(t.wrong(before), "");
  }
}

// Numbers that no GPU plan can check: it writes nothing for them, and reads nothing outside of its arrays.
TEST(Append, OnHopperLeavesOutWhatHasNoPlace) {
  if (const auto here = check::hopper_is_here(); !here) GTEST_SKIP() << here.failure().text;
  const auto run = [](Appended& t) {
    const auto plan = check::create_plan(t.p, "hopper");
    if (!plan) return plan.failure().text;
    const auto ran = check::run_on_gpu(plan->get(), t.in);
    return ran ? std::string() : ran.failure().text;
  };
  const auto unchanged = [](const check::Inputs& now, const check::Inputs& before, View Views::*view) {
    return now.block(view) == before.block(view);
  };
  Appended slots("append bf16 b1 hq2 hkv2 sq4 skv0 d128 page16 pages3 slots rotary64 rows9 positions");
  const int64_t bad_slots[] = {48, INT64_MAX, INT64_MIN, int64_t{1} << 32};
  std::copy(std::begin(bad_slots), std::end(bad_slots), slots.views().slot_mapping.as<int64_t>());
  const check::Inputs before = slots.in;
  ASSERT_EQ(run(slots), "");
  EXPECT_TRUE(unchanged(slots.in, before, &Views::cache_k) && unchanged(slots.in, before, &Views::cache_v));
  EXPECT_FALSE(unchanged(slots.in, before, &Views::q_out)) << "q has a place all the same";

  Appended positions("append bf16 b1 hq2 hkv2 sq4 skv0 d128 page16 pages3 slots rotary64 rows9 positions");
  const int64_t bad_positions[] = {9, -1, INT64_MAX, int64_t{1} << 32};
  std::copy(std::begin(bad_positions), std::end(bad_positions), positions.views().positions.as<int64_t>());
  const check::Inputs before_positions = positions.in;
  ASSERT_EQ(run(positions), "");
  EXPECT_TRUE(unchanged(positions.in, before_positions, &Views::cache_k));
  EXPECT_TRUE(unchanged(positions.in, before_positions, &Views::q_out));
  EXPECT_FALSE(unchanged(positions.in, before_positions, &Views::cache_v)) << "v is not rotated";

  Appended lengths("append bf16 b4 hq2 hkv2 sq1 skv32 d128 seqused page16 pages8");
  const int32_t bad_lengths[] = {32, -1, INT32_MAX, INT32_MIN};
  std::copy(std::begin(bad_lengths), std::end(bad_lengths), lengths.views().seqused_kv.as<int32_t>());
  std::fill_n(lengths.views().seqused_q.as<int32_t>(), 4, 1);
  const check::Inputs before_lengths = lengths.in;
  ASSERT_EQ(run(lengths), "");
  EXPECT_TRUE(unchanged(lengths.in, before_lengths, &Views::cache_k));
}

TEST(Append, EachTensorMayBeLeftOut) {
  const char* const line = "append bf16 kv=e4m3 b4 hq8 hkv2 sq3 skv40 d128 seqused rotary128 rows40 norm";
  using LeftOut = std::initializer_list<View Views::*>;
  for (const LeftOut& left_out :
       {LeftOut{&Views::q, &Views::q_out, &Views::norm_q},
        {&Views::k, &Views::cache_k, &Views::norm_k, &Views::scale_k},
        {&Views::v, &Views::cache_v, &Views::scale_v},
        {&Views::k, &Views::cache_k, &Views::norm_k, &Views::scale_k, &Views::v, &Views::cache_v, &Views::scale_v},
        {&Views::norm_q, &Views::norm_k}}) {
    Appended t(line);
    t.leave_out(left_out);
    const check::Inputs before = t.in;
    const fh_problem user = t.p.user_struct();
    ASSERT_EQ(fh_attention(&user, "cpu", &t.in.tensors, nullptr, 0, nullptr), FH_OK) << fh_last_error();
    EXPECT_EQ(t.wrong(before), "");
  }
}

// K and V of a row beside each other in one tensor, and q, k and v in the columns of another, as a model's product has
// them.
TEST(Append, TakesSlicesOfTensors) {
  const int64_t rows = 3, heads = 2, dim = 16, slots = 8;
  std::vector<float> qkv(rows * heads * 3 * dim), cache(slots * heads * 2 * dim, -1.0f);
  for (size_t i = 0; i < qkv.size(); ++i) qkv[i] = static_cast<float>(i);
  const std::vector<int64_t> slot_mapping{5, -1, 0};
  fh_problem p = fh_problem_init();
  p.op = FH_APPEND, p.dtype = FH_F32, p.batch = 1, p.heads_q = p.heads_kv = heads, p.seq_q = rows, p.dim_qk = dim;
  p.page_size = 4, p.pages = 2, p.slots = 1;
  fh_tensors t = fh_tensors_init();
  const auto slice = [&](int64_t which) {
    return fh_tensor{qkv.data() + which * heads * dim, 0, 3 * heads * dim, dim};
  };
  t.k = slice(1), t.v = slice(2);
  t.cache_k = {cache.data(), 4 * heads * 2 * dim, heads * 2 * dim, 2 * dim};
  t.cache_v = {cache.data() + dim, 4 * heads * 2 * dim, heads * 2 * dim, 2 * dim};
  t.slot_mapping = slot_mapping.data();
  ASSERT_EQ(fh_attention(&p, "cpu", &t, nullptr, 0, nullptr), FH_OK) << fh_last_error();
  for (int64_t slot = 0; slot < slots; ++slot)
    for (int64_t head = 0; head < heads; ++head)
      for (int64_t c = 0; c < 2 * dim; ++c) {
        const int64_t row = slot == 5 ? 0 : slot == 0 ? 2 : -1, which = 1 + c / dim;
        const float expected =
            row < 0 ? -1.0f : static_cast<float>(((row * 3 + which) * heads + head) * dim + c % dim);
        EXPECT_EQ(cache[(slot * heads + head) * 2 * dim + c], expected) << slot << ' ' << head << ' ' << c;
      }
}

const struct {
  const char* line;
  const char* message;
} bad_lines[] = {
    {"append bf16 b1 hq1 hkv1 sq1 skv9 d64 causal",
     "causal is set and op is FH_APPEND; it belongs to the attention that reads the cache. Set causal to 0 here."},
    {"append bf16 b1 hq1 hkv1 sq1 skv9 d64 topleft",
     "align is set and op is FH_APPEND; it belongs to the attention that reads the cache. Set align to 0 here."},
    {"append e4m3 b1 hq1 hkv1 sq1 skv9 d64",
     "dtype is e4m3, and new rows have no scale. Set dtype to the type of q, k and v, FH_F16, FH_BF16 or FH_F32."},
    {"append bf16 kv=f16 b1 hq1 hkv1 sq1 skv9 d64",
     "dtype_kv must be dtype, bf16, or an 8-bit type where op is FH_APPEND, but is f16. Set dtype_kv to FH_USUAL, or "
     "convert."},
    {"append bf16 b1 hq1 hkv1 sq1 skv9 d64 rotary64 rows9 tables=f16",
     "dtype_rotary must be dtype, bf16, or f32, but is f16. Set dtype_rotary to FH_USUAL or FH_F32."},
    {"append bf16 b1 hq1 hkv1 sq1 skv9 d64 tokenscales",
     "scale_tokens is 1 and the cache is bf16; only 8-bit types have scales. Set it to 0."},
    {"append bf16 b1 hq1 hkv1 sq1 skv9 d64 dv520",
     "dim_v is 520; head dims here are multiples of 8 from 8 to 512. Set dim_v within."},
    {"append bf16 b1 hq1 hkv1 sq1 skv9 d64 varlen tq1 tkv9",
     "total_kv is 9 and op is FH_APPEND; a cache is not packed. Set total_kv to 0; seq_kv is the rows of a "
     "sequence."},
    {"append bf16 b1 hq1 hkv1 sq1 skv9 d64 seqused slots",
     "seqused is set and slots is 1; slots say of every row where it goes, whatever its sequence. Set seqused to 0; "
     "batch is 1 and seq_q the number of rows then."},
    {"append bf16 b1 hq1 hkv1 sq1 skv9 d64 page16 pages2 slots",
     "seq_kv is 9, page_size is 16 and slots is 1; slots count the rows of the pool, not of a sequence. Set seq_kv "
     "to 0."},
    {"append bf16 b1 hq1 hkv1 sq1 skv9 d64 rotary65 rows9",
     "rotary_dim must be even and at most dim_qk, 64, as it counts columns of q and k, in pairs, but is 65. Use an "
     "even number from 0 to 64."},
    {"append bf16 b1 hq1 hkv1 sq1 skv9 d64 rotary64",
     "rotary_rows must be from 1 to 2^40, as it counts the positions that rotary_cos and rotary_sin know, but is 0. "
     "Use the number of their rows."},
    {"append bf16 b1 hq1 hkv1 sq1 skv9 d64 rotary64 rows9 slots",
     "slots is 1, rotary_dim is 64 and positions is 0; a slot does not say where a row is in its sequence. Set "
     "positions, and give them."},
    {"append bf16 b1 hq1 hkv1 sq1 skv9 d64 positions",
     "positions is 1 and rotary_dim is 0; nothing is rotated. Set rotary_dim, or positions to 0."},
    {"append bf16 b1 hq1 hkv1 sq1 skv9 d64 eps0.5",
     "norm_epsilon is 0.5 and norm is 0; nothing is normed. Set norm, or norm_epsilon to 0."},
    {"append bf16 b1 hq1 hkv1 sq1 skv9 d64 norm eps-1",
     "norm_epsilon must be 0 or positive, as it is added to a mean of squares, but is -1. Use 0 or 1e-6."},
    {"append bf16 b1 hq1 hkv1 sq1 skv9 d64 weights=f32",
     "dtype_norm is f32 and norm is 0; nothing is normed. Set norm, or dtype_norm to FH_USUAL."},
    {"fwd bf16 b1 hq1 hkv1 sq1 skv9 d64 norm",
     "norm is 1 and op is FH_FORWARD; it is of rows that are written to a cache. Set op to FH_APPEND, or this to 0."},
    {"append bf16 b1 hq1 hkv1 sq1 skv9 d64 maxlogit",
     "max_logit is 1 and op is FH_APPEND; only the forward pass computes it. Set op to FH_FORWARD, or max_logit to "
     "0."},
};

TEST(Append, ContradictionsAreNamed) {
  for (const auto& [line, message] : bad_lines) {
    const auto refused = Problem::parse(line);
    ASSERT_FALSE(refused) << line;
    EXPECT_EQ(refused.failure().text, message) << line;
  }
}

const struct {
  const char* line;
  void (*spoil)(Appended&);
  const char* message;
} bad_tensors[] = {
    {"append bf16 b2 hq1 hkv1 sq3 skv9 d64 seqused",
     [](Appended& t) { t.views().seqused_q.as<int32_t>()[1] = 3, t.views().seqused_kv.as<int32_t>()[1] = 7; },
     "seqused_kv[1] is 7, the sequence gets 3 more rows, and seq_kv is 9; they do not fit. Make the cache longer, or "
     "add fewer rows."},
    {"append bf16 b1 hq1 hkv1 sq3 skv2 d64", [](Appended&) {},
     "seq_kv is 2 and sequence 0 gets 3 rows, from row 0 on, as there is no seqused. Make the cache longer, or add "
     "fewer rows."},
    {"append bf16 b1 hq1 hkv1 sq3 skv9 d64", [](Appended& t) { t.in.tensors.o = t.in.tensors.q; },
     "o is set, but op is FH_APPEND, which has no o. Leave o NULL."},
    {"append bf16 b2 hq1 hkv1 sq3 skv9 d64 page4 pages5",
     [](Appended& t) { t.views().block_table.as<int32_t>()[3] = 5; },
     "block_table[1][0] must name a page of the pool, of which pages are 5, but is 5. Use 0 to 4."},
    {"append bf16 b1 hq1 hkv1 sq3 skv0 d64 page4 pages5 slots",
     [](Appended& t) { t.views().slot_mapping.as<int64_t>()[1] = 20; },
     "slot_mapping[1] must be a row of the cache, which has 20 rows, or negative for none, but is 20. Use 0 to 19, "
     "or -1."},
    {"append bf16 b2 hq1 hkv1 sq3 skv9 d64 seqused rotary64 rows6",
     [](Appended& t) { t.views().seqused_kv.as<int32_t>()[1] = 4, t.views().seqused_q.as<int32_t>()[1] = 3; },
     "row 2 of sequence 1 has position 6, as seqused_kv[1] is 4, and rotary_rows is 6; the tables do not know it. "
     "Use "
     "longer tables, or append fewer rows."},
    {"append bf16 kv=e4m3 b2 hq1 hkv1 sq3 skv9 d64", [](Appended& t) { t.in.tensors.scale_k = {}; },
     "scale_k is NULL and k is set; an 8-bit cache needs scales. Set it."},
    {"append bf16 b2 hq1 hkv1 sq3 skv9 d64", [](Appended& t) { t.in.tensors.cache_v = {}; },
     "v is set and cache_v is NULL; they go together. Set both, or none."},
    {"append bf16 b2 hq1 hkv1 sq3 skv9 d64",
     [](Appended& t) {
       t.leave_out({&Views::q, &Views::q_out, &Views::k, &Views::cache_k, &Views::v, &Views::cache_v});
     },
     "q, k and v are NULL; there is nothing to append. Set one of them, with what is written of it."},
    {"append bf16 b2 hq1 hkv1 sq3 skv9 d64 norm", [](Appended& t) { t.in.tensors.q = t.in.tensors.q_out = {}; },
     "norm_q is set and q is NULL; it would be ignored. Set q, or leave norm_q NULL."},
    {"append bf16 b2 hq1 hkv1 sq3 skv9 d64", [](Appended& t) { t.in.tensors.cache_k.stride_seq = 32; },
     "cache_k.stride_seq is 32, but 64 elements lie within one step of it, so rows of cache_k would overlap. Without "
     "gaps the strides of batch, seq and head are 576, 64 and 64."},
    {"append bf16 b1 hq1 hkv1 sq3 skv9 d64 slots", [](Appended& t) { t.in.tensors.slot_mapping = nullptr; },
     "slot_mapping is NULL; a problem with slots needs where each row goes. Set it."},
};

TEST(Append, WrongTensorsAreNamedAndNothingIsWritten) {
  for (const auto& [line, spoil, message] : bad_tensors) {
    SCOPED_TRACE(message);
    Appended t(line);
    spoil(t);
    const check::Inputs before = t.in;
    const fh_problem user = t.p.user_struct();
    EXPECT_EQ(fh_attention(&user, "cpu", &t.in.tensors, nullptr, 0, nullptr), FH_INVALID_TENSOR);
    EXPECT_EQ(fh_last_error(), text("fh_attention: {}", message));
    EXPECT_EQ(t.in.blocks, before.blocks);
  }
}

TEST(Append, PaddingMayHaveAnyPosition) {
  Appended t("append bf16 b1 hq2 hkv2 sq4 skv0 d128 page16 pages3 slots rotary64 rows9 positions");
  t.views().slot_mapping.as<int64_t>()[1] = -1, t.views().positions.as<int64_t>()[1] = INT64_MAX;
  const check::Inputs before = t.in;
  const fh_problem user = t.p.user_struct();
  ASSERT_EQ(fh_attention(&user, "cpu", &t.in.tensors, nullptr, 0, nullptr), FH_OK) << fh_last_error();
  EXPECT_EQ(t.wrong(before), "");
}

TEST(Append, TheJudgeSeesAStepAByteAndARowTooFew) {
  const auto why = [](void (*spoil)(Appended&)) {
    Appended t("append bf16 kv=e4m3 b2 hq2 hkv2 sq3 skv9 d64 tokenscales");
    const check::Inputs before = t.in;
    const fh_problem user = t.p.user_struct();
    EXPECT_EQ(fh_attention(&user, "cpu", &t.in.tensors, nullptr, 0, nullptr), FH_OK) << fh_last_error();
    spoil(t);
    return t.wrong(before);
  };
  EXPECT_EQ(why([](Appended&) {}), "");
  EXPECT_NE(why([](Appended& t) { t.views().cache_k.as<uint8_t>()[7] ^= 2; }), "");
  EXPECT_NE(why([](Appended& t) { t.views().cache_k.as<uint8_t>()[3 * 2 * 64] = 1; }), "");
  EXPECT_NE(why([](Appended& t) { t.views().scale_k.as<float>()[0] *= 1.01f; }), "");
  EXPECT_NE(why([](Appended& t) { t.views().q_out.as<uint16_t>()[0] += 1; }), "");
  EXPECT_NE(why([](Appended& t) { t.views().cache_v.as<uint8_t>()[0] = 0xff; }), "");
}

TEST(Append, SaysThatSlotsNeedNoBlockTable) {
  Appended t("append bf16 b2 hq2 hkv2 sq1 skv0 d64 slots page16 pages4");
  int32_t page = 0;
  t.in.tensors.block_table = {&page, 1, 1, 0};
  const fh_problem user = t.p.user_struct();
  EXPECT_EQ(fh_attention(&user, "cpu", &t.in.tensors, nullptr, 0, nullptr), FH_INVALID_TENSOR);
  EXPECT_TRUE(std::string(fh_last_error())
                  .ends_with("slots too; slot_mapping says where rows go. Leave block_table NULL, or slots 0."));
}

TEST(Append, OfBf16AndE4m3IsOfPresets) {
  const auto presets = test::listed_presets();
  Problem p = *Problem::parse("append bf16 b1 hq1 hkv1 sq1 skv1 d16");
  for (p.dim_qk = p.dim_v = 16; p.dim_qk <= 512; p.dim_qk += 16)
    for (const Dtype to : {Dtype::bf16, Dtype::e4m3}) {
      p.dtype_kv = to;
      const auto plan = make_gpu_plan(p, known_device("h200"));
      ASSERT_TRUE(plan) << plan.failure().text;
      EXPECT_TRUE(presets.contains(plan->launches[0].kernel.name)) << plan->line();
    }
}

TEST(Append, OnAGpuIsOneLaunchThatOverlaps) {
  const auto plan = make_gpu_plan(*Problem::parse("append bf16 kv=e4m3 b64 hq32 hkv8 sq1 skv4096 d128 seqused"),
                                  known_device("h100"));
  ASSERT_TRUE(plan) << plan.failure().text;
  ASSERT_EQ(plan->launches.size(), 1);
  EXPECT_TRUE(plan->launches[0].overlaps);
  EXPECT_EQ(plan->workspace.bytes, 0);
  EXPECT_EQ(plan->launches[0].line(), "append.bf16.e4m3.d128 grid 384 smem 0KiB");
  const auto again = kernel_named(plan->launches[0].kernel.name);
  ASSERT_TRUE(again) << again.failure().text;
  EXPECT_EQ(again->source, plan->launches[0].kernel.source);
  for (const auto& [line, message] :
       {std::pair{"append f32 b1 hq1 hkv1 sq1 skv1 d64",
                  "dtype is f32; the Hopper kernels take f16 and bf16. Convert q, k and v, or use target \"cpu\"."},
        {"append bf16 b1 hq1 hkv1 sq1 skv1 d64 rotary24 rows1",
         "rotary_dim is 24; the Hopper kernel rotates columns by multiples of 16. Use target \"cpu\"."}}) {
    const auto refused = make_gpu_plan(*Problem::parse(line), known_device("h100"));
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.failure().text, message);
  }
}

}  // namespace
}  // namespace froghopper
