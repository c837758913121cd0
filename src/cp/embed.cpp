// SPDX-License-Identifier: Apache-2.0
// cp: steps with other places, peers and problems.
#include "src/cp/embed.hpp"

namespace froghopper::cp {
namespace {

class Moved {
 public:
  Moved(Builder& to, const Steps& steps, const std::array<Place, buffer_count>& buffers, Peers peers)
      : to_(to), buffers_(buffers), peers_(peers), slots_(to.made.slots) {
    for (const fh_problem& p : steps.problems) problems_.push_back(to.problem(p));
    to.made.slots += steps.slots;
  }

  void operator()(Exchange& group) const {
    for (std::vector<Transfer>* all : {&group.sends, &group.recvs})
      for (Transfer& t : *all) move(t.place), t.peer = t.peer * peers_.stride + peers_.first;
    to_.exchange(std::move(group));
  }
  void operator()(Wait& s) const { to_.add(s); }
  void operator()(Fill& s) const { move(s.to), to_.add(s); }
  void operator()(Copy& s) const {
    move(s.to), move(s.from);
    if (s.only_with == Buffer::lse) s.only_with = Buffer::none;
    to_.add(s);
  }
  void operator()(Add& s) const { move(s.into), move(s.from), to_.add(s); }
  void operator()(Convert& s) const { move(s.to), move(s.from), to_.add(s); }
  void operator()(Spread& s) const { move(s.to), move(s.from), to_.add(s); }
  void operator()(Attend& s) const {
    for (Operand* x : {&s.q, &s.k, &s.v, &s.o, &s.o_sum, &s.grad_o, &s.grad_q, &s.grad_k, &s.grad_v}) move(x->place);
    for (Place* x : {&s.lse, &s.grad_lse, &s.sink, &s.slopes, &s.grad_sink, &s.scale_k, &s.scale_v, &s.cu_seqlens_q,
                     &s.cu_seqlens_kv, &s.seqused_q, &s.seqused_kv})
      move(*x);
    s.problem = problems_[s.problem];
    if (s.slot >= 0) s.slot += slots_;
    to_.add(s);
  }

 private:
  void move(Place& place) const {
    if (place.buffer != Buffer::none) place = buffers_[static_cast<size_t>(place.buffer)] + place.bytes;
  }

  Builder& to_;
  const std::array<Place, buffer_count>& buffers_;
  const Peers peers_;
  const int64_t slots_;  // that were there before
  std::vector<size_t> problems_;
};

}  // namespace

void embed(Builder& to, Steps steps, std::array<Place, buffer_count> buffers, Peers peers) {
  buffers[static_cast<size_t>(Buffer::workspace)] = to.workspace(steps.workspace);
  std::vector<int32_t>& tables = to.made.tables;
  buffers[static_cast<size_t>(Buffer::tables)] = {Buffer::tables,
                                                  static_cast<int64_t>(tables.size() * sizeof(int32_t))};
  tables.insert(tables.end(), steps.tables.begin(), steps.tables.end());
  const Moved moved(to, steps, buffers, peers);
  for (Step& step : steps.steps) std::visit(moved, step);
}

}  // namespace froghopper::cp
