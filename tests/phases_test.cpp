// SPDX-License-Identifier: Apache-2.0
// tests: calls in phases, on the CPU and on a Hopper GPU: keys in three parts, in each order of the first two, give
// what one call with all keys gives, but for one rounding; what is refused.
#include <froghopper/froghopper.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include "check/check.hpp"
#include "check/gpu/session.hpp"
#include "src/base/storage.hpp"
#include "src/base/text.hpp"
#include "src/problem/problem.hpp"
#include "src/problem/tensors.hpp"

namespace froghopper {
namespace {

using Numbers = std::vector<float>;

// Where a call's tensors are: in host memory, or on a GPU.
class Memory {
 public:
  explicit Memory(bool on_gpu) {
    if (on_gpu) gpu_ = std::move(*check::GpuSession::open());
  }
  void* allocate(size_t bytes) {
    if (gpu_) return *gpu_->allocate(std::max<size_t>(bytes, 1));
    held_.push_back(std::make_unique<char[]>(bytes + 256));
    const auto at = reinterpret_cast<uintptr_t>(held_.back().get());
    return reinterpret_cast<void*>((at + 255) / 256 * 256);
  }
  void* put(const Numbers& numbers, Dtype type) {
    std::vector<uint16_t> halves;
    for (const float x : numbers) halves.push_back(type == Dtype::bf16 ? float_to_bf16(x) : float_to_f16(x));
    const void* const from = type == Dtype::f32 ? static_cast<const void*>(numbers.data()) : halves.data();
    void* const to = allocate(numbers.size() * static_cast<size_t>(size_of(type)));
    write(to, from, numbers.size() * static_cast<size_t>(size_of(type)));
    return to;
  }
  Numbers take(const void* from, int64_t count, Dtype type) {
    std::vector<char> bytes(static_cast<size_t>(count * size_of(type)));
    if (gpu_) {
      EXPECT_TRUE(gpu_->finish());
      EXPECT_TRUE(gpu_->download(bytes.data(), from, bytes.size()));
    } else {
      std::memcpy(bytes.data(), from, bytes.size());
    }
    Numbers numbers(static_cast<size_t>(count));
    const auto half = [&](size_t i) {
      uint16_t bits = 0;
      std::memcpy(&bits, bytes.data() + 2 * i, 2);
      return type == Dtype::bf16 ? bf16_to_float(bits) : f16_to_float(bits);
    };
    if (type == Dtype::f32) std::memcpy(numbers.data(), bytes.data(), bytes.size());
    for (size_t i = 0; i < numbers.size() && type != Dtype::f32; ++i) numbers[i] = half(i);
    return numbers;
  }
  void write(void* to, const void* from, size_t bytes) {
    if (gpu_)
      EXPECT_TRUE(gpu_->upload(to, from, bytes));
    else
      std::memcpy(to, from, bytes);
  }
  void* stream() const { return gpu_ ? gpu_->stream() : nullptr; }

 private:
  std::unique_ptr<check::GpuSession> gpu_;
  std::vector<std::unique_ptr<char[]>> held_;
};

Numbers random(int64_t count, uint32_t seed) {
  Numbers all(static_cast<size_t>(count));
  for (float& x : all) x = static_cast<float>((seed = seed * 1664525 + 1013904223) >> 16) / 32768 - 1;
  return all;
}

// Keys [begin, end) of a sequence, as a call has them.
struct Keys {
  int64_t begin, end;
};

constexpr size_t workspace_most = size_t{64} << 20;
fh_phase phase_of(size_t index, size_t count) {
  if (count == 1) return FH_PHASE_ONLY;
  return index == 0 ? FH_PHASE_FIRST : index + 1 == count ? FH_PHASE_LAST : FH_PHASE_MIDDLE;
}

class Phases : public testing::TestWithParam<std::tuple<const char*, const char*>> {
 protected:
  int64_t sq = 0, skv = 0;

