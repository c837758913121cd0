// SPDX-License-Identifier: Apache-2.0
// tests: attention over ranks that are threads of this process, each with a GPU or, where there are fewer, sharing one.
#pragma once
#include <dlfcn.h>

#include <barrier>

#include "check/gpu/session.hpp"
#include "src/runtime/driver.hpp"
#include "tests/support/cp_compare.hpp"

namespace froghopper::test {

enum class By { copies, nccl };

// What the tests call of libraries that are opened at run time.
template <class Function>
Function* function_of(const char* library, const char* name) {
  void* const opened = dlopen(library, RTLD_NOW | RTLD_GLOBAL);
  return opened ? reinterpret_cast<Function*>(dlsym(opened, name)) : nullptr;
}
template <class Function>
Function* of_driver(const char* name) {
  return function_of<Function>("libcuda.so.1", name);
}
template <class Function>
Function* of_nccl(const char* name) {
  return function_of<Function>("libnccl.so.2", name);
}

struct NcclId {  // ncclUniqueId
  char bytes[128];
};
// ncclConfig_t as NCCL 2.14 has it, which later ones take too.
struct NcclConfig {
  size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef, version = 21400;
  int blocking = 0;
};
constexpr int nccl_in_progress = 7;

inline int hopper_gpus() {
  const auto driver = runtime::driver();
  return driver ? static_cast<int>((*driver)->gpus.size()) : 0;
}

// What is missing for such ranks; "" where nothing is.
inline std::string missing_for(By by) {
  if (const auto gpu = check::GpuSession::open(); !gpu) return gpu.failure().text;
  if (by == By::copies) return "";
  if (hopper_gpus() < 2) return "NCCL takes a GPU for each rank, and there is one";
  if (of_nccl<int(NcclId*)>("ncclGetUniqueId") == nullptr)
    return "libnccl.so.2 is not found; name its folder in LD_LIBRARY_PATH";
  return "";
}

// What the ranks have of each other, and where they meet.
struct GpuRanks {
  GpuRanks(int64_t ranks, By by) : by(by), count(static_cast<size_t>(ranks)), barrier(ranks) {
    workspaces.resize(count), signals.resize(count), contexts.resize(count), digests.resize(count);
    if (by == By::nccl) of_nccl<int(NcclId*)>("ncclGetUniqueId")(&id);
  }
  By by;
  size_t count;
  std::barrier<> barrier;
  std::vector<void*> workspaces;
  std::vector<uint64_t*> signals;
  std::vector<CUcontext> contexts;
  std::vector<uint64_t> digests;
  NcclId id{};
};

// A rank: its GPU, whose context is current on this thread, its streams and its transport.
class GpuRank {
 public:
  GpuRank(GpuRanks& all, int64_t rank) : all_(all), rank_(static_cast<size_t>(rank)) {
    const int ordinal = static_cast<int>(rank) % hopper_gpus();
    driver_ = *runtime::driver();
    gpu = std::move(*check::GpuSession::open(ordinal));
    context_ = *runtime::primary_context(*driver_, driver_->gpus[static_cast<size_t>(ordinal)]);
    driver_->cuCtxPushCurrent_v2(context_);
    of_driver<CUresult(CUstream*, unsigned)>("cuStreamCreate")(&side_, CU_STREAM_NON_BLOCKING);
  }
  GpuRank(const GpuRank&) = delete;
  ~GpuRank() {
    of_driver<CUresult(CUstream)>("cuStreamDestroy_v2")(side_);
    CUcontext popped;
    driver_->cuCtxPopCurrent_v2(&popped);
  }

  void* to_gpu(const void* data, size_t bytes) {
    void* const there = *gpu->allocate(std::max<size_t>(bytes, 1));
    EXPECT_TRUE(bytes == 0 || gpu->upload(there, data, bytes));
    return there;
  }

