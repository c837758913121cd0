// SPDX-License-Identifier: Apache-2.0
// cp: a transport between GPUs of one host by the driver's copies. Two signals order the copies of an exchange. When a
// rank's receive buffers are free, it writes the exchange's number to each peer that sends to it: "ready". The peer's
// copy stream waits for that, copies, and writes the number back: "done". The run's stream waits for all of these where
// the run says `wait`. Numbers only grow, so a wait for at least a number needs no reset.
#include <froghopper/cp.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "src/base/text.hpp"
#include "src/cp/driver.hpp"
#include "src/cp/errors.hpp"

namespace froghopper::cp {
namespace {

// Signals are compared as numbers modulo 2^32, of which half count as larger.
constexpr uint32_t beyond_every_wait = 1u << 30;

class CopyTransport {
 public:
  CopyTransport(const CopyDriver& driver, const fh_cp_peers& peers)
      : driver_(driver),
        ranks_(peers.ranks),
        rank_(peers.rank),
        copies_(static_cast<CUstream>(peers.copy_stream)),
        workspaces_(peers.workspaces, peers.workspaces + peers.ranks),
        signals_(peers.signals, peers.signals + peers.ranks) {}
  ~CopyTransport() {
    for (const CUevent event : events_) driver_.event_destroy(event);
    if (rescue_ != nullptr) driver_.stream_destroy(rescue_);
  }
  int prepare() { return cuda(driver_.stream_create(&rescue_, CU_STREAM_NON_BLOCKING), "cuStreamCreate"); }

  int exchange(const fh_cp_transfer* sends, int64_t send_count, const fh_cp_transfer* recvs, int64_t recv_count,
               CUstream stream, void** ticket);
  int wait(CUstream stream);
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
                "cuStreamWaitValue32");
  }
  int send_all(const fh_cp_transfer* sends, int64_t count, int64_t peer);
  int event(CUevent* made);
  int cuda(CUresult code, const char* what);

  struct InFlight {
    uint32_t number;
    std::vector<int64_t> from;  // peers
    CUevent sent;               // all that this rank sends; null: it sends nothing
  };

  CopyDriver driver_;
  int64_t ranks_, rank_;
  CUstream copies_, rescue_ = nullptr;
  std::vector<void*> workspaces_;
  std::vector<uint32_t*> signals_;
  std::atomic<uint32_t> number_ = 0;  // of the last exchange; cancel() may come from another thread
  std::deque<InFlight> in_flight_;
  std::vector<CUevent> events_, free_;
  std::string text_of_error_;
};

int CopyTransport::cuda(CUresult code, const char* what) {
  if (code == CUDA_SUCCESS) return 0;
  const char* name = nullptr;
  driver_.error_name(code, &name);
  text_of_error_ = text("{}: {}", what, name != nullptr ? name : "unknown error");
  return static_cast<int>(code);
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

// All ranks tell that they are ready before any waits, so none waits for one that waits for it.
int CopyTransport::exchange(const fh_cp_transfer* sends, int64_t send_count, const fh_cp_transfer* recvs,
                            int64_t recv_count, CUstream stream, void** ticket) {
  *ticket = nullptr;
  InFlight group{++number_, peers_of(recvs, recv_count), nullptr};
  for (const int64_t peer : group.from)
    if (const int code = tell(stream, peer, Signal::ready, group.number)) return code;
  if (send_count > 0) {
    if (const int code = event(&group.sent)) return code;
    if (const int code = cuda(driver_.event_record(group.sent, stream), "cuEventRecord")) return code;
    if (const int code = cuda(driver_.stream_wait(copies_, group.sent, 0), "cuStreamWaitEvent")) return code;
    for (const int64_t peer : peers_of(sends, send_count)) {
      if (const int code = wait_for(copies_, peer, Signal::ready, group.number)) return code;
      if (const int code = send_all(sends, send_count, peer)) return code;
      if (const int code = tell(copies_, peer, Signal::done, group.number)) return code;
    }
    // What waited for the event has been told so, and it may be recorded again.
    if (const int code = cuda(driver_.event_record(group.sent, copies_), "cuEventRecord")) return code;
  }
  in_flight_.push_back(std::move(group));
  return 0;
}

// Of the oldest exchange that was not waited for.
int CopyTransport::wait(CUstream stream) {
  const InFlight group = std::move(in_flight_.front());
  in_flight_.pop_front();
  for (const int64_t peer : group.from)
    if (const int code = wait_for(stream, peer, Signal::done, group.number)) return code;
  if (group.sent == nullptr) return 0;
  if (const int code = cuda(driver_.stream_wait(stream, group.sent, 0), "cuStreamWaitEvent")) return code;
  free_.push_back(group.sent);
  return 0;
}

// On a stream of its own, since the others wait.
void CopyTransport::cancel() {
  driver_.memset_d32(word(rank_, Signal::ready, 0), number_ + beyond_every_wait, 2 * static_cast<size_t>(ranks_),
                     rescue_);
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
  table.wait = [](void* context, void*, void* stream) {
    return copies_of(context).wait(static_cast<CUstream>(stream));
  };
  table.cancel = [](void* context) { copies_of(context).cancel(); };
  table.error = [](void* context) { return copies_of(context).error(); };
  return table;
}

// Empty, or what is wrong.
std::string refused(const fh_cp_peers& p) {
  if (p.ranks < 2 || p.rank < 0 || p.rank >= p.ranks)
    return text("ranks is {} and rank is {}; there must be two ranks or more, and rank one of them.", p.ranks,
                p.rank);
  if (p.workspaces == nullptr || p.signals == nullptr)
    return "workspaces or signals is NULL. Give an address a rank.";
  for (int64_t rank = 0; rank < p.ranks; ++rank)
    if (p.workspaces[rank] == nullptr || p.signals[rank] == nullptr ||
        reinterpret_cast<uintptr_t>(p.signals[rank]) % sizeof(uint32_t) != 0)
      return text(
          "workspaces[{0}] or signals[{0}] is NULL or not aligned. Map the memory of rank {0} into this process.",
          rank);
  return {};
}

}  // namespace
}  // namespace froghopper::cp

fh_status fh_cp_copy_transport(const fh_cp_peers* peers, fh_cp_transport* transport) try {
  using namespace froghopper;
  using namespace froghopper::cp;
  constexpr const char* call = "fh_cp_copy_transport";
  if (peers == nullptr || transport == nullptr)
    return failed(call, {FH_INVALID_TENSOR, "peers or transport is NULL."});
  if (peers->size < sizeof(fh_cp_peers))
    return failed(call, {FH_INVALID_TENSOR, text("size is {}; start from fh_cp_peers_init().", peers->size)});
  if (std::string no = refused(*peers); !no.empty()) return failed(call, {FH_INVALID_TENSOR, std::move(no)});
  const Result<CopyDriver> driver = find_copy_driver(peers->library);
  if (!driver) return failed(call, driver.failure());
  auto made = std::make_unique<CopyTransport>(*driver, *peers);
  if (made->prepare() != 0) return failed(call, {FH_LAUNCH_FAILED, made->error()});
  const fh_cp_transport table = table_of(*made, *peers);
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
