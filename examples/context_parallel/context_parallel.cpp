// SPDX-License-Identifier: Apache-2.0
// Attention over four ranks that are threads: each has a quarter of a sequence, and bytes move by the callbacks below,
// which a program with processes would write over its sockets, MPI or shared memory. Prints the error against one rank
// and what was moved, for each scheme; returns 1 where a result is wrong.
#include <froghopper/cp.h>

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <random>
#include <thread>
#include <vector>

namespace {

constexpr int64_t ranks = 4, rows = 1000, heads_q = 8, heads_kv = 4, dim = 64;

// Letters between threads. A send is a copy, so it is done at once; a receive is done in `wait`.
struct Post {
  std::mutex mutex;
  std::condition_variable arrived;
  std::map<std::pair<int64_t, int64_t>, std::deque<std::vector<char>>> letters;  // from, to
  bool cancelled = false;
  uint64_t bytes = 0;
};
struct Rank {
  Post* post;
  int64_t rank;
  std::deque<std::vector<fh_cp_transfer>> groups = {};  // what is to be received, of each exchange not waited for
};

int exchange(void* context, const fh_cp_transfer* sends, int64_t send_count, const fh_cp_transfer* recvs,
             int64_t recv_count, void*, void** ticket) {
  Rank& own = *static_cast<Rank*>(context);
  const std::lock_guard lock(own.post->mutex);
  for (const fh_cp_transfer* s = sends; s != sends + send_count; ++s) {
    const char* const data = static_cast<const char*>(s->data);
    own.post->letters[{own.rank, s->peer}].emplace_back(data, data + s->bytes);
    own.post->bytes += s->bytes;
  }
  own.post->arrived.notify_all();
  own.groups.emplace_back(recvs, recvs + recv_count);
  *ticket = nullptr;  // groups are waited for in their order
  return 0;
}

int wait(void* context, void*, void*) {
  Rank& own = *static_cast<Rank*>(context);
  const std::vector<fh_cp_transfer> recvs = std::move(own.groups.front());
  own.groups.pop_front();
  std::unique_lock lock(own.post->mutex);
  for (const fh_cp_transfer& recv : recvs) {
    auto& letters = own.post->letters[{recv.peer, own.rank}];
    own.post->arrived.wait(lock, [&] { return own.post->cancelled || !letters.empty(); });
    if (own.post->cancelled || letters.front().size() != recv.bytes) return 1;
    std::copy(letters.front().begin(), letters.front().end(), static_cast<char*>(recv.data));
    letters.pop_front();
  }
  return 0;
}

void cancel(void* context) {
  Post& post = *static_cast<Rank*>(context)->post;
  const std::lock_guard lock(post.mutex);
  post.cancelled = true;
  post.arrived.notify_all();
}

struct Sequence {
  std::vector<float> q, k, v, o;
};

// One rank's part: its rows of q, k and v, then the call, then its rows of o go to their places.
bool run_rank(const fh_problem& whole, fh_cp_scheme scheme, int64_t rank, Post& post, const Sequence& in,
              std::vector<float>& o) {
  fh_cp_problem problem = fh_cp_problem_init();
  problem.whole = &whole, problem.ranks = ranks, problem.rank = rank, problem.scheme = scheme;
  Rank context{&post, rank};
  fh_cp_plan* made = nullptr;
  if (fh_cp_plan_create(&problem, "cpu", &made) != FH_OK) {
    std::fprintf(stderr, "%s\n", fh_cp_last_error());
    cancel(&context);  // the others would wait for this rank; fh_cp_plan_run tells them itself what it refuses
    return false;
  }
  const std::unique_ptr<fh_cp_plan, void (*)(fh_cp_plan*)> plan(made, fh_cp_plan_destroy);
  if (rank == 1) std::printf("%s\n", fh_cp_plan_text(made));

  fh_cp_range ranges[2];
  int64_t count = 0;
  fh_cp_plan_rows(made, rank, ranges, 2, &count);
  const auto shard = [&](const std::vector<float>& all, int64_t width) {
    std::vector<float> part;
    for (int64_t i = 0; i < count; ++i)
      part.insert(part.end(), all.begin() + ranges[i].begin * width, all.begin() + ranges[i].end * width);
    return part;
  };
  const std::vector<float> q = shard(in.q, heads_q * dim), k = shard(in.k, heads_kv * dim),
                           v = shard(in.v, heads_kv * dim);
  std::vector<float> mine(q.size());

  fh_cp_transport transport = fh_cp_transport_init();
  transport.context = &context, transport.ranks = ranks, transport.rank = rank;
  transport.exchange = exchange, transport.wait = wait, transport.cancel = cancel;
  transport.error = [](void*) { return "another rank has failed, or sent another number of bytes."; };
  fh_cp_tensors tensors = fh_cp_tensors_init();
  tensors.q = q.data(), tensors.k = k.data(), tensors.v = v.data(), tensors.o = mine.data();
  const uint64_t bytes = fh_cp_plan_workspace_bytes(made);
  void* const workspace = ::operator new (bytes + 1, std::align_val_t{256});
  const fh_status status = fh_cp_plan_run(made, &transport, nullptr, &tensors, workspace, bytes, nullptr);
  ::operator delete (workspace, std::align_val_t{256});
  if (status != FH_OK) return std::fprintf(stderr, "%s\n", fh_cp_last_error()), false;

  const float* from = mine.data();
  for (int64_t i = 0; i < count; ++i) {
    const int64_t numbers = (ranges[i].end - ranges[i].begin) * heads_q * dim;
    std::copy(from, from + numbers, o.begin() + ranges[i].begin * heads_q * dim);
    from += numbers;
  }
  return true;
}

}  // namespace

