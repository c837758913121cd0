// SPDX-License-Identifier: Apache-2.0
// cp: a plan's steps, run one after the other. What is refused is refused before anything moves, and ranks are told.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <new>

#include "src/base/sized.hpp"
#include "src/base/text.hpp"
#include "src/cp/addresses.hpp"
#include "src/cp/agreement.hpp"
#include "src/cp/errors.hpp"
#include "src/cp/memory.hpp"
#include "src/cp/plan.hpp"
#include "src/cp/refusals.hpp"

namespace froghopper::cp {
namespace {

constexpr const char* only_named =
    "the plan was made for a GPU that was only named; it can be read, not run. Make one for \"hopper\" or \"cpu\".";
constexpr uint64_t refusal = 0;  // a rank that refuses its arguments says this instead of a digest

class Run {
 public:
  Run(const fh_cp_plan& plan, const fh_cp_transport* transport, const fh_cp_memory* memory,
      const fh_cp_tensors& tensors, void* workspace, uint64_t workspace_bytes, void* stream)
      : plan_(plan), workspace_(workspace), stream_(stream) {
    if (transport != nullptr)
      read(*transport, transport_, offsetof(fh_cp_transport, wait) + sizeof transport->wait, "fh_cp_transport");
    read(tensors, t_, offsetof(fh_cp_tensors, grad_sink) + sizeof tensors.grad_sink, "fh_cp_tensors");
    if (!plan.on_gpu)
      memory_ = host_memory();
    else if (memory != nullptr)
      read(*memory, memory_, sizeof memory->size, "fh_cp_memory");
    const std::string no_transport = refused_transport(plan, transport, transport_);
    usable_ = no_transport.empty() && plan.job.ranks > 1;
    if (refused_.empty()) refused_ = no_transport;
    if (refused_.empty()) refused_ = refused_tensors(plan, t_);
    if (refused_.empty()) refused_ = refused_memory(plan, memory, memory_, workspace, workspace_bytes);
    if (refused_.empty()) refused_ = refused_addresses(plan, t_, workspace);
    if (refused_.empty()) refused_ = refused_scales(plan, t_);
  }

  Result<void> all();
  void cancel() {
    if (usable_ && started_ && transport_.cancel != nullptr) transport_.cancel(transport_.context);
  }

 private:
  // A struct of the caller, whose size may be that of another version.
  template <class T>
  void read(const T& user, T& own, size_t smallest, const char* name) {
    Result<T> whole = whole_struct(&user, own, smallest, FH_INVALID_TENSOR, name);
    if (whole)
      own = *whole;
    else if (refused_.empty())
      refused_ = whole.failure().text;
  }

  bool compares() const;   // what ranks are about to compute, in this call
  bool can_agree() const;  // by the transport's `agree`, or on the host by an exchange
  void tell_refusal();
  Result<void> agree();
  Result<std::vector<uint64_t>> gathered(uint64_t mine, uint64_t of_others);
  std::string unwritten(const std::vector<uint64_t>& digests, uint64_t mine) const;
  Result<void> gather_words();
  Result<void> transport_failed(const char* name, int code) const;
  Result<void> memory_failed(const char* name, int code, bool is_own_kernel = false) const;
  void bind();

  char* at(Place place) const {
    char* const base = bases_[static_cast<size_t>(place.buffer)];
    return base == nullptr ? nullptr : base + place.bytes;
  }
  bool given(Buffer buffer) const { return buffer == Buffer::none || bases_[static_cast<size_t>(buffer)] != nullptr; }
  std::vector<fh_cp_transfer> transfers(const std::vector<Transfer>& list) const;

  Result<void> step(const Exchange& s);
  Result<void> step(const Wait&);
  Result<void> step(const Fill& s);
  Result<void> step(const Copy& s);
  Result<void> step(const Add& s);
  Result<void> step(const Convert& s);
  Result<void> step(const Spread& s);
  Result<void> step(const Attend& s);
  Result<void> exchange(const std::vector<fh_cp_transfer>& sends, const std::vector<fh_cp_transfer>& recvs);

