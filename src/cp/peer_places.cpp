// SPDX-License-Identifier: Apache-2.0
// cp: where a rank's data go in the workspaces of its peers. The peers' own steps say it: the n-th exchanges belong
// together, and in them a rank's sends to a peer are that peer's receives from it, in the same order.
#include "src/base/text.hpp"
#include "src/cp/steps.hpp"

namespace froghopper::cp {
namespace {

template <class Exchanges, class AllSteps>
Exchanges exchanges_of(AllSteps& steps) {
  Exchanges all;
  for (auto& step : steps)
    if (auto* const group = std::get_if<Exchange>(&step)) all.push_back(group);
  return all;
}

// The first transfer from `at` on with that peer.
template <class Transfers>
auto* next_with(Transfers& transfers, int64_t peer, size_t& at) {
  while (at < transfers.size() && (transfers[at].peer != peer || transfers[at].bytes == 0)) ++at;
  return at < transfers.size() ? &transfers[at++] : nullptr;
}

// Whether each send found its place.
bool match(std::vector<Transfer>& sends, int64_t peer, const std::vector<Transfer>& recvs, int64_t rank) {
  size_t sent = 0, received = 0;
  for (;;) {
    Transfer* const send = next_with(sends, peer, sent);
    const Transfer* const recv = next_with(recvs, rank, received);
    if (send == nullptr || recv == nullptr) return send == nullptr && recv == nullptr;
    if (send->bytes != recv->bytes || recv->place.buffer != Buffer::workspace) return false;
    send->peer_offset = recv->place.bytes;
  }
}

}  // namespace

Result<void> find_peer_places(const Job& job, fh_cp_scheme scheme, int64_t rank, Steps& steps) {
  const auto mine = exchanges_of<std::vector<Exchange*>>(steps.steps);
  for (int64_t peer = 0; peer < job.ranks; ++peer) {
    if (peer == rank) continue;
    const Steps of_peer = steps_of(job, scheme, peer);
    const auto theirs = exchanges_of<std::vector<const Exchange*>>(of_peer.steps);
    bool all = mine.size() == theirs.size();
    for (size_t i = 0; all && i < mine.size(); ++i) all = match(mine[i]->sends, peer, theirs[i]->recvs, rank);
    if (!all)
      return Failure{FH_INTERNAL, text("the sends of rank {} are not the receives of rank {}. This is a bug of the "
                                       "library; please report it with the problem.",
                                       rank, peer)};
  }
  return {};
}

}  // namespace froghopper::cp
