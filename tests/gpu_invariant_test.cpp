// SPDX-License-Identifier: Apache-2.0
// tests: `invariant` on a GPU: rows of a sequence have the same bits alone and in a batch, packed among others, as
// prefill, in chunks and as decoding, with all SMs and with few.
#include <gtest/gtest.h>

#include "check/backends.hpp"
#include "check/gpu/session.hpp"
#include "tests/support/rows_alone.hpp"

namespace froghopper::check {
namespace {

using test::RowsAlone;

// Tensors of the host, copied to a GPU and back.
class OnGpu {
 public:
  explicit OnGpu(GpuSession& gpu) : gpu_(gpu) {}

  Result<void> run(const fh_problem& p, fh_tensors t) {
    const size_t of_q = p.varlen ? p.total_q : p.batch * p.seq_q, of_kv = p.varlen ? p.total_kv : p.batch * p.seq_kv;
    const size_t dim_v = p.dim_v ? p.dim_v : p.dim_qk;
    void* const o = t.o.data;
    float* const lse = t.lse;
    const size_t bytes_o = of_q * p.heads_q * dim_v * 2, bytes_lse = of_q * p.heads_q * sizeof(float);
    at_ = 0;
    if (auto ok = move(t.q.data, of_q * p.heads_q * p.dim_qk * 2); !ok) return ok;
    if (auto ok = move(t.k.data, of_kv * p.heads_kv * p.dim_qk * 2); !ok) return ok;
    if (auto ok = move(t.v.data, of_kv * p.heads_kv * dim_v * 2); !ok) return ok;
    if (auto ok = move(t.o.data, bytes_o); !ok) return ok;
    if (auto ok = move(t.lse, bytes_lse); !ok) return ok;
    if (p.varlen) {
      if (auto ok = move(t.cu_seqlens_q, (p.batch + 1) * sizeof(int32_t)); !ok) return ok;
      if (auto ok = move(t.cu_seqlens_kv, (p.batch + 1) * sizeof(int32_t)); !ok) return ok;
    }
    if (p.sink)
      if (auto ok = move(t.sink, p.heads_q * sizeof(float)); !ok) return ok;
    fh_plan* made = nullptr;
    if (const fh_status status = fh_plan_create(&p, "hopper", &made); status != FH_OK) return last_failure(status);
    const PlanHandle plan(made, &fh_plan_destroy);
    const size_t bytes = fh_plan_workspace_bytes(plan.get());
    const auto workspace = memory(bytes + 1);
    if (!workspace) return workspace.failure();
    if (auto ok = gpu_.fill(*workspace, 0xff, bytes); !ok) return ok;
    if (const fh_status status = fh_plan_run(plan.get(), &t, *workspace, bytes, gpu_.stream()); status != FH_OK)
      return last_failure(status);
    if (auto ok = gpu_.finish(); !ok) return ok;
    if (auto ok = gpu_.download(o, t.o.data, bytes_o); !ok) return ok;
    return gpu_.download(lse, t.lse, bytes_lse);
  }

 private:
  // Memory of earlier calls is used again where it is enough.
  Result<void*> memory(size_t bytes) {
    if (at_ == held_.size()) held_.push_back({});
    auto& [address, size] = held_[at_++];
    if (size < bytes) {
      const auto more = gpu_.allocate(bytes);
      if (!more) return more.failure();
      address = *more, size = bytes;
    }
    return address;
  }
  template <class T>
  Result<void> move(T*& data, size_t bytes) {
    const auto there = memory(std::max<size_t>(bytes, 1));
    if (!there) return there.failure();
    if (auto ok = gpu_.upload(*there, data, bytes); !ok) return ok;
    data = static_cast<T*>(*there);
    return {};
  }

  GpuSession& gpu_;
  std::vector<std::pair<void*, size_t>> held_;
  size_t at_ = 0;
};

class GpuInvariant : public testing::TestWithParam<const char*> {};

TEST_P(GpuInvariant, bits_in_any_company) {
  auto gpu = GpuSession::open();
  if (!gpu) GTEST_SKIP() << gpu.failure().text;
  const RowsAlone rows(GetParam());
  OnGpu here(**gpu);
  bool no_compiler = false;
  const auto call = [&](const fh_problem& p, const fh_tensors& t) {
    Result<void> done = here.run(p, t);
    no_compiler |= !done && done.failure().text.find("no usable libnvrtc") != std::string::npos;
    return done;
  };
  if (!rows.run(test::companies(rows.problem())[0], call) && no_compiler)
    GTEST_SKIP() << "these kernels are no presets, and there is no usable libnvrtc";
  expect_invariant(rows, call);
}

INSTANTIATE_TEST_SUITE_P(Problems, GpuInvariant,
                         testing::Values("fwd bf16 b1 hq4 hkv1 sq2500 skv2500 d128 causal invariant",
                                         "fwd bf16 b1 hq8 hkv2 sq500 skv3500 d64 softcap30 invariant",
                                         "fwd f16 b1 hq8 hkv1 sq1500 skv1500 d64 window700,0 sink invariant",
                                         "fwd bf16 b1 hq4 hkv2 sq1300 skv1300 d192 dv128 causal invariant",
                                         "fwd bf16 b1 hq4 hkv1 sq1300 skv1300 d256 causal softcap20 invariant",
                                         "fwd bf16 b1 hq4 hkv1 sq1300 skv1300 d128 causal chunk=300 invariant",
                                         "fwd bf16 b1 hq3 hkv3 sq1300 skv1300 d96 causal invariant"));

}  // namespace
}  // namespace froghopper::check