  const fh_cp_plan& plan_;
  fh_cp_tensors t_ = fh_cp_tensors_init();
  void* workspace_;
  void* stream_;
  fh_cp_memory memory_ = fh_cp_memory_init();
  fh_cp_transport transport_ = fh_cp_transport_init();
  std::string refused_;          // what is wrong with the arguments, first of all with one of these three structs
  std::vector<uint64_t> words_;  // of all ranks; the transport may touch them until cancel returns
  bool usable_ = false, started_ = false;
  std::array<char*, buffer_count> bases_{};
  std::vector<void*> tickets_;
  size_t waited_ = 0;
};

Result<void> Run::all() {
  if (!refused_.empty()) {
    tell_refusal();
    return Failure{FH_INVALID_TENSOR, refused_};
  }
  if (!plan_.runs_here) return Failure{FH_NO_DEVICE, only_named};
  if (usable_ && compares() && can_agree())
    if (Result<void> agreed = agree(); !agreed) return agreed;
  bind();
  for (const Step& s : plan_.steps.steps) {
    Result<void> done = std::visit([&](const auto& one) { return step(one); }, s);
    if (!done) return done;
  }
  return {};
}

bool Run::compares() const {
  return plan_.job.check_interval > 0 &&
         static_cast<uint64_t>(t_.call) % static_cast<uint64_t>(plan_.job.check_interval) == 0;
}

// An exchange of peer copies goes to workspaces, where a word has no place.
bool Run::can_agree() const {
  return transport_.agree != nullptr || !(plan_.on_gpu || transport_.transfers == FH_CP_PEER_COPIES);
}

// A transport that is of another rank than the plan can still agree, between as many ranks as it has; nothing is sent
// through it, since one of the two has the wrong peers. Where nothing tells the other ranks, they would wait for this
// one: `cancel` ends that.
void Run::tell_refusal() {
  if (!plan_.runs_here || (plan_.job.ranks == 1 && transport_.ranks <= 1)) return;
  const bool among_others =
      !usable_ && transport_.agree != nullptr && transport_.ranks > 1 && transport_.ranks <= most_ranks;
  if (compares() && usable_ && can_agree()) {
    (void)gathered(refusal, refusal);
  } else if (compares() && among_others) {
    words_.assign(static_cast<size_t>(std::max(transport_.ranks, plan_.job.ranks)), refusal);
    (void)transport_.agree(transport_.context, refusal, words_.data());
  } else if (transport_.cancel != nullptr) {
    transport_.cancel(transport_.context);
  }
}

Failure callback_failed(const char* table, const char* name, int code, int64_t rank, const char* words) {
  return {FH_LAUNCH_FAILED, text("{}.{} returned {} on rank {}{}{}", table, name, code, rank,
                                 words != nullptr && *words != 0 ? ": " : ".", words != nullptr ? words : "")};
}

Result<void> Run::transport_failed(const char* name, int code) const {
  return callback_failed("transport", name, code, plan_.rank,
                         transport_.error != nullptr ? transport_.error(transport_.context) : nullptr);
}

Result<void> Run::memory_failed(const char* name, int code, bool is_own_kernel) const {
  return callback_failed("memory", name, code, plan_.rank, is_own_kernel ? words_of_library().c_str() : nullptr);
}

Result<void> Run::gather_words() {
  started_ = true;
  if (transport_.agree != nullptr) {
    const int code = transport_.agree(transport_.context, words_[static_cast<size_t>(plan_.rank)], words_.data());
    return code == 0 ? Result<void>{} : transport_failed("agree", code);
  }
  std::vector<fh_cp_transfer> sends, recvs;
  const auto word_of = [&](int64_t rank) { return &words_[static_cast<size_t>(rank)]; };
  for (int64_t peer = 0; peer < plan_.job.ranks; ++peer) {
    if (peer == plan_.rank) continue;
    sends.push_back({peer, word_of(plan_.rank), sizeof(uint64_t), 0});
    recvs.push_back({peer, word_of(peer), sizeof(uint64_t), 0});
  }
  if (Result<void> sent = exchange(sends, recvs); !sent) return sent;
  return step(Wait{});
}

// A word of each rank. After one that fails nothing may be gathered. of_others: what the transport writes over.
Result<std::vector<uint64_t>> Run::gathered(uint64_t mine, uint64_t of_others) {
  words_.assign(static_cast<size_t>(plan_.job.ranks), of_others);
  words_[static_cast<size_t>(plan_.rank)] = mine;
  if (Result<void> done = gather_words(); !done) return done.failure();
  started_ = false;  // nothing is in flight
  return words_;
}

// What an `agree` that does not do its work has left; "" where it does. No rank has ~mine but by a chance of 2^-64.
std::string Run::unwritten(const std::vector<uint64_t>& digests, uint64_t mine) const {
  const auto left = std::ranges::find(digests, ~mine);
  const uint64_t own = digests[static_cast<size_t>(plan_.rank)];
  // A refusal in the place of this rank comes from another rank, whose transport has this one's number.
  const bool other = own != mine && own != refusal;
  if (!other && left == digests.end()) return {};
  return text(
      "transport.agree must write the digest of each rank to digests[0 .. {}], but on rank {} digests[{}] {}.",
      plan_.job.ranks - 1, plan_.rank, other ? plan_.rank : left - digests.begin(),
      other ? "is not the digest that was given" : "is not written");
}

// Where a digest differs from this rank's, those of all ranks see that one does, and all look for the field together.
Result<void> Run::agree() {
  const uint64_t mine = digest_of_run(plan_, t_);
  const Result<std::vector<uint64_t>> digests = gathered(mine, ~mine);
  if (!digests) return digests.failure();
  if (std::string why = unwritten(*digests, mine); !why.empty()) {
    started_ = true;  // others may be on their way
    return Failure{FH_LAUNCH_FAILED, std::move(why)};
  }
  if ((*digests)[static_cast<size_t>(plan_.rank)] == refusal)
    return Failure{FH_INVALID_PROBLEM,
                   text("a rank refuses its arguments in the place of rank {}: its transport has this rank's number, "
                        "as its own error says, or transport.agree writes zeros to digests.",
                        plan_.rank)};
  if (const auto refuses = std::ranges::find(*digests, refusal); refuses != digests->end())
    return Failure{FH_INVALID_PROBLEM,
                   text("rank {} refuses its arguments, see its own error, so that rank {} cannot run.",
                        refuses - digests->begin(), plan_.rank)};
  const auto other = std::ranges::find_if(*digests, [&](uint64_t digest) { return digest != mine; });
  if (other == digests->end()) return {};
  const Result<std::string> what = difference(plan_, t_, [&](uint64_t word) { return gathered(word, word); });
  if (!what) return what.failure();
  if (!what->empty()) return Failure{FH_INVALID_PROBLEM, *what};
  return Failure{
      FH_INVALID_PROBLEM,
      text("the digest of rank {} is {:016x} and that of rank {} is {:016x}, though their problems are the "
           "same. `agree` must give every rank the digests of all, and all must have one release of the "
           "library.",
           other - digests->begin(), *other, plan_.rank, mine)};
}

void Run::bind() {
  const auto set = [&](Buffer buffer, const void* data) {
    bases_[static_cast<size_t>(buffer)] = static_cast<char*>(const_cast<void*>(data));
  };
  set(Buffer::workspace, workspace_);
  set(Buffer::q, t_.q), set(Buffer::k, t_.k), set(Buffer::v, t_.v), set(Buffer::o, t_.o);
  set(Buffer::lse, t_.lse), set(Buffer::sink, t_.sink), set(Buffer::slopes, t_.alibi_slopes);
  set(Buffer::grad_o, t_.grad_o), set(Buffer::grad_lse, t_.grad_lse);
  set(Buffer::grad_q, t_.grad_q), set(Buffer::grad_k, t_.grad_k), set(Buffer::grad_v, t_.grad_v);
  set(Buffer::grad_sink, t_.grad_sink);
  const Scales scales = scales_of(t_);
  set(Buffer::scale_k, scales.k), set(Buffer::scale_v, scales.v);
  set(Buffer::tables, plan_.on_gpu ? t_.tables : plan_.steps.tables.data());
}

std::vector<fh_cp_transfer> Run::transfers(const std::vector<Transfer>& list) const {
  std::vector<fh_cp_transfer> all;
  for (const Transfer& t : list)
    if (t.bytes > 0 && given(t.only_with))
      all.push_back({t.peer, at(t.place), static_cast<uint64_t>(t.bytes), static_cast<uint64_t>(t.peer_offset)});
  return all;
}

Result<void> Run::exchange(const std::vector<fh_cp_transfer>& sends, const std::vector<fh_cp_transfer>& recvs) {
  started_ = true;
  void* ticket = nullptr;
  const int code = transport_.exchange(transport_.context, sends.data(), static_cast<int64_t>(sends.size()),
                                       recvs.data(), static_cast<int64_t>(recvs.size()), stream_, &ticket);
  if (code != 0) return transport_failed("exchange", code);
  tickets_.push_back(ticket);
  return {};
}

Result<void> Run::step(const Exchange& s) { return exchange(transfers(s.sends), transfers(s.recvs)); }

Result<void> Run::step(const Wait&) {
  const int code = transport_.wait(transport_.context, tickets_[waited_++], stream_);
  return code == 0 ? Result<void>{} : transport_failed("wait", code);
}

Result<void> Run::step(const Fill& s) {
  if (s.words == 0) return {};
  const int code = memory_.fill(memory_.context, at(s.to), s.value, static_cast<uint64_t>(s.words), stream_);
  return code == 0 ? Result<void>{} : memory_failed("fill", code);
}

Result<void> Run::step(const Copy& s) {
  if (s.bytes == 0 || s.rows == 0 || !given(s.only_with)) return {};
  const int code = memory_.copy(memory_.context, at(s.to), static_cast<uint64_t>(s.to_pitch), at(s.from),
                                static_cast<uint64_t>(s.from_pitch), static_cast<uint64_t>(s.bytes),
                                static_cast<uint64_t>(s.rows), stream_);
  return code == 0 ? Result<void>{} : memory_failed("copy", code, code < 0 && memory_.copy == cuda_kernels.copy);
}

Result<void> Run::step(const Add& s) {
  if (s.count == 0) return {};
  const int code = memory_.add(memory_.context, reinterpret_cast<float*>(at(s.into)),
                               reinterpret_cast<const float*>(at(s.from)), static_cast<uint64_t>(s.count), stream_);
  return code == 0 ? Result<void>{} : memory_failed("add", code, memory_.add == cuda_kernels.add);
}

Result<void> Run::step(const Convert& s) {
  if (s.count == 0) return {};
  const int code =
      memory_.convert(memory_.context, at(s.to), plan_.job.out, reinterpret_cast<const float*>(at(s.from)),
                      static_cast<uint64_t>(s.count), stream_);
  return code == 0 ? Result<void>{} : memory_failed("convert", code, memory_.convert == cuda_kernels.convert);
}

Result<void> Run::step(const Spread& s) {
  if (s.rows == 0 || s.columns == 0) return {};
  const int code =
      memory_.spread(memory_.context, reinterpret_cast<float*>(at(s.to)), reinterpret_cast<const float*>(at(s.from)),
                     static_cast<uint64_t>(s.rows), static_cast<uint64_t>(s.columns), stream_);
  return code == 0 ? Result<void>{} : memory_failed("spread", code, memory_.spread == cuda_kernels.spread);
}

Result<void> Run::step(const Attend& s) {
  const fh_problem& p = plan_.steps.problems[s.problem];
  fh_tensors x = fh_tensors_init();
  const auto tensor = [&](const Operand& operand, int64_t heads, int64_t dim) {
    if (operand.place.buffer == Buffer::none) return fh_tensor{};
    return fh_tensor{at(operand.place), operand.batch_rows * heads * dim, heads * dim, dim};
  };
  x.q = tensor(s.q, p.heads_q, p.dim_qk);
  x.k = tensor(s.k, p.heads_kv, p.dim_qk), x.v = tensor(s.v, p.heads_kv, p.dim_v);
  x.o = tensor(s.o, p.heads_q, p.dim_v), x.o_sum = tensor(s.o_sum, p.heads_q, p.dim_v);
  x.lse = reinterpret_cast<float*>(at(s.lse));
  if (s.lse_rows > 0 && x.lse != nullptr) x.lse_stride_seq = 1, x.lse_stride_head = s.lse_rows;
  x.cu_seqlens_q = reinterpret_cast<const int32_t*>(at(s.cu_seqlens_q));
  x.cu_seqlens_kv = reinterpret_cast<const int32_t*>(at(s.cu_seqlens_kv));
  x.seqused_q = reinterpret_cast<const int32_t*>(at(s.seqused_q));
  x.seqused_kv = reinterpret_cast<const int32_t*>(at(s.seqused_kv));
  x.sink = reinterpret_cast<const float*>(at(s.sink));
  if (p.alibi) x.alibi_slopes = {at(s.slopes), 0, 0, 1};
  if (plan_.job.kv_has_8_bits()) x.scale_k = {at(s.scale_k), 0, 0, 1}, x.scale_v = {at(s.scale_v), 0, 0, 1};
  if (p.op == FH_BACKWARD) {
    x.grad_o = tensor(s.grad_o, p.heads_q, p.dim_v);
    x.grad_q = tensor(s.grad_q, p.heads_q, p.dim_qk);
    x.grad_k = tensor(s.grad_k, p.heads_kv, p.dim_qk), x.grad_v = tensor(s.grad_v, p.heads_kv, p.dim_v);
    if (t_.grad_lse != nullptr) x.grad_lse = reinterpret_cast<const float*>(at(s.grad_lse));
    x.grad_sink = reinterpret_cast<float*>(at(s.grad_sink));
  }
  const uint64_t own =
      s.slot < 0 ? static_cast<uint64_t>(plan_.steps.workspace) : plan_.slots[static_cast<size_t>(s.slot)];
  void* const at_own = plan_.workspace > own ? static_cast<char*>(workspace_) + own : nullptr;
  const fh_status status = fh_plan_run(plan_.attention[s.problem].get(), &x, at_own, plan_.workspace - own, stream_);
  if (status == FH_OK) return {};
  return Failure{status, text("attention of rank {}: {}", plan_.rank, words_of_library())};
}

}  // namespace

Result<void> run(const fh_cp_plan& plan, const fh_cp_transport* transport, const fh_cp_memory* memory,
                 const fh_cp_tensors& tensors, void* workspace, uint64_t workspace_bytes, void* stream) {
  Run one(plan, transport, memory, tensors, workspace, workspace_bytes, stream);
  try {
    Result<void> done = one.all();
    if (!done) one.cancel();
    return done;
  } catch (const std::bad_alloc&) {
    one.cancel();  // the other ranks wait for this one
    return Failure{FH_INTERNAL, "out of host memory."};
  }
}

}  // namespace froghopper::cp