  // Called by all ranks; timeout: of NCCL's `agree`.
  fh_cp_transport connect(void* workspace, double timeout = 0) {
    fh_cp_transport transport = fh_cp_transport_init();
    if (all_.by == By::nccl) {
      const auto init = of_nccl<int(void**, int, NcclId, int, NcclConfig*)>("ncclCommInitRankConfig");
      const auto state_of = of_nccl<int(void*, int*)>("ncclCommGetAsyncError");
      NcclConfig config;
      int state = init(&comm_, static_cast<int>(all_.count), all_.id, static_cast<int>(rank_), &config);
      while (state == nccl_in_progress && state_of(comm_, &state) == 0) std::this_thread::yield();
      EXPECT_EQ(state, 0);
      void* const scratch = *gpu->allocate(8 * (all_.count + 1));
      EXPECT_EQ(fh_cp_nccl_transport(comm_, nullptr, side_, timeout, scratch, &transport), FH_OK)
          << fh_cp_last_error();
      all_.barrier.arrive_and_wait();  // memory is allocated on no GPU while a kernel of NCCL waits on another
      return transport;
    }
    const std::vector<uint64_t> zeros(2 * all_.count);
    all_.signals[rank_] = static_cast<uint64_t*>(to_gpu(zeros.data(), 8 * zeros.size()));
    all_.workspaces[rank_] = workspace, all_.contexts[rank_] = context_;
    all_.barrier.arrive_and_wait();
    for (const CUcontext peer : all_.contexts)  // an error says that it is enabled already
      if (peer != context_) of_driver<CUresult(CUcontext, unsigned)>("cuCtxEnablePeerAccess")(peer, 0);
    fh_cp_peers peers = fh_cp_peers_init();
    peers.ranks = static_cast<int64_t>(all_.count), peers.rank = static_cast<int64_t>(rank_);
    peers.workspaces = all_.workspaces.data(), peers.signals = all_.signals.data(), peers.copy_stream = side_;
    EXPECT_EQ(fh_cp_copy_transport(&peers, &transport), FH_OK) << fh_cp_last_error();
    all_.barrier.arrive_and_wait();
    return transport;
  }
  // Called by all ranks, after their last run is done.
  void disconnect(fh_cp_transport* transport) {
    all_.barrier.arrive_and_wait();
    if (all_.by == By::copies) return fh_cp_copy_transport_destroy(transport);
    fh_cp_nccl_transport_destroy(transport);
    of_nccl<int(void*)>("ncclCommDestroy")(comm_);
  }

  std::unique_ptr<check::GpuSession> gpu;

