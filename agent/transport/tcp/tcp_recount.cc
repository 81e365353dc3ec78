// What becomes of a TcpRail's orders when their connection breaks. Frames that were sent and not acknowledged are in
// doubt: the receiver may have them. It is asked over the link, closes its end, and answers with a count that
// can only be final. No new pair is dialled before that, so one connection at a time is in doubt.
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/transport/tcp/recount.h"
#include "agent/transport/tcp/tcp_rail.h"

namespace railsd::tcp {
namespace {

constexpr Nanoseconds kAskAgain = 1'000'000'000;

}  // namespace

// Both dialled connections are closed, the orders come back as soon as it is known what arrived, and another attempt
// follows.
void TcpRail::PeerDown(Peer& peer, int error_number) {
  HangUp(peer);
  const bool was_up = std::exchange(peer.up, false);
  if (was_up && options_.signals != nullptr) {
    peer.sender.Break(error_number);
  } else {
    peer.sender.Fail(SendResult::kRailFailed, error_number);
  }
  Context::Add(was_up ? context_.counters.disconnects : context_.counters.connect_failures, 1);
  if (was_up) PushPeerEvent(RailEvent::Kind::kPeerDown, peer, error_number);
  if (!peer.sender.InDoubt()) return RetryLater(peer);
  peer.doubt_error = error_number;
  peer.doubt_deadline = Now() + absl::ToInt64Nanoseconds(options_.answer_patience);
  AskWhatArrived(peer);
}

void TcpRail::AskWhatArrived(Peer& peer) {
  SendRecount(peer, {.kind = Recount::Kind::kAsk, .generation = peer.generation});
  peer.timer = Now() + kAskAgain;
  Arm(peer.timer);
}

void TcpRail::SendRecount(const Peer& peer, Recount recount) {
  if (options_.signals == nullptr) return;
  recount.from = options_.boot;
  recount.to = peer.config.boot;
  options_.signals->Send(peer.config.peer, EncodeRecount(recount));
}

// Nobody says what arrived. The engine must take it for both: arrived, and not.
void TcpRail::GiveUpDoubt(Peer& peer) {
  peer.doubt_deadline = 0;
  peer.sender.Fail(SendResult::kRailFailed, peer.doubt_error);
}

void TcpRail::OnDoubtTimer(Peer& peer, Nanoseconds now) {
  if (now < peer.doubt_deadline) return AskWhatArrived(peer);
  Notice(&peer.notice, absl::StrCat("rail ", options_.rail.value(), " of ", options_.node, ": ", peer.config.node,
                                    " did not say what arrived before the connection broke"));
  GiveUpDoubt(peer);
  RetryLater(peer);
}

void TcpRail::OnSignal(PeerIndex index, const std::string& bytes) {
  const auto found = peers_.find(index);
  Recount recount;
  const bool fits = found != peers_.end() && DecodeRecount(bytes, &recount) && recount.to == options_.boot &&
                    recount.from == found->second->config.boot;
  if (!fits) {
    Context::Add(context_.counters.refused_connections, 1);
    return;
  }
  Peer& peer = *found->second;
  if (recount.kind == Recount::Kind::kAsk) return OnAsked(peer, recount.generation);
  if (recount.generation != peer.generation) return;  // of a connection that is settled
  if (peer.up) PeerDown(peer, ECONNRESET);            // its other end is closed, whatever this one believes
  if (!peer.sender.InDoubt()) return;
  peer.doubt_deadline = 0;
  if (recount.kind == Recount::Kind::kUnknown) {
    GiveUpDoubt(peer);
  } else if (!peer.sender.Settle(recount.frames, peer.doubt_error)) {
    BadPeer(peer);
    GiveUpDoubt(peer);
  }
  RetryLater(peer);
}

void TcpRail::OnAsked(Peer& peer, uint64_t generation) {
  if (peer.receiver != nullptr && peer.in_generation <= generation) {
    const bool whole = peer.in_bulk != nullptr && peer.in_small != nullptr;
    const bool this_one = peer.in_generation == generation;
    DropIncoming(peer);
    if (whole && this_one) return;  // that has told
  }
  // The caller counts on a pair whose proofs have not been read: nothing of it has landed, and it is too late for it.
  if (peer.ended_generation < generation) {
    peer.ended_generation = generation;
    peer.ended_frames = 0;
  }
  const bool known = peer.ended_generation == generation;
  SendRecount(peer, {.kind = known ? Recount::Kind::kAnswer : Recount::Kind::kUnknown,
                     .generation = generation,
                     .frames = known ? peer.ended_frames : 0});
}

// The peer's connections are closed: nothing more of them lands. What did is remembered, and told.
void TcpRail::DropIncoming(Peer& peer) {
  const bool was_whole = peer.in_bulk != nullptr && peer.in_small != nullptr;
  Discard(peer.in_bulk);
  Discard(peer.in_small);
  if (peer.receiver != nullptr) {
    peer.ended_generation = peer.in_generation;
    peer.ended_frames = peer.receiver->frames();
    if (was_whole) {
      SendRecount(peer,
                  {.kind = Recount::Kind::kAnswer, .generation = peer.in_generation, .frames = peer.ended_frames});
    }
  }
  peer.receiver.reset();
  peer.in_deadline = 0;
  peer.acks_blocked = peer.acks_under_way = false;
  peer.in_stall.Restart();
}

}  // namespace railsd::tcp