  void SetUp() override {
    target_ = std::get<1>(GetParam());
    const bool on_gpu = std::string(target_) == "hopper";
    if (on_gpu)
      if (const auto here = check::hopper_is_here(); !here) GTEST_SKIP() << here.failure().text;
    memory_ = std::make_unique<Memory>(on_gpu);
    fh_problem p = fh_problem_init();
    ASSERT_EQ(fh_problem_parse(std::get<0>(GetParam()), &p), FH_OK) << fh_last_error();
    whole_ = p, sq = p.seq_q, skv = p.seq_kv;
    const Keys first{0, skv / 3}, second{skv / 3, skv * 7 / 10}, third{skv * 7 / 10, skv};
    orders_ = {{first, second, third}, {third, first, second}};
    type_ = static_cast<Dtype>(p.dtype);
    const int64_t rows = p.batch * sq * p.heads_q, keys = p.batch * skv * p.heads_kv;
    q_ = memory_->put(random(rows * p.dim_qk, 1), type_);
    k_ = memory_->put(random(keys * p.dim_qk, 2), type_);
    v_ = memory_->put(random(keys * p.dim_v, 3), type_);
    grad_o_ = memory_->put(random(rows * p.dim_v, 4), type_);
    grad_lse_ = memory_->put(random(rows, 5), Dtype::f32);
    if (p.sink) sink_ = memory_->put(random(p.heads_q, 6), Dtype::f32);
    o_count_ = rows * p.dim_v, lse_count_ = rows, q_count_ = rows * p.dim_qk;
    k_count_ = keys * p.dim_qk, v_count_ = keys * p.dim_v;
  }

  // Memory that a call must write: NaN where it does not.
  void* unwritten(int64_t count, Dtype type) const {
    return memory_->put(Numbers(static_cast<size_t>(count), std::nanf("")), type);
  }

  fh_tensor rows(void* data, int64_t seq, int64_t heads, int64_t dim) const {
    return {data, seq * heads * dim, heads * dim, dim};
  }
  fh_tensor keys(void* data, int64_t dim, int64_t from, Dtype type) const {
    char* const first = static_cast<char*>(data) + from * whole_.heads_kv * dim * size_of(type);
    return rows(first, skv, whole_.heads_kv, dim);
  }

  // A causal mask goes from key skv - sq of row 0 to the last key.
  fh_problem part(Keys its, fh_phase phase) const {
    fh_problem p = whole_;
    p.seq_kv = its.end - its.begin, p.phase = phase;
    if (p.window_right == 0 && its.end < skv)
      p.align = FH_TOP_LEFT, p.causal = 0, p.window_right = skv - sq - its.begin;
    return p;
  }
  fh_tensors common(Keys its) const {
    fh_tensors t = fh_tensors_init();
    t.q = rows(q_, sq, whole_.heads_q, whole_.dim_qk);
    t.k = keys(k_, whole_.dim_qk, its.begin, type_), t.v = keys(v_, whole_.dim_v, its.begin, type_);
    t.sink = static_cast<float*>(sink_);
    return t;
  }

  // Of the rows from `first` on.
  struct Output {
    Numbers o, lse;
  };
  Output forward_in_phases(const std::vector<Keys>& order, int64_t first) const {
    const fh_problem& w = whole_;
    const int64_t count = w.batch * (sq - first) * w.heads_q, row_v = w.heads_q * w.dim_v;
    void* const workspace = memory_->allocate(workspace_most);
    void* const o = unwritten(count * w.dim_v, type_);
    void* const sum = unwritten(count * w.dim_v, Dtype::f32);
    void* const lse = unwritten(count, Dtype::f32);
    for (size_t i = 0; i < order.size(); ++i) {
      fh_problem p = part(order[i], phase_of(i, order.size()));
      p.seq_q = sq - first;
      if (p.align == FH_TOP_LEFT) p.window_right += first;
      fh_tensors x = common(order[i]);
      x.q.data = static_cast<char*>(q_) + first * w.heads_q * w.dim_qk * size_of(type_);
      const int64_t row_o = p.seq_q * row_v;
      x.o_sum = {sum, row_o, row_v, w.dim_v}, x.lse = static_cast<float*>(lse);
      if (p.phase == FH_PHASE_LAST) x.o = {o, row_o, row_v, w.dim_v};
      run(p, x, workspace, workspace_most);
    }
    return {memory_->take(o, count * w.dim_v, type_), memory_->take(lse, count, Dtype::f32)};
  }

