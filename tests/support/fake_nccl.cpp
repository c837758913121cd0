// SPDX-License-Identifier: Apache-2.0
// tests: a library with the functions of NCCL and of the CUDA driver that froghopper-cp calls, in host memory between
// threads. A group is done when ncclGroupEnd returns; streams are numbers.
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <vector>

#define SHOWN extern "C" __attribute__((visibility("default")))

namespace {

constexpr int success = 0, system_error = 2, remote_error = 6;

struct World {
  int ranks;
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::pair<int, int>, std::deque<std::vector<char>>> mail;  // from, to
  bool given_up = false;
};
struct Comm {
  World* world;
  int rank;
  int error = success;
  int given_up = 0;
};
struct Call {
  bool sends;
  void* data;
  size_t bytes;
  int peer;
  Comm* comm;
};

thread_local std::vector<Call> group;
thread_local int depth = 0;

int receive(const Call& call) {
  World& world = *call.comm->world;
  std::unique_lock lock(world.mutex);
  std::deque<std::vector<char>>& mail = world.mail[{call.peer, call.comm->rank}];
  const bool there =
      world.changed.wait_for(lock, std::chrono::seconds(10), [&] { return world.given_up || !mail.empty(); });
  if (!there || world.given_up || mail.front().size() != call.bytes) return system_error;
  std::memcpy(call.data, mail.front().data(), call.bytes);
  mail.pop_front();
  return success;
}

void send(const Call& call) {
  World& world = *call.comm->world;
  const std::lock_guard lock(world.mutex);
  const char* const data = static_cast<const char*>(call.data);
  world.mail[{call.comm->rank, call.peer}].emplace_back(data, data + call.bytes);
  world.changed.notify_all();
}

}  // namespace

// What a test calls: communicators of so many ranks, an error for one of them, and how often it was aborted.
SHOWN void fake_nccl_make(int ranks, void** comms) {
  World* const world = new World{ranks, {}, {}, {}};
  for (int rank = 0; rank < ranks; ++rank) comms[rank] = new Comm{world, rank};
}
SHOWN void fake_nccl_destroy(int ranks, void** comms) {
  delete static_cast<Comm*>(comms[0])->world;
  for (int rank = 0; rank < ranks; ++rank) delete static_cast<Comm*>(comms[rank]);
}
SHOWN void fake_nccl_fail(void* comm) { static_cast<Comm*>(comm)->error = remote_error; }
SHOWN int fake_nccl_aborts(void* comm) { return static_cast<Comm*>(comm)->given_up; }

SHOWN int ncclGroupStart() { return ++depth, success; }
SHOWN int ncclGroupEnd() {
  if (--depth > 0) return success;
  const std::vector<Call> calls = std::move(group);
  group.clear();
  for (const Call& call : calls)
    if (call.sends) send(call);
  for (const Call& call : calls)
    if (!call.sends)
      if (const int code = receive(call)) return code;
  return success;
}
SHOWN int ncclSend(const void* data, size_t count, int, int peer, void* comm, void*) {
  group.push_back({true, const_cast<void*>(data), count, peer, static_cast<Comm*>(comm)});
  return success;
}
SHOWN int ncclRecv(void* data, size_t count, int, int peer, void* comm, void*) {
  group.push_back({false, data, count, peer, static_cast<Comm*>(comm)});
  return success;
}
SHOWN int ncclAllGather(const void* from, void* to, size_t count, int, void* comm, void* stream) {
  const Comm& own = *static_cast<Comm*>(comm);
  ncclGroupStart();
  for (int peer = 0; peer < own.world->ranks; ++peer) {
    char* const place = static_cast<char*>(to) + static_cast<size_t>(peer) * count;
    if (peer == own.rank) {
      std::memcpy(place, from, count);
    } else {
      ncclSend(from, count, 0, peer, comm, stream);
      ncclRecv(place, count, 0, peer, comm, stream);
    }
  }
  return ncclGroupEnd();
}
SHOWN int ncclCommCount(void* comm, int* ranks) { return *ranks = static_cast<Comm*>(comm)->world->ranks, success; }
SHOWN int ncclCommUserRank(void* comm, int* rank) { return *rank = static_cast<Comm*>(comm)->rank, success; }
SHOWN int ncclCommGetAsyncError(void* comm, int* error) { return *error = static_cast<Comm*>(comm)->error, success; }
SHOWN int ncclCommAbort(void* comm) {
  Comm& own = *static_cast<Comm*>(comm);
  ++own.given_up;
  const std::lock_guard lock(own.world->mutex);
  own.world->given_up = true;
  own.world->changed.notify_all();
  return success;
}
SHOWN const char* ncclGetErrorString(int error) {
  return error == remote_error ? "remote process exited" : error == system_error ? "system error" : "no error";
}

SHOWN int cuMemsetD32Async(uint64_t to, unsigned value, size_t count, void*) {
  for (size_t i = 0; i < count; ++i) reinterpret_cast<unsigned*>(to)[i] = value;
  return 0;
}
SHOWN int cuMemcpyAsync(uint64_t to, uint64_t from, size_t bytes, void*) {
  std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
  return 0;
}
SHOWN int cuMemcpy2DAsync_v2(const void*, void*) { return 801; }
SHOWN int cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t bytes, void*) {
  std::memcpy(reinterpret_cast<void*>(to), from, bytes);
  return 0;
}
SHOWN int cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t bytes, void*) {
  std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
  return 0;
}
// An event is a number: 1 and up for how often it was recorded.
SHOWN int cuEventCreate(void** event, unsigned) { return *event = new int(0), 0; }
SHOWN int cuEventDestroy_v2(void* event) { return delete static_cast<int*>(event), 0; }
SHOWN int cuEventRecord(void* event, void*) { return ++*static_cast<int*>(event), 0; }
SHOWN int cuEventQuery(void* event) { return *static_cast<int*>(event) > 0 ? 0 : 600; }
SHOWN int cuStreamWaitEvent(void*, void* event, unsigned) { return *static_cast<int*>(event) > 0 ? 0 : 400; }
SHOWN int cuGetErrorName(int, const char** name) { return *name = "CUDA_ERROR_OF_A_TEST", 0; }
