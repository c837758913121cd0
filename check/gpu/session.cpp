// SPDX-License-Identifier: Apache-2.0
// check/gpu: libcuda by name, beyond what the library itself calls.
#include "check/gpu/session.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <vector>

#include "src/base/counted.hpp"
#include "src/base/text.hpp"
#include "src/runtime/driver.hpp"

namespace froghopper::check {

namespace {

// Typed as cuda.h has them, and looked up under the names that every driver since CUDA 12 exports.
struct Functions {
  CUresult (*mem_alloc)(CUdeviceptr*, size_t);
  CUresult (*mem_free)(CUdeviceptr);
  CUresult (*copy_to_gpu)(CUdeviceptr, const void*, size_t);
  CUresult (*copy_to_host)(void*, CUdeviceptr, size_t);
  CUresult (*copy_on_gpu)(CUdeviceptr, CUdeviceptr, size_t, CUstream);
  CUresult (*stream_create)(CUstream*, unsigned);
  CUresult (*stream_destroy)(CUstream);
  CUresult (*stream_synchronize)(CUstream);
  CUresult (*fill)(CUdeviceptr, unsigned char, size_t, CUstream);
  CUresult (*begin_capture)(CUstream, CUstreamCaptureMode);
  CUresult (*end_capture)(CUstream, CUgraph*);
  CUresult (*graph_instantiate)(CUgraphExec*, CUgraph, unsigned long long);
  CUresult (*graph_launch)(CUgraphExec, CUstream);
  CUresult (*graph_exec_destroy)(CUgraphExec);
  CUresult (*graph_destroy)(CUgraph);
  CUresult (*event_create)(CUevent*, unsigned);
  CUresult (*event_destroy)(CUevent);
  CUresult (*event_record)(CUevent, CUstream);
  CUresult (*event_synchronize)(CUevent);
  CUresult (*event_elapsed)(float*, CUevent, CUevent);
};

bool look_up(Functions& f) {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW);
  if (!library) return false;
  bool all = true;
  const auto get = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    all = all && function != nullptr;
  };
  get(f.mem_alloc, "cuMemAlloc_v2");
  get(f.mem_free, "cuMemFree_v2");
  get(f.copy_to_gpu, "cuMemcpyHtoD_v2");
  get(f.copy_to_host, "cuMemcpyDtoH_v2");
  get(f.copy_on_gpu, "cuMemcpyDtoDAsync_v2");
  get(f.stream_create, "cuStreamCreate");
  get(f.stream_destroy, "cuStreamDestroy_v2");
  get(f.stream_synchronize, "cuStreamSynchronize");
  get(f.fill, "cuMemsetD8Async");
  get(f.begin_capture, "cuStreamBeginCapture_v2");
  get(f.end_capture, "cuStreamEndCapture");
  get(f.graph_instantiate, "cuGraphInstantiateWithFlags");
  get(f.graph_launch, "cuGraphLaunch");
  get(f.graph_exec_destroy, "cuGraphExecDestroy");
  get(f.graph_destroy, "cuGraphDestroy");
  get(f.event_create, "cuEventCreate");
  get(f.event_destroy, "cuEventDestroy_v2");
  get(f.event_record, "cuEventRecord");
  get(f.event_synchronize, "cuEventSynchronize");
  get(f.event_elapsed, "cuEventElapsedTime");
  return all;
}

class Session : public GpuSession {
 public:
  Session(const runtime::Driver& driver, const runtime::Gpu& gpu, CUcontext context, const Functions& functions)
      : driver_(driver), gpu_(gpu), context_(context), f_(functions) {}

  ~Session() override {
    const runtime::CurrentContext current(driver_, context_);
    for (const CUgraphExec graph : graphs_) f_.graph_exec_destroy(graph);
    for (const CUdeviceptr memory : memory_) f_.mem_free(memory);
    if (begin_) f_.event_destroy(begin_);
    if (end_) f_.event_destroy(end_);
    if (stream_) f_.stream_destroy(stream_);
  }

  // A stream that does not wait for the default one, so that nothing relies on it.
  Result<void> start() {
    const runtime::CurrentContext current(driver_, context_);
    if (auto r = wrong("cuStreamCreate", f_.stream_create(&stream_, CU_STREAM_NON_BLOCKING)); !r) return r;
    if (auto r = wrong("cuEventCreate", f_.event_create(&begin_, CU_EVENT_DEFAULT)); !r) return r;
    return wrong("cuEventCreate", f_.event_create(&end_, CU_EVENT_DEFAULT));
  }

  Result<void*> allocate(size_t bytes) override {
    const runtime::CurrentContext current(driver_, context_);
    CUdeviceptr memory = 0;
    const CUresult result = f_.mem_alloc(&memory, bytes);
    if (result != CUDA_SUCCESS) {
      return Failure{FH_NO_DEVICE, text("{} of {} could not be had; {}. Take a smaller problem.",
                                        counted(bytes, "byte"), gpu_.name, driver_.words(result))};
    }
    memory_.push_back(memory);
    return reinterpret_cast<void*>(memory);
  }

