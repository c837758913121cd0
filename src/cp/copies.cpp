// SPDX-License-Identifier: Apache-2.0
// cp: a transport between GPUs of one host by the driver's copies.
//
// Order     When a rank's receive buffers are free, it tells each peer that sends to it: "ready". The peer's copy
//           stream waits for that, copies, and tells: "done". The run's stream waits for all of these where the run
//           says `wait`.
// Words     A rank has a word of 64 bits for each signal of each peer. Lower half: the number of the last exchange of
//           which that peer has told; only the peer writes it, "ready" in the stream of its runs and "done" in its copy
//           stream. Upper half: 0, and 1 once the rank has cancelled; only the rank itself writes it.
// Waits     for exchange n end when the word, as one number, is at least n. A peer writes its numbers in their order,
//           each after the work that it stands for, so that a word of n or more says that the work of n is done.
//           While the upper half is 0, nothing else ends a wait.
// Cancel    With an upper half of 1 the word is larger than every number. What a slow peer writes afterwards changes
//           only the lower half, so all waits that are in the streams end. On the host a cancelled transport refuses
//           further exchanges and waits.
// Numbers   begin with 1, since words are 0 at first. They do not wrap: a word of 2^32 - 1 would end waits for 0. After
//           that one `exchange` fails.
#include <froghopper/cp.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "src/base/sized.hpp"
#include "src/base/text.hpp"
#include "src/cp/driver.hpp"
#include "src/cp/errors.hpp"

namespace froghopper::cp {
namespace {

constexpr uint32_t last_number = std::numeric_limits<uint32_t>::max();
constexpr uint32_t cancelled_half = 1;
constexpr const char* was_cancelled =
    "the transport was cancelled. End all ranks of the run, or make a new transport over signals that are 0.";

// A context that is current for as long as this lives, unless there is a failure.
class CurrentContext {
 public:
  CurrentContext(const CopyDriver& driver, CUcontext context)
      : driver_(driver), code_(driver.context_push(context)) {}
  ~CurrentContext() {
    CUcontext popped;
    if (code_ == CUDA_SUCCESS) driver_.context_pop(&popped);
  }
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;
  CUresult code() const { return code_; }

 private:
  const CopyDriver& driver_;
  CUresult code_;
};

class CopyTransport {
 public:
  CopyTransport(const CopyDriver& driver, const fh_cp_peers& peers)
      : driver_(driver),
        ranks_(peers.ranks),
        rank_(peers.rank),
        copies_(static_cast<CUstream>(peers.copy_stream)),
        workspaces_(peers.workspaces, peers.workspaces + peers.ranks),
        signals_(peers.signals, peers.signals + peers.ranks) {}
  ~CopyTransport();
  Result<void> prepare();

  int exchange(const fh_cp_transfer* sends, int64_t send_count, const fh_cp_transfer* recvs, int64_t recv_count,
               CUstream stream, void** ticket);
  int wait(const void* ticket, CUstream stream);
  void cancel();
  const char* error() const { return text_of_error_.c_str(); }

 private:
  enum class Signal { ready, done };
  // Where a rank finds the signal of a peer.
  CUdeviceptr word(int64_t rank, Signal signal, int64_t peer) const {
    const int64_t at = (signal == Signal::done ? ranks_ : 0) + peer;
    return reinterpret_cast<uintptr_t>(signals_[static_cast<size_t>(rank)] + at);
  }
  int tell(CUstream stream, int64_t peer, Signal signal, uint32_t number) {
    return cuda(driver_.write_value(stream, word(peer, signal, rank_), number, CU_STREAM_WRITE_VALUE_DEFAULT),
                "cuStreamWriteValue32");
  }
  int wait_for(CUstream stream, int64_t peer, Signal signal, uint32_t number) {
    return cuda(driver_.wait_value(stream, word(rank_, signal, peer), number, CU_STREAM_WAIT_VALUE_GEQ),
                "cuStreamWaitValue64");
  }
  struct InFlight {
    std::vector<int64_t> from;  // peers
    CUevent sent;               // all that this rank sends; null: it sends nothing
  };
  int start(uint32_t number, const fh_cp_transfer* sends, int64_t send_count, CUstream stream, InFlight& group);
  int finish(uint32_t number, const InFlight& group, CUstream stream);
  int send_all(const fh_cp_transfer* sends, int64_t count, int64_t peer);
  int event(CUevent* made);
  int cuda(CUresult code, const char* what);
  int refuse(std::string why);

