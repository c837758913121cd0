// SPDX-License-Identifier: Apache-2.0
// cp: a transport over NCCL. An exchange is one group of sends and receives, on the stream of the run or concurrently
// on one of the caller's, ordered by events.
#include <froghopper/cp.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "src/base/counted.hpp"
#include "src/base/text.hpp"
#include "src/cp/driver.hpp"
#include "src/cp/errors.hpp"

namespace froghopper::cp {
namespace {

constexpr int success = 0, in_progress = 7, bytes_type = 0;  // ncclSuccess, ncclInProgress, ncclInt8
constexpr double usual_timeout = 600;                        // seconds

class Transport {
 public:
  Transport(const Nccl& nccl, void* comm, CUstream side, double timeout, void* scratch)
      : nccl_(nccl), comm_(comm), side_(side), timeout_(timeout > 0 ? timeout : usual_timeout), scratch_(scratch) {}
  ~Transport() {
    for (const CUevent event : events_) driver_.event_destroy(event);
  }
  Result<void> prepare();
  int64_t ranks = 0, rank = 0;
  std::string text_of_error;

  int exchange(const fh_cp_transfer* sends, int64_t send_count, const fh_cp_transfer* recvs, int64_t recv_count,
               CUstream stream, void** ticket);
  int wait(void* ticket, CUstream stream);
  int agree(uint64_t digest, uint64_t* digests);
  void cancel();

 private:
  int nccl(int code, const char* what);
  int cuda(CUresult code, const char* what);
  int settled(const char* what);  // a communicator that does not block is done when it says so
  int event(CUevent* made);
  std::chrono::steady_clock::time_point deadline() const {
    return std::chrono::steady_clock::now() +
           std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(timeout_));
  }