 private:
  GpuRanks& all_;
  size_t rank_;
  const runtime::Driver* driver_;
  CUcontext context_ = nullptr;
  CUstream side_ = nullptr;
  void* comm_ = nullptr;
};

inline Members outputs_of(const CpCase& c, fh_op op) {
  if (op == FH_FORWARD) return {&CpTensors::o, &CpTensors::lse};
  Members all = {&CpTensors::grad_q, &CpTensors::grad_k, &CpTensors::grad_v};
  if (c.whole.sink) all.push_back(&CpTensors::grad_sink);
  return all;
}

// One op over ranks: `t` has the inputs of the whole and gets its results. Sums over ranks are those of
// fh_cp_cuda_memory. Outputs and workspaces hold NaN before.
inline void run_on_gpus(const CpCase& c, fh_op op, CpTensors& t, By by) {
  GpuRanks ranks(c.ranks, by);
  std::mutex mutex;
  CpTensors results;
  for (Numbers CpTensors::*x : outputs_of(c, op)) {
    if (x == &CpTensors::grad_sink) continue;
    results.*x = empty_whole(c.whole, x, x == &CpTensors::lse ? Element::f32 : element_of_c(c.whole.dtype));
  }
  std::vector<double> sink(static_cast<size_t>(c.whole.heads_q), 0);
  on_all_ranks(c.ranks, [&](int64_t rank) {
    GpuRank mine(ranks, rank);
    const CpPlan plan = plan_of(c, op, rank, "hopper");
    ASSERT_NE(plan, nullptr);
    const std::vector<fh_cp_range> held = rows_held(plan.get(), rank);
    CpTensors here;
    for (Numbers CpTensors::*x : inputs_of(c, op)) here.*x = shard_of(t.*x, layout_of(c.whole, x), held);
    for (Numbers CpTensors::*x : outputs_of(c, op))
      here.*x = x == &CpTensors::grad_sink ? Numbers(Element::f32, c.whole.heads_q)
                                           : shard_of(results.*x, layout_of(c.whole, x), held);
    here.sink = t.sink, here.scale_k = t.scale_k, here.scale_v = t.scale_v;
    const auto upload = [&](Numbers CpTensors::*x) -> void* {
      return (here.*x).data() ? mine.to_gpu((here.*x).data(), (here.*x).bytes.size()) : nullptr;
    };
    const auto list = [&](Numbers CpTensors::*x) { return static_cast<float*>(upload(x)); };
    fh_cp_tensors x = fh_cp_tensors_init();
    x.q = upload(&CpTensors::q), x.k = upload(&CpTensors::k), x.v = upload(&CpTensors::v);
    x.o = upload(&CpTensors::o), x.lse = list(&CpTensors::lse), x.sink = list(&CpTensors::sink);
    x.scale_k = list(&CpTensors::scale_k), x.scale_v = list(&CpTensors::scale_v);
    x.grad_o = upload(&CpTensors::grad_o), x.grad_lse = list(&CpTensors::grad_lse);
    x.grad_q = upload(&CpTensors::grad_q), x.grad_k = upload(&CpTensors::grad_k);
    x.grad_v = upload(&CpTensors::grad_v), x.grad_sink = list(&CpTensors::grad_sink);
    int64_t count = 0;
    const int32_t* const tables = fh_cp_plan_tables(plan.get(), &count);
    if (count > 0) x.tables = static_cast<int32_t*>(mine.to_gpu(tables, static_cast<size_t>(4 * count)));
    const Workspace nan(fh_cp_plan_workspace_bytes(plan.get()));
    void* const workspace = mine.to_gpu(nan.data(), nan.bytes());
    fh_cp_memory memory;
    EXPECT_EQ(fh_cp_cuda_memory(&memory), FH_OK) << fh_cp_last_error();
    fh_cp_transport transport = c.ranks > 1 ? mine.connect(workspace) : fh_cp_transport_init();
    EXPECT_EQ(fh_cp_plan_run(plan.get(), &transport, &memory, &x, workspace, nan.bytes(), mine.gpu->stream()), FH_OK)
        << fh_cp_last_error() << "\n"
        << fh_cp_plan_text(plan.get());
    EXPECT_TRUE(mine.gpu->finish());
    if (c.ranks > 1) mine.disconnect(&transport);
    const std::pair<Numbers CpTensors::*, const void*> written[] = {
        {&CpTensors::o, x.o},           {&CpTensors::lse, x.lse},       {&CpTensors::grad_q, x.grad_q},
        {&CpTensors::grad_k, x.grad_k}, {&CpTensors::grad_v, x.grad_v}, {&CpTensors::grad_sink, x.grad_sink}};
    const std::lock_guard lock(mutex);
    for (const auto& [member, from] : written) {
      Numbers& part = here.*member;
      if (part.bytes.empty() || (results.*member).bytes.empty() != (member == &CpTensors::grad_sink)) continue;
      EXPECT_TRUE(mine.gpu->download(part.data(), from, part.bytes.size()));
      if (member != &CpTensors::grad_sink) put_back(results.*member, part, layout_of(c.whole, member), held);
    }
    for (int64_t h = 0; h < here.grad_sink.count(); ++h) sink[static_cast<size_t>(h)] += here.grad_sink.at(h);
  });
  for (Numbers CpTensors::*x : outputs_of(c, op)) t.*x = results.*x;
  if (op == FH_FORWARD || !c.whole.sink) return;
  t.grad_sink = Numbers(Element::f32, c.whole.heads_q);
  for (int64_t h = 0; h < c.whole.heads_q; ++h) t.grad_sink.set(h, static_cast<float>(sink[static_cast<size_t>(h)]));
}

}  // namespace froghopper::test