  // Runs it and puts it in words where it fails.
  void run(const fh_problem& p, const fh_tensors& t, void* workspace, size_t bytes) const {
    fh_plan* plan = nullptr;
    ASSERT_EQ(fh_plan_create(&p, target_, &plan), FH_OK) << fh_last_error();
    ASSERT_LE(fh_plan_workspace_bytes(plan), bytes);
    EXPECT_EQ(fh_plan_run(plan, &t, workspace, bytes, memory_->stream()), FH_OK) << fh_last_error();
    fh_plan_destroy(plan);
  }

  // Under a causal mask some rows attend to no key of the last part, which is the last call, or the first.
  std::vector<std::vector<Keys>> orders_;
  const char* target_ = nullptr;
  std::unique_ptr<Memory> memory_;
  fh_problem whole_ = fh_problem_init();
  Dtype type_ = Dtype::bf16;
  void *q_ = nullptr, *k_ = nullptr, *v_ = nullptr, *grad_o_ = nullptr, *grad_lse_ = nullptr, *sink_ = nullptr;
  int64_t o_count_ = 0, lse_count_ = 0, q_count_ = 0, k_count_ = 0, v_count_ = 0;
};

// As far apart as two roundings of numbers up to `largest` are.
void expect_close(const Numbers& got, const Numbers& expected, Dtype type, const char* name) {
  double worst = 0, largest = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_TRUE(std::isfinite(got[i])) << name << " " << i;
    worst = std::max(worst, std::fabs(double{got[i]} - expected[i]));
    largest = std::max(largest, std::fabs(double{expected[i]}));
  }
  const double unit = type == Dtype::bf16 ? 0x1p-8 : type == Dtype::f16 ? 0x1p-11 : 0x1p-18;
  EXPECT_LE(worst, 2 * unit * std::max(largest, 0.1)) << name;
}

TEST_P(Phases, GiveWhatOneCallGives) {
  const fh_problem& w = whole_;
  void* const workspace = memory_->allocate(workspace_most);
  void* const o = unwritten(o_count_, type_);
  void* const lse = unwritten(lse_count_, Dtype::f32);
  fh_tensors t = common({0, skv});
  t.o = rows(o, sq, w.heads_q, w.dim_v), t.lse = static_cast<float*>(lse);
  run(w, t, workspace, workspace_most);
  const Numbers expected = memory_->take(o, o_count_, type_),
                expected_lse = memory_->take(lse, lse_count_, Dtype::f32);

  for (const auto& order : orders_) {
    const Output got = forward_in_phases(order, 0);
    expect_close(got.o, expected, type_, "o");
    expect_close(got.lse, expected_lse, Dtype::f32, "lse");
  }

  // Gradients, by one call and by phases.
  const auto gradients = [&](const std::vector<Keys>& order, bool adds, bool deterministic, Numbers* grads) {
    const Dtype of_keys = adds ? Dtype::f32 : type_;
    const auto of = [&](int64_t count) {
      return adds ? memory_->put(Numbers(static_cast<size_t>(count)), of_keys) : unwritten(count, of_keys);
    };
    void* const grad_q = unwritten(q_count_, type_);
    void *const grad_k = of(k_count_), *const grad_v = of(v_count_);
    void* const grad_sink = sink_ ? unwritten(w.heads_q, Dtype::f32) : nullptr;
    for (size_t i = 0; i < order.size(); ++i) {
      fh_problem p = part(order[i], phase_of(i, order.size()));
      p.op = FH_BACKWARD, p.accumulate = adds, p.deterministic = deterministic, p.invariant = 0;
      const bool last = i + 1 == order.size();
      fh_tensors x = common(order[i]);
      x.o = rows(o, sq, w.heads_q, w.dim_v), x.lse = static_cast<float*>(lse);
      x.grad_o = rows(grad_o_, sq, w.heads_q, w.dim_v), x.grad_lse = static_cast<float*>(grad_lse_);
      if (last) x.grad_q = rows(grad_q, sq, w.heads_q, w.dim_qk), x.grad_sink = static_cast<float*>(grad_sink);
      x.grad_k = keys(grad_k, w.dim_qk, order[i].begin, of_keys);
      x.grad_v = keys(grad_v, w.dim_v, order[i].begin, of_keys);
      run(p, x, workspace, workspace_most);
    }
    grads[0] = memory_->take(grad_q, q_count_, type_);
    grads[1] = memory_->take(grad_k, k_count_, of_keys), grads[2] = memory_->take(grad_v, v_count_, of_keys);
    if (sink_) grads[3] = memory_->take(grad_sink, w.heads_q, Dtype::f32);
  };
  fh_problem plain = w;
  plain.op = FH_BACKWARD, plain.invariant = 0;
  void* const grad_q = unwritten(q_count_, type_);
  void* const grad_k = unwritten(k_count_, type_);
  void* const grad_v = unwritten(v_count_, type_);
  void* const grad_sink = sink_ ? unwritten(w.heads_q, Dtype::f32) : nullptr;
  t.grad_o = rows(grad_o_, sq, w.heads_q, w.dim_v), t.grad_lse = static_cast<float*>(grad_lse_);
  t.grad_q = rows(grad_q, sq, w.heads_q, w.dim_qk), t.grad_sink = static_cast<float*>(grad_sink);
  t.grad_k = keys(grad_k, w.dim_qk, 0, type_), t.grad_v = keys(grad_v, w.dim_v, 0, type_);
  run(plain, t, workspace, workspace_most);
  const Numbers alone[] = {memory_->take(grad_q, q_count_, type_), memory_->take(grad_k, k_count_, type_),
                           memory_->take(grad_v, v_count_, type_),
                           sink_ ? memory_->take(grad_sink, w.heads_q, Dtype::f32) : Numbers()};
  const std::vector<Keys> at_once = {{0, skv}};
  for (const auto& order : {orders_[0], orders_[1], at_once})
    for (const auto& [adds, deterministic] : {std::pair{true, false}, {false, false}, {true, true}, {false, true}}) {
      Numbers grads[4], again[4];
      gradients(order, adds, deterministic, grads);
      for (const size_t i : {0, 1, 2, 3})
        expect_close(grads[i], alone[i], type_, std::array{"grad_q", "grad_k", "grad_v", "grad_sink"}[i]);
      if (!deterministic) continue;
      gradients(order, adds, deterministic, again);
      for (const size_t i : {0, 1, 2, 3}) EXPECT_EQ(grads[i], again[i]) << i;
    }
}

// A row has the same bits whichever rows lie next to it, also where calls are merged.
class InvariantPhases : public Phases {};
TEST_P(InvariantPhases, HaveTheSameBitsInAnyCompany) {
  whole_.batch = 1;
  for (const auto& order : orders_) {
    const Output all = forward_in_phases(order, 0);
    for (const int64_t first : {1, 63, 99}) {
      const Output some = forward_in_phases(order, first);
      const auto of_o = static_cast<std::ptrdiff_t>(first * whole_.heads_q * whole_.dim_v);
      EXPECT_EQ(Numbers(all.o.begin() + of_o, all.o.end()), some.o) << "from row " << first;
      for (int64_t head = 0; head < whole_.heads_q; ++head)
        for (int64_t row = first; row < sq; ++row)
          EXPECT_EQ(all.lse[head * sq + row], some.lse[head * (sq - first) + row - first]) << head << " " << row;
    }
  }
}

constexpr const char* lines[] = {"fwd bf16 b2 hq4 hkv2 sq100 skv300 d128 causal",
                                 "fwd bf16 b1 hq2 hkv2 sq100 skv300 d64",
                                 "fwd f16 b2 hq2 hkv1 sq100 skv300 d256 causal",
                                 "fwd bf16 b1 hq4 hkv4 sq100 skv300 d192 dv128 sink",
                                 "fwd bf16 b2 hq4 hkv1 sq100 skv300 d128 causal softcap20 sink",
                                 "fwd bf16 b1 hq4 hkv2 sq100 skv300 d128 causal sink invariant",
                                 "fwd bf16 b3 hq16 hkv2 sq2 skv9000 d128 causal sink",
                                 "fwd f16 b1 hq8 hkv2 sq1 skv20000 d64"};
INSTANTIATE_TEST_SUITE_P(Cpu, Phases, testing::Combine(testing::ValuesIn(lines), testing::Values("cpu")));
INSTANTIATE_TEST_SUITE_P(F32, Phases,
                         testing::Values(std::tuple{"fwd f32 b2 hq4 hkv2 sq100 skv300 d40 causal sink", "cpu"}));
INSTANTIATE_TEST_SUITE_P(Hopper, Phases, testing::Combine(testing::ValuesIn(lines), testing::Values("hopper")));

constexpr const char* invariant_lines[] = {"fwd bf16 b1 hq4 hkv2 sq100 skv300 d128 causal invariant",
                                           "fwd bf16 b1 hq2 hkv2 sq100 skv300 d64 sink invariant"};
INSTANTIATE_TEST_SUITE_P(Cpu, InvariantPhases,
                         testing::Combine(testing::ValuesIn(invariant_lines), testing::Values("cpu")));
INSTANTIATE_TEST_SUITE_P(Hopper, InvariantPhases,
                         testing::Combine(testing::ValuesIn(invariant_lines), testing::Values("hopper")));

TEST(PhasesOf, AProblemAreOnItsLine) {
  for (const char* line :
       {"fwd bf16 b1 hq2 hkv2 sq100 skv300 d64 phase=first", "bwd bf16 b1 hq2 hkv2 sq100 skv300 d64 acc phase=middle",
        "fwd bf16 b1 hq2 hkv2 sq100 skv300 d64 phase=last", "bwd bf16 b1 hq2 hkv2 sq100 skv300 d64 acc phase=only"}) {
    const auto p = Problem::parse(line);
    ASSERT_TRUE(p) << p.failure().text;
    EXPECT_EQ(p->line(), line);
    EXPECT_EQ(*Problem::from(p->user_struct()), *p);
  }
  const auto wrong = Problem::parse("fwd bf16 b1 hq2 hkv2 sq100 skv300 d64 phase=second");
  ASSERT_FALSE(wrong);
  EXPECT_NE(wrong.failure().text.find("phase=first, middle, last or only is expected."), std::string::npos)
      << wrong.failure().text;
}

TEST(PhasesOf, ABackwardPassHaveAWorkspaceOnTheCpuToo) {
  fh_problem p = fh_problem_init();
  ASSERT_EQ(fh_problem_parse("bwd bf16 b1 hq2 hkv2 sq100 skv300 d64 acc phase=first", &p), FH_OK) << fh_last_error();
  const std::string said = fh_explain(&p, "cpu");
  EXPECT_NE(said.find("workspace  51200 bytes"), std::string::npos) << said;  // 100 rows x 2 heads x 64 of f32
}

TEST(PhasesOf, AContradictionIsSaid) {
  const struct {
    void (*spoil)(fh_problem&);
    const char* text;
    fh_status status = FH_INVALID_PROBLEM;
  } wrong[] = {
      {[](fh_problem& p) { p.phase = static_cast<fh_phase>(7); },
       "phase is 7, which names no call of several. Use FH_PHASE_FIRST, FH_PHASE_MIDDLE, FH_PHASE_LAST or "
       "FH_PHASE_ONLY, or FH_PHASE_NONE where there is one call."},
      {[](fh_problem& p) { p.phase = FH_PHASE_FIRST, p.accumulate = 1; },
       "accumulate is 1 and phase is set; o is merged in o or in o_sum. Set accumulate to 0 for o_sum, or phase to "
       "FH_PHASE_NONE."},
      {[](fh_problem& p) { p.phase = FH_PHASE_LAST, p.gate = 1; },
       "phase is set and gate is 1; gates are applied in one call. Set gate to 0, and multiply o by the sigmoid "
       "after the last call.",
       FH_UNSUPPORTED},
  };
  for (const auto& [spoil, text, status] : wrong) {
    fh_problem p = fh_problem_init();
    ASSERT_EQ(fh_problem_parse("fwd bf16 b1 hq2 hkv2 sq100 skv300 d64", &p), FH_OK) << fh_last_error();
    spoil(p);
    fh_plan* plan = nullptr;
    EXPECT_EQ(fh_plan_create(&p, "cpu", &plan), status);
    EXPECT_NE(std::string(fh_last_error()).find(text), std::string::npos) << fh_last_error();
  }
}

// A tensor that another call of the pass has is refused for that reason.
TEST(PhasesOf, TensorsOfAnotherCallAreRefused) {
  float numbers[64] = {};
  const auto refusal = [&](const char* op, const char* phase, fh_tensor fh_tensors::*given) {
    const auto p = Problem::parse(text("{} f32 b1 hq1 hkv1 sq2 skv2 d8 {}", op, phase));
    EXPECT_TRUE(p) << p.failure().text;
    fh_tensors t = fh_tensors_init();
    t.q = t.k = t.v = {numbers, 0, 8, 8};
    if (p->backward()) t.grad_o = t.grad_k = t.grad_v = t.q;
    if (p->backward() || p->ends()) t.o = t.q;
    if (given) t.*given = t.q, t.lse = numbers;
    const auto bound = bind(*p, t);
    EXPECT_FALSE(bound) << phase;
    return bound ? std::string() : bound.failure().text;
  };
  const auto only_last = [](const char* name) {
    return text("{0} is set, but of calls in phases only the last one writes {0}. Leave {0} NULL in the others.",
                name);
  };
  const char* const o_for_o_sum =
      "o is set and o_sum is NULL, but of calls in phases only the last one writes o; the others write o_sum, in "
      "f32. "
      "Set o_sum in all of them, and leave o NULL before the last.";
  EXPECT_EQ(refusal("fwd", "phase=first", &fh_tensors::o), o_for_o_sum);
  EXPECT_EQ(refusal("fwd", "phase=middle", &fh_tensors::o), o_for_o_sum);
  EXPECT_EQ(
      refusal("fwd", "", &fh_tensors::o_sum),
      "o_sum is set, but phase is FH_PHASE_NONE, so it would be ignored. Leave o_sum NULL; or, of several calls, "
      "set phase to FH_PHASE_FIRST in the first one, to FH_PHASE_LAST in the last one, and to FH_PHASE_MIDDLE in "
      "those between.");
  EXPECT_EQ(refusal("bwd", "acc phase=first", &fh_tensors::grad_q), only_last("grad_q"));
  EXPECT_EQ(
      refusal("fwd", "phase=only", &fh_tensors::o_sum),
      "o_sum is set, but only forward calls of several are merged in it, and phase is FH_PHASE_ONLY. Leave o_sum "
      "NULL.");
  EXPECT_EQ(refusal("fwd", "phase=first", nullptr),
            "lse is NULL; a problem with phase needs one value for each row and head. Set it.");
}

}  // namespace
}  // namespace froghopper
