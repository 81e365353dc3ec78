// A TcpRail and networks that swallow its packets: while anything is unacknowledged the kernel is asked how it goes.
#include <cerrno>

#include "agent/transport/tcp/tcp_rail.h"

namespace railsd::tcp {
namespace {

constexpr Nanoseconds kLooksPerStall = 8;

}  // namespace

// Something was sent that must be acknowledged.
void TcpRail::ExpectProgress() {
  if (stall_check_ != 0 || stall_ <= 0) return;
  stall_check_ = Now() + stall_ / kLooksPerStall;
  Arm(stall_check_);
}

void TcpRail::CheckStalls(Nanoseconds now) {
  bool any = false;
  for (auto& [index, owned] : peers_) {
    Peer& peer = *owned;
    if (peer.up && peer.sender.InDoubt()) {  // some order is not done
      any = true;
      CheckOutgoing(peer, now);
    } else if (peer.stalled) {
      TellStall(peer, false);
    }
    any = CheckIncoming(peer, now) || any;
  }
  stall_check_ = any ? now + stall_ / kLooksPerStall : 0;
}

void TcpRail::CheckOutgoing(Peer& peer, Nanoseconds now) {
  ConnectionInfo info;
  if (!ReadConnectionInfo(peer.bulk->fd.get(), &info)) return;
  const Progress progress = peer.stall.Judge(info, now, stall_);
  if (progress == Progress::kBroken) return PeerDown(peer, ETIMEDOUT);
  if ((progress == Progress::kStalled) != peer.stalled) TellStall(peer, progress == Progress::kStalled);
}

// True while acknowledgements are on their way to the peer.
bool TcpRail::CheckIncoming(Peer& peer, Nanoseconds now) {
  if (peer.in_small == nullptr || !peer.acks_under_way) return false;
  ConnectionInfo info;
  if (!ReadConnectionInfo(peer.in_small->fd.get(), &info)) return false;
  const Progress progress = peer.in_stall.Judge(info, now, stall_);
  peer.acks_under_way = info.unacknowledged_segments > 0 || info.probes > 0;
  if (progress == Progress::kBroken) DropIncoming(peer);
  return peer.in_small != nullptr && peer.acks_under_way;
}

void TcpRail::TellStall(Peer& peer, bool stalled) {
  peer.stalled = stalled;
  PushPeerEvent(RailEvent::Kind::kPeerStalled, peer, stalled ? ETIMEDOUT : 0);
}

}  // namespace railsd::tcp
