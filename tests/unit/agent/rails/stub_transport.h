// A RailTransport that records what it is told. Tests end its orders by hand.
#ifndef RAILSD_TESTS_UNIT_AGENT_RAILS_STUB_TRANSPORT_H_
#define RAILSD_TESTS_UNIT_AGENT_RAILS_STUB_TRANSPORT_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "agent/transport/transport.h"

namespace railsd::testing {

class StubTransport final : public RailTransport {
 public:
  TransportInfo Info() override {
    TransportInfo info;
    info.counters = &counters;
    return info;
  }
  void SetPeer(const RailPeer& peer) override { set_peers.push_back(peer.peer); }
  void RemovePeer(PeerIndex peer) override { removed_peers.push_back(peer); }
  size_t Post(absl::Span<const SendOrder> posted) override {
    const size_t taken = std::min(posted.size(), room - std::min(room, orders.size()));
    orders.insert(orders.end(), posted.begin(), posted.begin() + static_cast<ptrdiff_t>(taken));
    return taken;
  }
  void StopSends(JobTag job) override { stopped_jobs.push_back(job); }
  size_t Poll(absl::Duration, absl::Span<RailEvent>) override { return 0; }
  void Wake() override {}

  // Takes the nth order out. Returns its kSendDone.
  RailEvent End(size_t nth, SendResult result) {
    const SendOrder order = orders[nth];
    orders.erase(orders.begin() + static_cast<ptrdiff_t>(nth));
    RailEvent event;
    event.result = result;
    event.peer = order.stream->peer;
    event.cookie = order.cookie;
    event.offset_bytes = order.offset_bytes;
    event.length_bytes = order.length_bytes;
    event.weight = order.weight;
    event.round = order.round;
    return event;
  }

  std::deque<SendOrder> orders;  // posted, not ended
  size_t room = SIZE_MAX;        // so many orders are taken
  std::vector<PeerIndex> set_peers, removed_peers;
  std::vector<JobTag> stopped_jobs;
  RailCounters counters;
};

}  // namespace railsd::testing

#endif  // RAILSD_TESTS_UNIT_AGENT_RAILS_STUB_TRANSPORT_H_
