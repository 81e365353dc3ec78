// Numbered messages on their way: over a peer's lane when it has one, else over its stream, in order and each once.
//
// A message is on one of the two. Those that went over the stream must be acknowledged before a lane may carry the
// next, so that a lane never overtakes. The stream may overtake the lane: what it brings waits for what the lane still
// has. When a lane breaks, its stream goes with it, and with the next stream comes all that was not acknowledged.
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "daemon/peer/hub.h"

namespace railsd {
namespace {

// An acknowledgement is worth a write of its own only when this much waits in the peer's outbox for it.
constexpr uint64_t kAcknowledgeAfter = 64;
// Messages that grow with what tenants ask for may take half of a peer's outbox. The rest is for what follows from them
// and for everybody else's short ones, without which the link and all groups on it would be lost.
constexpr size_t kJobsPart = 2;
// That a lane may bring before the link is up here, too: a moment's worth. What is more comes again over the stream,
// which is not read on then.
constexpr size_t kMaxEarly = 4096;
constexpr size_t kMaxEarlyBytes = 1 << 20;

// Outside of the hub's lock.
std::shared_ptr<pb::ExchangeRequest> RequestOf(const ControlMessage& message) {
  auto request = std::make_shared<pb::ExchangeRequest>();
  MessageTo(message, request->mutable_message());
  return request;
}

}  // namespace

void Hub::Send(const std::string& node, ControlMessage message) {
  auto request = RequestOf(message);
  absl::MutexLock lock(&mutex_);
  HubPeer* const peer = Receiver(node);
  if (peer == nullptr) return;
  const absl::Status sent = Enqueue(*peer, std::move(request), Share::kAll);
  if (!sent.ok()) Lose(*peer, std::string(sent.message()));  // without it the next ones are worth nothing
}

absl::Status Hub::SendIfItFits(const std::string& node, ControlMessage message) {
  auto request = RequestOf(message);
  absl::MutexLock lock(&mutex_);
  HubPeer* const peer = Receiver(node);
  return peer == nullptr ? absl::OkStatus() : Enqueue(*peer, std::move(request), Share::kJobs);
}

HubPeer* Hub::Receiver(const std::string& node) {
  const auto it = peers_.find(node);
  if (!stopping_ && it != peers_.end() && it->second->link.up()) return it->second.get();
  ++counters_.messages_dropped;
  return nullptr;
}

absl::Status Hub::CheckShare(const HubPeer& peer, size_t bytes) {
  const size_t max_bytes = options_.outbox.max_bytes / kJobsPart,
               max_messages = options_.outbox.max_messages / kJobsPart;
  const size_t messages = peer.outbox.unacknowledged(), used = peer.outbox.bytes();
  if (messages < max_messages && used <= max_bytes && bytes <= max_bytes - used) return absl::OkStatus();
  ++counters_.messages_held_back;
  return absl::ResourceExhaustedError(
      absl::StrCat("node ", peer.node, " has not taken ", messages, " messages of ", used,
                   " bytes yet, and with one of ", bytes, " they would be more than jobs may leave waiting for it (",
                   max_messages, " of ", max_bytes, "); try again when it has caught up"));
}

absl::Status Hub::Enqueue(HubPeer& peer, std::shared_ptr<pb::ExchangeRequest> request, Share share) {
  request->mutable_message()->set_number(peer.outbox.next_number());
  const size_t bytes = request->ByteSizeLong();
  if (bytes > peer.max_message_bytes) {
    options_.server.gate.refused->Count(Limit::kMessage);
    return absl::ResourceExhaustedError(absl::StrCat("a message of ", bytes, " bytes is more than node ", peer.node,
                                                     " takes (", peer.max_message_bytes,
                                                     "); raise its limits.max_message"));
  }
  if (share == Share::kJobs) {
    if (absl::Status fits = CheckShare(peer, bytes); !fits.ok()) return fits;
  }
  if (!peer.outbox.Push(std::move(request), bytes)) {
    Lose(peer, absl::StrCat("node ", peer.node, " does not take messages: ", peer.outbox.unacknowledged(), " of ",
                            peer.outbox.bytes(), " bytes are unacknowledged"));
    return absl::OkStatus();
  }
  ++counters_.messages_out;
  Pump(peer);
  return absl::OkStatus();
}

bool Hub::GoesOverLane(const HubPeer& peer, const Outbox<pb::ExchangeRequest>::Entry& entry) const {
  return peer.lanes.out_open && entry.bytes <= kMaxLaneMessageBytes &&
         peer.outbox.acknowledged() >= peer.lanes.highest_on_stream;
}

void Hub::Pump(HubPeer& peer) {
  if (peer.out == nullptr || !peer.link.open(Direction::kOutbound)) return;
  if (peer.lanes.out_lost != absl::InfiniteFuture()) return;  // until the next stream
  while (const auto* entry = peer.outbox.NextToSend()) {
    const pb::ExchangeRequest& request = *entry->message;
    if (GoesOverLane(peer, *entry)) {
      const auto fill = [&](char* out) {
        request.message().SerializeWithCachedSizesToArray(reinterpret_cast<uint8_t*>(out));
      };
      const size_t size = request.message().ByteSizeLong();
      if (lanes_->Write(peer.lanes.out, size, fill) != Lanes::Written::kTaken) return;  // it calls when it can, or ends
      ++counters_.lane_messages_out;
      if (peer.outbox.acknowledged() >= peer.lanes.highest_on_lane) peer.lanes.waits_since = absl::Now();
      peer.lanes.highest_on_lane = entry->number;
    } else {
      if (peer.out->writing()) return;
      peer.last_out = absl::Now();
      peer.lanes.highest_on_stream = entry->number;
      peer.out->Write(entry->message);
    }
    peer.outbox.MarkSent();
  }
}

void Hub::OnNumbered(HubPeer& peer, uint64_t number, absl::StatusOr<ControlMessage> message) {
  if (number != 0 && number <= peer.inbox.taken()) {
    ++counters_.duplicates;
    return peer.in->ReadNext();
  }
  const bool overtakes = number > peer.inbox.taken() + 1;
  if (overtakes && peer.lanes.in_lost) return peer.in->Cancel();  // what is missing comes again with the next one
  if (number == 0 || (overtakes && !peer.lanes.in_open)) {
    return Break(&peer, peer.in, absl::StrCat("message ", number, " after ", peer.inbox.taken()));
  }
  if (!message.ok()) return Break(&peer, peer.in, std::string(message.status().message()));
  if (overtakes || !peer.link.up()) {
    // The lane still has what comes before, or our own stream has not been answered yet. Reading pauses until then.
    peer.early.emplace(number, *std::move(message));
    peer.stream_waits_for = number;
    return;
  }
  Deliver(peer, number, *std::move(message));
  if (peer.in == nullptr) return;  // given up
  peer.acknowledge_soon |= peer.lanes.in_open;
  AcknowledgeIfMany(peer);
  peer.in->ReadNext();
}

void Hub::OnLaneMessage(LaneId lane, absl::string_view bytes) {
  pb::Numbered numbered;
  absl::StatusOr<ControlMessage> message = absl::InvalidArgumentError("no message");
  if (numbered.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    message = MessageFrom(numbered, options_.max_world_size);
  }
  absl::MutexLock lock(&mutex_);
  HubPeer* const peer = PeerOfLane(lane);
  if (stopping_ || peer == nullptr || peer->lanes.in != lane) return;
  peer->link.OnHeard(Direction::kInbound, absl::Now());
  if (!message.ok()) return Break(peer, peer->in, std::string(message.status().message()));
  const uint64_t number = numbered.number(), taken = peer->inbox.taken();
  if (number != 0 && number <= taken) {
    ++counters_.duplicates;
    return;
  }
  const bool early = !peer->link.up() && number > taken + 1 && peer->early.contains(number - 1);
  if (number != taken + 1 && !early) {
    return Break(peer, peer->in, absl::StrCat("message ", number, " after ", taken, " over its lane"));
  }
  ++counters_.lane_messages_in;
  if (!peer->link.up()) {
    peer->early_bytes += bytes.size();
    if (peer->early.size() >= kMaxEarly || peer->early_bytes > kMaxEarlyBytes) return DropInboundLane(*peer);
    peer->early.emplace(number, *std::move(message));
    return;
  }
  Deliver(*peer, number, *std::move(message));
  if (peer->in == nullptr) return;
  if (!peer->early.empty()) DeliverEarly(*peer);
  AcknowledgeIfMany(*peer);
}

void Hub::DeliverEarly(HubPeer& peer) {
  while (peer.link.up() && !peer.early.empty() && peer.early.begin()->first <= peer.inbox.taken() + 1) {
    auto first = peer.early.extract(peer.early.begin());
    Deliver(peer, first.key(), std::move(first.mapped()));
  }
  if (peer.in == nullptr || peer.stream_waits_for == 0 || peer.stream_waits_for > peer.inbox.taken()) return;
  peer.stream_waits_for = 0;
  peer.acknowledge_soon |= peer.lanes.in_open;
  AcknowledgeIfMany(peer);
  peer.in->ReadNext();
}

void Hub::Deliver(HubPeer& peer, uint64_t number, ControlMessage message) {
  if (peer.inbox.Receive(number) != Inbox::Verdict::kTake) return;
  ++counters_.messages_in;
  if (!agent_->OnPeerMessage(peer.node, peer.link.hello().boot, std::move(message))) {
    Lose(peer, absl::StrCat("the messages of node ", peer.node, " outran the agent of node ", options_.node));
  }
}

void Hub::AcknowledgeIfMany(HubPeer& peer) {
  if (peer.in == nullptr) return;
  const uint64_t many = peer.acknowledge_soon ? 1 : kAcknowledgeAfter;
  if (peer.inbox.taken() - peer.acknowledged_in >= many) WriteResponse(peer, absl::Now());
}

void Hub::WriteResponse(HubPeer& peer, absl::Time now) {
  if (peer.in == nullptr || peer.in->writing()) return;
  auto response = std::make_shared<pb::ExchangeResponse>();
  if (peer.inbox.taken() > peer.acknowledged_in) {
    peer.acknowledged_in = peer.inbox.taken();
    response->set_acknowledged(peer.acknowledged_in);
  } else {
    response->mutable_heartbeat();
  }
  peer.acknowledge_soon = false;
  peer.last_in = now;
  peer.in->Write(std::move(response));
}

}  // namespace railsd