  Result<void> upload(void* to, const void* from, size_t bytes) override {
    const runtime::CurrentContext current(driver_, context_);
    if (auto r = wrong("cuMemcpyHtoD", f_.copy_to_gpu(reinterpret_cast<CUdeviceptr>(to), from, bytes)); !r) return r;
    // The copy's last piece may still be under way in the default stream, for which stream_ does not wait.
    return wrong("cuStreamSynchronize", f_.stream_synchronize(nullptr));
  }

  Result<void> download(void* to, const void* from, size_t bytes) override {
    const runtime::CurrentContext current(driver_, context_);
    return wrong("cuMemcpyDtoH", f_.copy_to_host(to, reinterpret_cast<CUdeviceptr>(from), bytes));
  }

  Result<void> copy(void* to, const void* from, size_t bytes) override {
    const runtime::CurrentContext current(driver_, context_);
    return wrong("cuMemcpyDtoDAsync", f_.copy_on_gpu(reinterpret_cast<CUdeviceptr>(to),
                                                     reinterpret_cast<CUdeviceptr>(from), bytes, stream_));
  }

  void* stream() const override { return stream_; }

  Result<void> fill(void* at, unsigned char byte, size_t bytes) override {
    const runtime::CurrentContext current(driver_, context_);
    if (bytes == 0) return {};
    return wrong("cuMemsetD8Async", f_.fill(reinterpret_cast<CUdeviceptr>(at), byte, bytes, stream_));
  }

  Result<std::function<Result<void>()>> capture(const std::function<Result<void>()>& work) override {
    const runtime::CurrentContext current(driver_, context_);
    constexpr auto mode = CU_STREAM_CAPTURE_MODE_GLOBAL;  // the strictest: nothing unsafe may be called meanwhile
    if (auto r = wrong("cuStreamBeginCapture", f_.begin_capture(stream_, mode)); !r) return r.failure();
    const auto worked = work();
    CUgraph graph = nullptr;
    const auto ended = wrong("cuStreamEndCapture", f_.end_capture(stream_, &graph));
    if (!worked) {
      if (graph) f_.graph_destroy(graph);
      return worked.failure();
    }
    if (!ended) return ended.failure();
    CUgraphExec replay = nullptr;
    const auto made = wrong("cuGraphInstantiate", f_.graph_instantiate(&replay, graph, 0));
    f_.graph_destroy(graph);
    if (!made) return made.failure();
    graphs_.push_back(replay);
    return std::function<Result<void>()>([this, replay]() -> Result<void> {
      const runtime::CurrentContext in_context(driver_, context_);
      return wrong("cuGraphLaunch", f_.graph_launch(replay, stream_));
    });
  }

  Result<void> finish() override {
    const runtime::CurrentContext current(driver_, context_);
    return wrong("cuStreamSynchronize", f_.stream_synchronize(stream_));
  }

  Result<double> time(const std::function<Result<void>()>& work) override {
    const runtime::CurrentContext current(driver_, context_);
    if (auto r = wrong("cuEventRecord", f_.event_record(begin_, stream_)); !r) return r.failure();
    if (auto r = work(); !r) return r.failure();
    if (auto r = wrong("cuEventRecord", f_.event_record(end_, stream_)); !r) return r.failure();
    if (auto r = wrong("cuEventSynchronize", f_.event_synchronize(end_)); !r) return r.failure();
    float ms = 0;
    if (auto r = wrong("cuEventElapsedTime", f_.event_elapsed(&ms, begin_, end_)); !r) return r.failure();
    return ms;
  }

  std::string machine() const override { return gpu_.name; }
  std::string driver() const override {
    return text("CUDA {}.{}", driver_.version / 1000, driver_.version % 1000 / 10);
  }

 private:
  Result<void> wrong(const char* call, CUresult result) const {
    if (result == CUDA_SUCCESS) return {};
    return Failure{FH_LAUNCH_FAILED, text("{} on {}: {}.", call, gpu_.name, driver_.words(result))};
  }

  const runtime::Driver& driver_;
  const runtime::Gpu& gpu_;
  const CUcontext context_;
  const Functions f_;
  CUstream stream_ = nullptr;
  CUevent begin_ = nullptr, end_ = nullptr;
  std::vector<CUdeviceptr> memory_;
  std::vector<CUgraphExec> graphs_;
};

}  // namespace

Result<std::unique_ptr<GpuSession>> GpuSession::open(int ordinal) {
  const auto driver = runtime::driver();
  if (!driver) return driver.failure();
  if (ordinal < 0) ordinal = std::max(0, runtime::current_gpu(**driver));
  const auto gpu = runtime::hopper_gpu(**driver, ordinal);
  if (!gpu) return gpu.failure();
  const auto context = runtime::primary_context(**driver, **gpu);
  if (!context) return context.failure();
  Functions functions;
  if (!look_up(functions))
    return Failure{FH_NO_DEVICE, "libcuda.so.1 lacks functions of CUDA 12; update the driver."};
  auto session = std::make_unique<Session>(**driver, **gpu, *context, functions);
  if (auto started = session->start(); !started) return started.failure();
  return std::unique_ptr<GpuSession>(std::move(session));
}

}  // namespace froghopper::check