  Nccl nccl_;
  Driver driver_{};
  void* comm_;
  CUstream side_;
  double timeout_;
  void* scratch_;
  bool cancelled_ = false;
  std::vector<CUevent> events_, free_;
};

Result<void> Transport::prepare() {
  int count = 0, own = 0;
  if (nccl(nccl_.count(comm_, &count), "ncclCommCount") || nccl(nccl_.rank(comm_, &own), "ncclCommUserRank"))
    return Failure{FH_LAUNCH_FAILED, text_of_error};
  ranks = count, rank = own;
  if (side_ == nullptr && scratch_ == nullptr) return {};  // the driver is not called
  Result<Driver> driver = find_driver(nccl_.handle);
  if (!driver) return driver.failure();
  driver_ = *driver;
  return {};
}

int Transport::nccl(int code, const char* what) {
  if (code == success || code == in_progress) return 0;
  text_of_error = text("{}: {}", what, nccl_.error_string(code));
  return code;
}

int Transport::cuda(CUresult code, const char* what) {
  if (code == CUDA_SUCCESS) return 0;
  const char* name = nullptr;
  driver_.error_name(code, &name);
  text_of_error = text("{}: {}", what, name != nullptr ? name : "unknown error");
  return static_cast<int>(code);
}

int Transport::settled(const char* what) {
  const auto until = deadline();
  for (;;) {
    int state = success;
    if (const int code = nccl(nccl_.async_error(comm_, &state), "ncclCommGetAsyncError")) return code;
    if (state == success) return 0;
    if (const int code = nccl(state, what)) return code;
    if (std::chrono::steady_clock::now() > until) {
      text_of_error = text("{} was not done after {}", what, counted(timeout_, "second"));
      return -1;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

int Transport::event(CUevent* made) {
  if (!free_.empty()) {
    *made = free_.back();
    free_.pop_back();
    return 0;
  }
  events_.reserve(events_.size() + 1);
  free_.reserve(events_.size() + 1);
  if (const int code = cuda(driver_.event_create(made, CU_EVENT_DISABLE_TIMING), "cuEventCreate")) return code;
  events_.push_back(*made);
  return 0;
}

int Transport::exchange(const fh_cp_transfer* sends, int64_t send_count, const fh_cp_transfer* recvs,
                        int64_t recv_count, CUstream stream, void** ticket) {
  *ticket = nullptr;
  if (cancelled_) return text_of_error = "the communicator was aborted", -1;
  if (send_count + recv_count == 0) return 0;
  const CUstream lane = side_ != nullptr ? side_ : stream;
  CUevent order = nullptr;
  if (side_ != nullptr) {
    if (const int code = event(&order)) return code;
    if (const int code = cuda(driver_.event_record(order, stream), "cuEventRecord")) return code;
    if (const int code = cuda(driver_.stream_wait(side_, order, 0), "cuStreamWaitEvent")) return code;
  }
  if (const int code = nccl(nccl_.group_start(), "ncclGroupStart")) return code;
  int first_failure = 0;
  for (int64_t i = 0; i < send_count && !first_failure; ++i)
    first_failure =
        nccl(nccl_.send(sends[i].data, sends[i].bytes, bytes_type, static_cast<int>(sends[i].peer), comm_, lane),
             "ncclSend");
  for (int64_t i = 0; i < recv_count && !first_failure; ++i)
    first_failure =
        nccl(nccl_.recv(recvs[i].data, recvs[i].bytes, bytes_type, static_cast<int>(recvs[i].peer), comm_, lane),
             "ncclRecv");
  const int ended = nccl_.group_end();  // also after a failure: groups nest
  if (first_failure) return first_failure;
  if (const int code = nccl(ended, "ncclGroupEnd")) return code;
  if (const int code = settled("ncclGroupEnd")) return code;
  if (side_ == nullptr) return 0;
  // The event has been waited for in stream order, so it may be recorded again.
  if (const int code = cuda(driver_.event_record(order, side_), "cuEventRecord")) return code;
  *ticket = order;
  return 0;
}

int Transport::wait(void* ticket, CUstream stream) {
  if (cancelled_) return text_of_error = "the communicator was aborted", -1;
  int state = success;
  if (const int code = nccl(nccl_.async_error(comm_, &state), "ncclCommGetAsyncError")) return code;
  if (const int code = nccl(state, "a transfer")) return code;
  if (ticket == nullptr) return 0;
  const CUevent done = static_cast<CUevent>(ticket);
  if (const int code = cuda(driver_.stream_wait(stream, done, 0), "cuStreamWaitEvent")) return code;
  free_.push_back(done);
  return 0;
}

// The scratch memory holds this rank's digest behind those of all ranks. The host waits here, looking for errors.
int Transport::agree(uint64_t digest, uint64_t* digests) {
  if (cancelled_) return text_of_error = "the communicator was aborted", -1;
  const size_t bytes = static_cast<size_t>(ranks) * sizeof digest;
  char* const own = static_cast<char*>(scratch_) + bytes;
  const CUdeviceptr from = reinterpret_cast<uintptr_t>(own), all = reinterpret_cast<uintptr_t>(scratch_);
  if (const int code = cuda(driver_.to_device(from, &digest, sizeof digest, side_), "cuMemcpyHtoDAsync")) return code;
  if (const int code =
          nccl(nccl_.all_gather(own, scratch_, sizeof digest, bytes_type, comm_, side_), "ncclAllGather"))
    return code;
  if (const int code = settled("ncclAllGather")) return code;
  CUevent done = nullptr;
  if (const int code = event(&done)) return code;
  if (const int code = cuda(driver_.event_record(done, side_), "cuEventRecord")) return code;
  const auto until = deadline();
  for (;;) {
    const CUresult state = driver_.event_query(done);
    if (state == CUDA_SUCCESS) break;
    if (state != CUDA_ERROR_NOT_READY) return cuda(state, "cuEventQuery");
    int error = success;
    if (const int code = nccl(nccl_.async_error(comm_, &error), "ncclCommGetAsyncError")) return code;
    if (const int code = nccl(error, "ncclAllGather")) return code;
    if (std::chrono::steady_clock::now() > until) {
      text_of_error = text("the other ranks were not there after {}", counted(timeout_, "second"));
      return -1;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  free_.push_back(done);
  return cuda(driver_.to_host(digests, all, bytes, side_), "cuMemcpyDtoHAsync");
}

void Transport::cancel() {
  if (cancelled_) return;
  cancelled_ = true;
  nccl_.give_up(comm_);
}

Transport& of(void* context) { return *static_cast<Transport*>(context); }

fh_cp_transport table_of(Transport& t, bool compares) {
  fh_cp_transport table = fh_cp_transport_init();
  table.context = &t, table.ranks = t.ranks, table.rank = t.rank;
  table.exchange = [](void* context, const fh_cp_transfer* sends, int64_t send_count, const fh_cp_transfer* recvs,
                      int64_t recv_count, void* stream, void** ticket) {
    return of(context).exchange(sends, send_count, recvs, recv_count, static_cast<CUstream>(stream), ticket);
  };
  table.wait = [](void* context, void* ticket, void* stream) {
    return of(context).wait(ticket, static_cast<CUstream>(stream));
  };
  table.cancel = [](void* context) { of(context).cancel(); };
  table.error = [](void* context) { return of(context).text_of_error.c_str(); };
  if (compares)
    table.agree = [](void* context, uint64_t digest, uint64_t* digests) {
      return of(context).agree(digest, digests);
    };
  return table;
}

}  // namespace
}  // namespace froghopper::cp

fh_status fh_cp_nccl_transport(void* comm, const char* library, void* comm_stream, double timeout_seconds,
                               void* scratch, fh_cp_transport* transport) try {
  using namespace froghopper;
  using namespace froghopper::cp;
  constexpr const char* call = "fh_cp_nccl_transport";
  if (comm == nullptr) return is_null(call, "comm", FH_INVALID_TENSOR);
  if (transport == nullptr) return has_no_place(call, "transport", FH_INVALID_TENSOR);
  const Result<Nccl> nccl = find_nccl(library);
  if (!nccl) return failed(call, nccl.failure());
  auto made = std::make_unique<Transport>(*nccl, comm, static_cast<CUstream>(comm_stream), timeout_seconds, scratch);
  if (const Result<void> ready = made->prepare(); !ready) return failed(call, ready.failure());
  *transport = table_of(*made.release(), scratch != nullptr);
  return FH_OK;
} catch (const std::exception&) {
  return froghopper::cp::failed("fh_cp_nccl_transport", {FH_INTERNAL, "out of host memory."});
}

void fh_cp_nccl_transport_destroy(fh_cp_transport* transport) {
  if (transport == nullptr) return;
  delete static_cast<froghopper::cp::Transport*>(transport->context);
  *transport = fh_cp_transport_init();
}
