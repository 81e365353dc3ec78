#include "tests/support/fake/fake_transport.h"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"

namespace railsd {

bool FakeTransport::IsReadable(const MemoryRanges& memory, uint64_t offset_bytes) {
  iovec remote;
  uint64_t covered = 0;
  if (memory.FillIovecs(offset_bytes, 1, {&remote, 1}, &covered) == 0) return false;
  char byte = 0;
  const iovec local{&byte, 1};
  return ::process_vm_readv(::getpid(), &local, 1, &remote, 1, 0) == 1;
}

FakeTransport* FakeFabricState::Find(const std::string& address) const {
  for (FakeTransport* transport : transports) {
    if (transport->address_ == address) return transport;
  }
  return nullptr;
}

void FakeFabricState::ConnectAll() {
  for (FakeTransport* dialler : transports) {
    for (auto& [index, link] : dialler->links_) {
      if (link.far != nullptr || dialler->failed_) continue;
      FakeTransport* peer = Find(link.peer.address);
      if (peer == nullptr || peer->failed_) {
        AddTo(dialler->counters_.connect_failures, 1);
        continue;
      }
      FakeTransport::Link* back = peer->LinkTo(dialler->address_);
      const bool agree = back != nullptr && peer->options_.rail == dialler->options_.rail &&
                         peer->options_.node == link.peer.node && peer->options_.boot == link.peer.boot &&
                         dialler->options_.node == back->peer.node && dialler->options_.boot == back->peer.boot;
      if (!agree) {
        AddTo(dialler->counters_.connect_failures, 1);
        AddTo(peer->counters_.refused_connections, 1);
        continue;
      }
      if (dialler->options_.signals != nullptr && !(link.heard && back->heard)) continue;
      ++connections;
      dialler->Connect(link, *peer, *back);
      peer->Connect(*back, *dialler, link);
    }
  }
}

FakeTransport::FakeTransport(std::shared_ptr<FakeFabricState> fabric, std::string address,
                             const FakeTransportOptions& options)
    : fabric_(std::move(fabric)),
      address_(std::move(address)),
      options_(options),
      events_(options.max_posted_orders, options.max_receive_events) {
  if (binds()) registrar_ = std::make_shared<FakeRegistrar>(address_);
  std::lock_guard lock(fabric_->mutex);
  random_.seed(fabric_->next_address);
  fabric_->transports.push_back(this);
}

FakeTransport::~FakeTransport() {
  std::lock_guard lock(fabric_->mutex);
  std::erase(fabric_->transports, this);
  BreakAll(ECONNRESET);
}

TransportInfo FakeTransport::Info() {
  TransportInfo info;
  info.address = address_;
  info.binder = binds() ? this : nullptr;
  info.zone_room = options_.traits.zone_room;
  info.max_rounds = options_.traits.max_rounds;
  info.counters = &counters_;
  info.registrar = registrar_;
  return info;
}

void FakeTransport::Notify() {
  changed_ = true;
  wake_.notify_all();
}

void FakeTransport::Push(const RailEvent& event) {
  events_.Push(event);
  Notify();
}

void FakeTransport::Finish(const SendOrder& order, SendResult result, int error_number) {
  if (binds()) AddTo(counters_.completions, 1);
  FinishOrder(events_, counters_, order, result, error_number);
  Notify();
}

// Links.

FakeTransport::Link* FakeTransport::LinkTo(const std::string& address) {
  for (auto& [index, link] : links_) {
    if (link.peer.address == address) return &link;
  }
  return nullptr;
}

void FakeTransport::Connect(Link& link, FakeTransport& far, Link& far_link) {
  link.far = &far;
  link.far_link = &far_link;
  link.connection = fabric_->connections;
  AddTo(counters_.connects, 1);
  Push({.kind = RailEvent::Kind::kPeerUp,
        .peer = link.peer.peer,
        .cookie = link.peer.link,
        .connection = link.connection});
}

void FakeTransport::EndOrders(Link& link, SendResult left, SendResult not_sent, int error_number) {
  for (const Reply& reply : link.replies) Finish(reply.order, left, error_number);
  for (size_t i = 0; i < link.orders.size(); ++i) {
    Finish(link.orders[i].order, i < kOnTheWire ? left : not_sent, error_number);
  }
  link.replies.clear();
  link.orders.clear();
}

void FakeTransport::Disconnect(Link& link, int error_number) {
  if (link.far == nullptr) return;
  EndOrders(link, SendResult::kRailFailed, SendResult::kNotSent, error_number);
  link.far = nullptr;
  link.far_link = nullptr;
  link.heard = link.greeted = false;
  DropKeys(link.peer.peer);
  AddTo(counters_.disconnects, 1);
  Push({.kind = RailEvent::Kind::kPeerDown,
        .peer = link.peer.peer,
        .error_number = error_number,
        .cookie = link.peer.link,
        .connection = link.connection});
}

void FakeTransport::Break(Link& link, int error_number) {
  if (link.far != nullptr) link.far->Disconnect(*link.far_link, error_number);
  Disconnect(link, error_number);
}

void FakeTransport::BreakAll(int error_number) {
  for (auto& [index, link] : links_) Break(link, error_number);
}

std::string FakeTransport::Greeting() const {
  return absl::StrCat("fake ", address_, " ", options_.rail.value(), " ", options_.boot.value());
}

void FakeTransport::OnSignal(PeerIndex index, const std::string& bytes) {
  std::lock_guard lock(fabric_->mutex);
  auto link = links_.find(index);
  const FakeTransport* peer = link == links_.end() ? nullptr : fabric_->Find(link->second.peer.address);
  if (peer == nullptr || bytes != peer->Greeting()) {
    AddTo(counters_.refused_connections, 1);
    return;
  }
  if (!std::exchange(link->second.heard, true)) link->second.greeted = false;  // it may have missed ours
  fabric_->ConnectAll();
}

// A connection that has ended was told before the next one is begun.
void FakeTransport::Greet() {
  if (options_.signals == nullptr || failed_ || !events_.empty()) return;
  for (auto& [index, link] : links_) {
    if (link.far == nullptr && !std::exchange(link.greeted, true)) options_.signals->Send(index, Greeting());
  }
}

void FakeTransport::SetPeer(const RailPeer& peer) {
  std::lock_guard lock(fabric_->mutex);
  Link& link = links_[peer.peer];
  if (link.peer.boot != peer.boot || link.peer.address != peer.address || link.peer.node != peer.node) {
    Break(link, ESTALE);
    link.peer = peer;
    link.heard = link.greeted = false;
  }
  fabric_->ConnectAll();
}

void FakeTransport::RemovePeer(PeerIndex peer) {
  std::lock_guard lock(fabric_->mutex);
  auto found = links_.find(peer);
  if (found == links_.end()) return;
  Link& link = found->second;
  EndOrders(link, SendResult::kStopped, SendResult::kStopped, 0);
  DropKeys(peer);
  if (link.far != nullptr) link.far->Disconnect(*link.far_link, ECONNRESET);
  links_.erase(found);
}

// Sending.

size_t FakeTransport::Post(absl::Span<const SendOrder> orders) {
  std::lock_guard lock(fabric_->mutex);
  return TakeOrders(events_, counters_, orders, [this](const SendOrder& order) {
    if (binds()) AddTo(counters_.work_requests, 1);
    const auto link = links_.find(order.stream->peer);
    const bool up = link != links_.end() && link->second.far != nullptr;
    if (!up || link->second.connection != order.connection) return false;
    link->second.orders.push_back({.order = order});
    link->second.far->Notify();
    return true;
  });
}

void FakeTransport::StopSends(JobTag job) {
  std::lock_guard lock(fabric_->mutex);
  const auto stop = [&](auto& queue) {
    std::erase_if(queue, [&](const auto& entry) {
      if (entry.order.stream->job != job) return false;
      Finish(entry.order, SendResult::kStopped, 0);
      return true;
    });
  };
  for (auto& [index, link] : links_) {
    stop(link.replies);
    stop(link.orders);
  }
}

void FakeTransport::TakeReplies() {
  for (auto& [index, link] : links_) {
    for (const Reply& reply : link.replies) Finish(reply.order, reply.result, reply.error_number);
    link.replies.clear();
  }
}

// Receiving.

void FakeTransport::EndAtReceiver(Link& link, SendResult result, int error_number) {
  Link& there = *link.far_link;
  there.replies.push_back({there.orders.front().order, result, error_number});
  there.orders.pop_front();
  link.far->Notify();
}

void FakeTransport::Leave(ZoneRef zone) {
  if (!options_.zones->Leave(zone)) return;
  Push({.kind = RailEvent::Kind::kZoneQuiet, .zone = zone});
}

void FakeTransport::Blame(Link& link, int error_number) {
  AddTo(counters_.protocol_errors, 1);
  Push({.kind = RailEvent::Kind::kBadPeer, .peer = link.peer.peer, .error_number = error_number});
  if (binds()) {
    EndpointError(link, error_number);
  } else {
    Break(link, error_number);
  }
}

bool FakeTransport::PlacePart(Link& link, Pending& pending, uint64_t* budget_bytes) {
  const SendOrder& order = pending.order;
  const ZoneRef ref = order.stream->zone;
  const ReceiveZone* zone = options_.zones->Enter(ref);
  if (zone == nullptr) {
    AddTo(counters_.rx_discarded_bytes, order.length_bytes - pending.done_bytes);
    EndAtReceiver(link, SendResult::kZoneClosed);
    return false;
  }
  const uint64_t room = zone->memory.total_bytes();
  if (zone->peer != link.peer.peer || order.length_bytes > room || order.offset_bytes > room - order.length_bytes) {
    Leave(ref);
    Blame(link, EPROTO);
    return false;
  }
  const uint64_t at = order.offset_bytes + pending.done_bytes;
  const uint64_t want = std::min(*budget_bytes, order.length_bytes - pending.done_bytes);
  uint64_t moved = 0;
  const absl::Status copied = CopyRangeBytes(order.stream->memory, zone->memory, at, want, &moved);
  if (moved > 0) zone->AddLanded(options_.rail.value(), at, moved);
  pending.done_bytes += moved;
  *budget_bytes -= moved;
  if (copied.ok()) {
    Leave(ref);
    return true;
  }
  const bool readable = IsReadable(order.stream->memory, at + moved);
  (readable ? zone->unwritable : order.stream->unreadable) = true;
  Leave(ref);
  EndAtReceiver(link, readable ? SendResult::kZoneClosed : SendResult::kMemoryFault, EFAULT);
  if (!readable) return false;
  Push({.kind = RailEvent::Kind::kReceiveFault, .peer = link.peer.peer, .zone = ref});
  return false;
}

bool FakeTransport::PlaceFence(Link& link, const SendOrder& order) {
  if (order.stream->unreadable) {
    EndAtReceiver(link, SendResult::kMemoryFault, EFAULT);
    return false;
  }
  RailEvent event;
  event.kind = RailEvent::Kind::kFence;
  event.peer = link.peer.peer;
  event.zone = order.stream->zone;
  event.weight = order.weight;
  event.round = order.round;
  const uint8_t generation = event.zone.short_generation();
  if (binds() && options_.zones->Look(event.zone.slot, generation, &event.zone) == ZoneTable::State::kUnknown) {
    Blame(link, EPROTO);
    return false;
  }
  const ReceiveZone* zone = options_.zones->Enter(event.zone);
  if (zone == nullptr) {
    if (binds()) return true;  // a device acknowledges what it delivers
    EndAtReceiver(link, SendResult::kZoneClosed);
    return false;
  }
  if (!binds() && zone->unwritable) {
    Leave(event.zone);
    EndAtReceiver(link, SendResult::kZoneClosed);
    return false;
  }
  const bool may = zone->peer == link.peer.peer;
  if (may) {
    AddTo(counters_.rx_fences, 1);
    Push(event);
  }
  Leave(event.zone);
  if (!may) Blame(link, EPROTO);
  return may;
}

// True: the first order has met its fault.
bool FakeTransport::InjectFault(Link& link) {
  auto& planned = link.far->fault_;
  if (planned.result == SendResult::kAcknowledged || planned.orders_before-- > 0) return false;
  const auto fault = std::exchange(planned, {});
  if (fault.result == SendResult::kRailFailed) {
    Break(link, fault.error_number);
  } else {
    EndAtReceiver(link, fault.result, fault.error_number);
  }
  return true;
}

bool FakeTransport::ReceiveFrom(Link& link, uint64_t* budget_bytes) {
  if (link.far == nullptr || link.far_link->orders.empty() || *budget_bytes == 0 || !events_.CanReceive()) return false;
  Pending& pending = link.far_link->orders.front();
  const SendOrder& order = pending.order;
  if (pending.done_bytes < order.length_bytes) {
    const bool moved = binds() ? WritePart(link, pending, budget_bytes) : PlacePart(link, pending, budget_bytes);
    // The fence, and the acknowledgement, come when the next bytes could.
    if (!moved || pending.done_bytes < order.length_bytes || *budget_bytes == 0) return true;
  }
  if (InjectFault(link)) return true;
  if (order.weight > 0 && !PlaceFence(link, order)) return true;
  if (!binds() && order.length_bytes > 0) {
    AddTo(counters_.rx_payload_bytes, order.length_bytes);
    AddTo(counters_.rx_chunks, 1);
    AddTo(link.far->counters_.tx_frames, 1);
  }
  EndAtReceiver(link, SendResult::kAcknowledged);
  return true;
}

bool FakeTransport::ReceiveStep() {
  uint64_t budget = options_.step_bytes;
  bool any = false;
  for (bool progress = true; progress;) {
    progress = false;
    for (auto& [index, link] : links_) progress |= ReceiveFrom(link, &budget);
    any |= progress;
  }
  return any;
}

size_t FakeTransport::Poll(absl::Duration max_wait, absl::Span<RailEvent> out) {
  std::unique_lock lock(fabric_->mutex);
  const auto deadline =
      std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(std::min(max_wait, absl::Hours(1)));
  AddTo(counters_.polls, 1);
  Greet();
  if (out.empty()) {
    wake_.wait_until(lock, deadline, [this] { return woken_; });
    woken_ = false;
    return 0;
  }
  for (;;) {
    changed_ = false;
    fabric_->ConnectAll();
    TakeReplies();
    const bool progress = ReceiveStep();
    const size_t count = events_.Take(out);
    const bool woken = std::exchange(woken_, false);
    if (count > 0 || progress || woken) return count;
    const auto news = [this] { return woken_ || changed_; };
    // A wait that is over before it begins still costs tens of microseconds.
    if (max_wait <= absl::ZeroDuration() ? !news() : !wake_.wait_until(lock, deadline, news)) return 0;
  }
}

void FakeTransport::Wake() {
  std::lock_guard lock(fabric_->mutex);
  woken_ = true;
  wake_.notify_all();
}

}  // namespace railsd
