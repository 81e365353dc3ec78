// A TcpRail and its interface: connections that cannot live any more end at once, and are dialled again at once when
// the interface is back.
#include <fcntl.h>
#include <sys/epoll.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/transport/tcp/tcp_rail.h"

namespace railsd::tcp {

// Without it the rail works, and notices a dead link later.
void TcpRail::WatchLink() {
  auto watch = std::make_unique<LinkWatch>(address_, options_.interface);
  absl::Status status = watch->Open();
  if (status.ok()) {
    link_.role = Connection::Role::kLink;
    link_.fd.Reset(::fcntl(watch->fd(), F_DUPFD_CLOEXEC, 0));
    if (!link_.fd.valid() || !Watch(link_, EPOLLIN)) status = absl::ErrnoToStatus(errno, "epoll_ctl");
  }
  if (!status.ok()) {
    link_.fd.Reset();
    Notice(&inbound_notice_,
           absl::StrCat("rail ", options_.rail.value(), " of ", options_.node,
                        ": the kernel's messages about its link cannot be read: ", std::string(status.message())));
    return;
  }
  link_watch_ = std::move(watch);
}

void TcpRail::OnLinkMessages() {
  if (!link_watch_->Read()) return;
  const bool down = link_watch_->error() != 0;
  RailEvent event;
  event.kind = down ? RailEvent::Kind::kLinkDown : RailEvent::Kind::kLinkUp;
  event.error_number = link_watch_->error();
  context_.events.Push(event);
  for (auto& [index, peer] : peers_) {
    if (down) {
      CutOff(*peer);
    } else {
      DialNow(*peer);
    }
  }
}

void TcpRail::CutOff(Peer& peer) {
  if (peer.bulk != nullptr) PeerDown(peer, link_watch_->error());  // up, or being dialled
  DropIncoming(peer);
}

void TcpRail::DialNow(Peer& peer) {
  peer.failures = 0;
  if (peer.up || peer.timer == 0 || peer.sender.InDoubt()) return;  // in doubt: it is dialled when its end has answered
  HangUp(peer);
  peer.timer = Now();
  Arm(peer.timer);
}

}  // namespace railsd::tcp