  CopyDriver driver_;
  int64_t ranks_, rank_;
  CUcontext context_ = nullptr;
  CUstream copies_, rescue_ = nullptr;
  std::vector<void*> workspaces_;
  std::vector<uint64_t*> signals_;
  uint32_t number_ = 0;                      // of the last exchange
  std::map<uintptr_t, InFlight> in_flight_;  // by their numbers, which are their tickets
  std::atomic<bool> cancelled_ = false;      // cancel() may come from another thread
  std::vector<CUevent> events_, free_;
  std::string text_of_error_;
};

// The context is that of the copy stream, whatever is current where a function is called.
Result<void> CopyTransport::prepare() {
  if (cuda(driver_.stream_context(copies_, &context_), "cuStreamGetCtx") != 0)
    return Failure{FH_LAUNCH_FAILED, text_of_error_};
  const CurrentContext scope(driver_, context_);
  CUdevice gpu = 0;
  int waits = 0;
  if (cuda(scope.code(), "cuCtxPushCurrent") != 0 || cuda(driver_.context_device(&gpu), "cuCtxGetDevice") != 0 ||
      cuda(driver_.attribute(&waits, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, gpu),
           "cuDeviceGetAttribute") != 0)
    return Failure{FH_LAUNCH_FAILED, text_of_error_};
  if (waits == 0)
    return Failure{FH_UNSUPPORTED,
                   text("GPU {} has no waits for 64 bits (cuStreamWaitValue64). Use FH_CP_SEND_RECV.", gpu)};
  if (cuda(driver_.stream_create(&rescue_, CU_STREAM_NON_BLOCKING), "cuStreamCreate") != 0)
    return Failure{FH_LAUNCH_FAILED, text_of_error_};
  return {};
}

CopyTransport::~CopyTransport() {
  if (context_ == nullptr) return;
  const CurrentContext scope(driver_, context_);
  if (scope.code() != CUDA_SUCCESS) return;  // what was made in the context has gone with it
  for (const CUevent event : events_) driver_.event_destroy(event);
  if (rescue_ != nullptr) driver_.stream_destroy(rescue_);
}

int CopyTransport::cuda(CUresult code, const char* what) {
  if (code == CUDA_SUCCESS) return 0;
  const char* name = nullptr;
  driver_.error_name(code, &name);
  text_of_error_ = text("{}: {}", what, name != nullptr ? name : "unknown error");
  return static_cast<int>(code);
}

int CopyTransport::refuse(std::string why) {
  text_of_error_ = std::move(why);
  return static_cast<int>(CUDA_ERROR_INVALID_VALUE);
}

int CopyTransport::event(CUevent* made) {
  if (!free_.empty()) {
    *made = free_.back();
    free_.pop_back();
    return 0;
  }
  if (const int code = cuda(driver_.event_create(made, CU_EVENT_DISABLE_TIMING), "cuEventCreate")) return code;
  events_.push_back(*made);
  return 0;
}

// Each once, in the order of their first transfers.
std::vector<int64_t> peers_of(const fh_cp_transfer* transfers, int64_t count) {
  std::vector<int64_t> peers;
  for (int64_t i = 0; i < count; ++i)
    if (std::find(peers.begin(), peers.end(), transfers[i].peer) == peers.end()) peers.push_back(transfers[i].peer);
  return peers;
}

int CopyTransport::send_all(const fh_cp_transfer* sends, int64_t count, int64_t peer) {
  for (int64_t i = 0; i < count; ++i) {
    if (sends[i].peer != peer) continue;
    const auto to = reinterpret_cast<uintptr_t>(workspaces_[static_cast<size_t>(peer)]) + sends[i].peer_offset;
    const auto from = reinterpret_cast<uintptr_t>(sends[i].data);
    if (const int code = cuda(driver_.memcpy(to, from, sends[i].bytes, copies_), "cuMemcpyAsync")) return code;
  }
  return 0;
}

int CopyTransport::exchange(const fh_cp_transfer* sends, int64_t send_count, const fh_cp_transfer* recvs,
                            int64_t recv_count, CUstream stream, void** ticket) {
  *ticket = nullptr;
  if (cancelled_) return refuse(was_cancelled);
  if (number_ == last_number)
    return refuse(
        "a transport makes 2^32 - 1 exchanges, and this one has made them. Make a new one over signals "
        "that are 0.");
  const CurrentContext scope(driver_, context_);
  if (const int code = cuda(scope.code(), "cuCtxPushCurrent")) return code;
  InFlight group{peers_of(recvs, recv_count), nullptr};
  const uint32_t number = ++number_;
  if (const int code = start(number, sends, send_count, stream, group)) return code;
  in_flight_.emplace(number, std::move(group));
  *ticket = reinterpret_cast<void*>(uintptr_t{number});
  return 0;
}

// All ranks tell that they are ready before any waits, so none waits for one that waits for it.
int CopyTransport::start(uint32_t number, const fh_cp_transfer* sends, int64_t send_count, CUstream stream,
                         InFlight& group) {
  for (const int64_t peer : group.from)
    if (const int code = tell(stream, peer, Signal::ready, number)) return code;
  if (send_count == 0) return 0;
  if (const int code = event(&group.sent)) return code;
  if (const int code = cuda(driver_.event_record(group.sent, stream), "cuEventRecord")) return code;
  if (const int code = cuda(driver_.stream_wait(copies_, group.sent, 0), "cuStreamWaitEvent")) return code;
  for (const int64_t peer : peers_of(sends, send_count)) {
    if (const int code = wait_for(copies_, peer, Signal::ready, number)) return code;
    if (const int code = send_all(sends, send_count, peer)) return code;
    if (const int code = tell(copies_, peer, Signal::done, number)) return code;
  }
  // What waited for the event has been told so, and it may be recorded again.
  return cuda(driver_.event_record(group.sent, copies_), "cuEventRecord");
}

int CopyTransport::wait(const void* ticket, CUstream stream) {
  if (cancelled_) return refuse(was_cancelled);
  const auto number = reinterpret_cast<uintptr_t>(ticket);
  const auto found = in_flight_.extract(number);
  if (found.empty())
    return refuse(
        text("the ticket is {}, which no exchange has given or which was waited for already. Wait once for "
             "each exchange that returned 0.",
             number));
  const CurrentContext scope(driver_, context_);
  if (const int code = cuda(scope.code(), "cuCtxPushCurrent")) return code;
  return finish(static_cast<uint32_t>(number), found.mapped(), stream);
}

int CopyTransport::finish(uint32_t number, const InFlight& group, CUstream stream) {
  for (const int64_t peer : group.from)
    if (const int code = wait_for(stream, peer, Signal::done, number)) return code;
  if (group.sent == nullptr) return 0;
  if (const int code = cuda(driver_.stream_wait(stream, group.sent, 0), "cuStreamWaitEvent")) return code;
  free_.push_back(group.sent);
  return 0;
}

// In a stream of its own, since the others wait. The text of the last failure is the other thread's.
void CopyTransport::cancel() {
  cancelled_ = true;
  const CurrentContext scope(driver_, context_);
  if (scope.code() != CUDA_SUCCESS) return;
  for (const Signal signal : {Signal::ready, Signal::done})
    for (int64_t peer = 0; peer < ranks_; ++peer)
      driver_.write_value(rescue_, word(rank_, signal, peer) + sizeof(uint32_t), cancelled_half,
                          CU_STREAM_WRITE_VALUE_DEFAULT);
}

CopyTransport& copies_of(void* context) { return *static_cast<CopyTransport*>(context); }

fh_cp_transport table_of(CopyTransport& t, const fh_cp_peers& peers) {
  fh_cp_transport table = fh_cp_transport_init();
  table.context = &t, table.ranks = peers.ranks, table.rank = peers.rank;
  table.transfers = FH_CP_PEER_COPIES;
  table.exchange = [](void* context, const fh_cp_transfer* sends, int64_t send_count, const fh_cp_transfer* recvs,
                      int64_t recv_count, void* stream, void** ticket) {
    return copies_of(context).exchange(sends, send_count, recvs, recv_count, static_cast<CUstream>(stream), ticket);
  };
  table.wait = [](void* context, void* ticket, void* stream) {
    return copies_of(context).wait(ticket, static_cast<CUstream>(stream));
  };
  table.cancel = [](void* context) { copies_of(context).cancel(); };
  table.error = [](void* context) { return copies_of(context).error(); };
  return table;
}

// Empty, or what is wrong.
std::string refused(const fh_cp_peers& p) {
  if (p.ranks < 2 || p.rank < 0 || p.rank >= p.ranks)
    return text(
        "peers.ranks is {} and peers.rank {}, but there must be two ranks or more, and rank one of them. Set "
        "both as in the plan.",
        p.ranks, p.rank);
  for (const auto& [name, list] : {std::pair("workspaces", static_cast<const void*>(p.workspaces)),
                                   std::pair("signals", static_cast<const void*>(p.signals))})
    if (list == nullptr)
      return text("peers.{} must have an address for each of {} ranks, but is NULL. Set it.", name, p.ranks);
  for (int64_t rank = 0; rank < p.ranks; ++rank) {
    const auto signals = reinterpret_cast<uintptr_t>(p.signals[rank]);
    if (p.workspaces[rank] == nullptr || signals == 0)
      return text(
          "peers.{0}[{1}] must be the address of the memory of rank {1} in this process, but is NULL. Map it.",
          signals == 0 ? "signals" : "workspaces", rank);
    if (signals % sizeof(uint64_t) != 0)
      return text("peers.signals[{}] must be at a multiple of {}, but is at {:#x}. Align it.", rank, sizeof(uint64_t),
                  signals);
  }
  return {};
}

}  // namespace
}  // namespace froghopper::cp

