// Sends and delivers a link's messages, in order and exactly once.
#include <google/protobuf/arena.h>

#include <cstddef>
#include <type_traits>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "daemon/peer/peer_hub.h"
#include "rails/peer/v1/peer.pb.h"

namespace railsd {
namespace {

namespace pb = rails::peer::v1;

// After this many frames an acknowledgement is sent without waiting for the heartbeat.
constexpr uint64_t kAcknowledgeAfter = 64;
// Messages whose size tenants choose may fill half of a peer's outbox. The other half is for the short messages of all
// groups: without room for those the link and all its groups would be lost.
constexpr size_t kJobsPart = 2;

// A message with its parts in a block on the stack. Parts of a long message that do not fit are on the heap.
class ShortLivedMessage {
 public:
  pb::Message& operator*() { return *message_; }
  pb::Message* operator->() { return message_; }

 private:
  google::protobuf::ArenaOptions Options() {
    google::protobuf::ArenaOptions options;
    options.initial_block = block_;
    options.initial_block_size = sizeof(block_);
    return options;
  }

  alignas(std::max_align_t) char block_[4096];
  google::protobuf::Arena arena_{Options()};
  pb::Message* const message_ = google::protobuf::Arena::CreateMessage<pb::Message>(&arena_);
};

// Called outside the hub's lock. The result begins with room for the frame's header.
std::string SerializedOf(const ControlMessage& message) {
  ShortLivedMessage out;
  MessageTo(message, &*out);
  std::string bytes = FrameWithoutHeader();
  out->AppendToString(&bytes);
  return bytes;
}

absl::StatusOr<ControlMessage> Parse(absl::string_view bytes, uint32_t max_world_size) {
  ShortLivedMessage message;
  if (!message->ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::InvalidArgumentError("a broken message");
  }
  return MessageFrom(*message, max_world_size);
}

// The epoch of a job's message. Messages without an epoch keep their place among all others.
std::optional<Epoch> EpochOf(const ControlMessage& message) {
  return std::visit(
      [](const auto& body) -> std::optional<Epoch> {
        if constexpr (requires { body.job.epoch; }) {
          return body.job.epoch;
        } else {
          return std::nullopt;
        }
      },
      message);
}

// The job of a READY that brings bytes: its sender waits for the acknowledgement.
std::optional<JobKey> ReceiptOf(const ControlMessage& message) {
  const auto* const ready = std::get_if<Ready>(&message);
  return ready == nullptr || ready->eager.empty() ? std::nullopt : std::optional<JobKey>(ready->job);
}

}  // namespace

void PeerHub::Send(const std::string& node, ControlMessage message) {
  std::string bytes = SerializedOf(message);
  absl::MutexLock lock(&mutex_);
  HubPeer* const peer = Receiver(node);
  if (peer == nullptr) return;
  const absl::Status sent = Enqueue(*peer, std::move(bytes), EpochOf(message), Share::kAll);
  if (!sent.ok()) Lose(*peer, std::string(sent.message()));  // later messages depend on this one
}

absl::Status PeerHub::SendIfItFits(const std::string& node, ControlMessage&& message) {
  std::string bytes = SerializedOf(message);
  absl::MutexLock lock(&mutex_);
  HubPeer* const peer = Receiver(node);
  if (peer == nullptr) return absl::OkStatus();
  return Enqueue(*peer, std::move(bytes), EpochOf(message), Share::kJobs, ReceiptOf(message));
}

HubPeer* PeerHub::Receiver(const std::string& node) {
  HubPeer* const peer = FindPeer(node);
  if (!stopping_ && peer != nullptr && peer->link.up()) return peer;
  ++counters_.messages_dropped;
  return nullptr;
}

absl::Status PeerHub::CheckShare(const HubPeer& peer, size_t bytes) {
  const size_t max_bytes = options_.outbox.max_bytes / kJobsPart,
               max_messages = options_.outbox.max_messages / kJobsPart;
  const size_t messages = peer.outbox.messages(), used = peer.outbox.bytes();
  if (messages < max_messages && used <= max_bytes && bytes <= max_bytes - used) return absl::OkStatus();
  ++counters_.messages_held_back;
  return absl::ResourceExhaustedError(
      absl::StrCat("node ", peer.node, " has not acknowledged ", messages, " messages of ", used,
                   " bytes, and one more of ", bytes, " bytes would pass the limit for messages of jobs (",
                   max_messages, " of ", max_bytes, "); submit again when the node has acknowledged some"));
}

absl::Status PeerHub::Enqueue(HubPeer& peer, std::string message, std::optional<Epoch> epoch, Share share,
                              std::optional<JobKey> receipt) {
  const size_t bytes = message.size() - kFrameHeaderBytes;
  if (bytes > peer.max_message_bytes) {
    options_.links.refused->Count(Limit::kMessage);
    return absl::ResourceExhaustedError(absl::StrCat("a message of ", bytes, " bytes is more than node ", peer.node,
                                                     " takes (", peer.max_message_bytes,
                                                     "); raise its limits.max_message"));
  }
  if (share == Share::kJobs) {
    if (absl::Status fits = CheckShare(peer, bytes); !fits.ok()) return fits;
  }
  if (!peer.outbox.Push(std::move(message), epoch, receipt)) {
    Lose(peer, absl::StrCat("node ", peer.node, " does not acknowledge messages: ", peer.outbox.messages(), " of ",
                            peer.outbox.bytes(), " bytes are unacknowledged"));
    return absl::OkStatus();
  }
  ++counters_.messages_out;
  Pump(peer);
  return absl::OkStatus();
}

void PeerHub::Pump(HubPeer& peer) {
  while (peer.connection != nullptr) {
    Outbox::FramePtr frame = peer.outbox.Next();
    if (frame == nullptr || !peer.connection->Write(std::move(frame))) return;
    peer.outbox.MarkSent();
    peer.last_write = last_tick_;
  }
}

void PeerHub::OnWritable(const ConnectionPtr& connection) {
  absl::MutexLock lock(&mutex_);
  HubPeer* const peer = PeerOf(connection);
  if (peer == nullptr) return;
  AcknowledgeIfMany(*peer);
  Pump(*peer);
}

void PeerHub::OnNumbered(const ConnectionPtr& connection, const Frame& frame) {
  absl::StatusOr<ControlMessage> message = absl::UnknownError("");
  const bool whole = frame.kind == FrameKind::kMessage;
  if (whole) message = Parse(frame.body, options_.max_world_size);
  std::string parts;
  {
    absl::MutexLock lock(&mutex_);
    HubPeer* const peer = PeerOf(connection);
    if (stopping_) return;
    if (peer == nullptr) {
      const auto visit = visits_.find(connection);
      if (visit != visits_.end() && !visit->second.greeted) Break(connection, "the first frame is no hello");
      return;  // the connection was replaced, or its link ended
    }
    if (!Heard(connection, *peer)) return;
    const Inbox::Verdict verdict = peer->inbox.Receive(frame.number);
    if (verdict == Inbox::Verdict::kDuplicate) {
      ++counters_.duplicates;
      if (whole && message.ok() && ReceiptOf(*message)) Acknowledge(*peer, last_tick_);
      return;
    }
    if (verdict == Inbox::Verdict::kOutOfOrder) {
      return Break(connection, absl::StrCat("frame ", frame.number, " after ", peer->inbox.taken()));
    }
    if (whole) return Deliver(*peer, std::move(message));
    const absl::Status added = peer->inbox.AddPart(frame.body, options_.max_message_bytes);
    if (!added.ok()) return Break(connection, std::string(added.message()));
    if (frame.kind == FrameKind::kPart) return AcknowledgeIfMany(*peer);
    parts = peer->inbox.TakeWhole();
  }
  message = Parse(parts, options_.max_world_size);
  absl::MutexLock lock(&mutex_);
  // PeerOf() is null if the link ended meanwhile. No new link can be on this connection: it was greeted before.
  if (HubPeer* const peer = PeerOf(connection); peer != nullptr && !stopping_) Deliver(*peer, std::move(message));
}

void PeerHub::Deliver(HubPeer& peer, absl::StatusOr<ControlMessage> message) {
  if (!message.ok()) {
    const ConnectionPtr connection = peer.connection;
    return Break(connection, std::string(message.status().message()));
  }
  ++counters_.messages_in;
  const bool awaited = ReceiptOf(*message).has_value();
  if (!agent_->OnPeerMessage(peer.node, peer.link.hello().boot, *std::move(message))) {
    return Lose(peer, absl::StrCat("node ", peer.node, " sends messages faster than the engine of node ", options_.node,
                                   " takes them"));
  }
  if (awaited) return Acknowledge(peer, last_tick_);
  AcknowledgeIfMany(peer);
}

void PeerHub::TellTaken(HubPeer& peer) {
  std::vector<JobKey> jobs = peer.outbox.TakeReceipts();
  if (!jobs.empty()) agent_->OnReadyTaken(peer.node, peer.link.hello().boot, std::move(jobs));
}

void PeerHub::AcknowledgeIfMany(HubPeer& peer) {
  const bool many = peer.inbox.taken() - peer.acknowledged_in >= kAcknowledgeAfter;
  if (many || peer.acknowledge_again) Acknowledge(peer, last_tick_);
}

void PeerHub::Acknowledge(HubPeer& peer, absl::Time now) {
  const uint64_t taken = peer.inbox.taken();
  peer.acknowledge_again =
      !peer.connection->Write(std::make_shared<const std::string>(FrameOf(FrameKind::kTaken, taken)));
  if (peer.acknowledge_again) return;
  peer.acknowledged_in = taken;
  peer.last_write = now;
}

}  // namespace railsd