int main() {
  fh_problem whole = fh_problem_init();
  whole.dtype = FH_F32, whole.batch = 1, whole.causal = 1;
  whole.heads_q = heads_q, whole.heads_kv = heads_kv, whole.seq_q = whole.seq_kv = rows, whole.dim_qk = dim;
  Sequence s;
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (const auto& [x, heads] : {std::pair{&s.q, heads_q}, {&s.k, heads_kv}, {&s.v, heads_kv}, {&s.o, heads_q}}) {
    x->resize(static_cast<size_t>(rows * heads * dim));
    for (float& number : *x) number = normal(random);
  }
  fh_tensors alone = fh_tensors_init();
  alone.q = {s.q.data(), rows * heads_q * dim, heads_q * dim, dim};
  alone.k = {s.k.data(), rows * heads_kv * dim, heads_kv * dim, dim};
  alone.v = {s.v.data(), rows * heads_kv * dim, heads_kv * dim, dim};
  alone.o = {s.o.data(), rows * heads_q * dim, heads_q * dim, dim};
  if (fh_attention(&whole, "cpu", &alone, nullptr, 0, nullptr) != FH_OK)
    return std::fprintf(stderr, "%s\n", fh_last_error()), 1;

  bool right = true;
  for (const fh_cp_scheme scheme : {FH_CP_RING, FH_CP_ALL_GATHER, FH_CP_ALL_TO_ALL}) {
    Post post;
    std::vector<float> o(s.o.size(), NAN);
    bool ran[ranks];
    std::vector<std::thread> threads;
    for (int64_t rank = 0; rank < ranks; ++rank)
      threads.emplace_back([&, rank] { ran[rank] = run_rank(whole, scheme, rank, post, s, o); });
    for (std::thread& thread : threads) thread.join();
    double error = 0;
    for (size_t i = 0; i < o.size(); ++i)
      if (const double e = std::abs(double{o[i]} - s.o[i]); !(e <= error)) error = e;
    std::printf("%-10s  largest error %.1e, %llu bytes moved\n\n", fh_cp_scheme_name(scheme), error,
                static_cast<unsigned long long>(post.bytes));
    right = right && std::all_of(ran, ran + ranks, [](bool one) { return one; }) && error < 1e-5;
  }
  return right ? 0 : 1;
}