fh_status fh_cp_copy_transport(const fh_cp_peers* peers, fh_cp_transport* transport) try {
  using namespace froghopper;
  using namespace froghopper::cp;
  constexpr const char* call = "fh_cp_copy_transport";
  if (peers == nullptr) return is_null(call, "peers", FH_INVALID_TENSOR);
  if (transport == nullptr) return has_no_place(call, "transport", FH_INVALID_TENSOR);
  const Result<fh_cp_peers> given =
      whole_struct(peers, fh_cp_peers_init(), sizeof(fh_cp_peers), FH_INVALID_TENSOR, "fh_cp_peers");
  if (!given) return failed(call, given.failure());
  if (std::string no = refused(*given); !no.empty()) return failed(call, {FH_INVALID_TENSOR, std::move(no)});
  const Result<CopyDriver> driver = find_copy_driver(given->library);
  if (!driver) return failed(call, driver.failure());
  auto made = std::make_unique<CopyTransport>(*driver, *given);
  if (const Result<void> ready = made->prepare(); !ready) return failed(call, ready.failure());
  const fh_cp_transport table = table_of(*made, *given);
  made.release();
  *transport = table;
  return FH_OK;
} catch (const std::exception&) {
  return froghopper::cp::failed("fh_cp_copy_transport", {FH_INTERNAL, "out of host memory."});
}

void fh_cp_copy_transport_destroy(fh_cp_transport* transport) {
  if (transport == nullptr) return;
  delete static_cast<froghopper::cp::CopyTransport*>(transport->context);
  *transport = fh_cp_transport_init();
}
