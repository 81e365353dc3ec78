#include "agent/transport/fake/fake_transport.h"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"

namespace railsd {
namespace {

// Whether the byte at `offset_bytes` of the flow can be read.
bool IsReadable(const MemoryRanges& memory, uint64_t offset_bytes) {
  iovec remote;
  uint64_t covered = 0;
  if (memory.FillIovecs(offset_bytes, 1, {&remote, 1}, &covered) == 0) return false;
  char byte = 0;
  const iovec local{&byte, 1};
  return ::process_vm_readv(::getpid(), &local, 1, &remote, 1, 0) == 1;
}

}  // namespace

FakeTransport* FakeFabricState::Find(const std::string& address) const {
  for (FakeTransport* transport : transports) {
    if (transport->address_ == address) return transport;
  }
  return nullptr;
}

void FakeFabricState::ConnectAll() {
  for (FakeTransport* dialler : transports) {
    for (auto& [index, link] : dialler->links_) {
      if (link.up || dialler->failed_) continue;
      FakeTransport* peer = Find(link.peer.address);
      if (peer == nullptr || peer->failed_) {
        CountUp(dialler->counters_.connect_failures, 1);
        continue;
      }
      if (peer->options_.node != link.peer.node || peer->options_.boot != link.peer.boot || !peer->Accepts(*dialler)) {
        CountUp(dialler->counters_.connect_failures, 1);
        CountUp(peer->counters_.refused_connections, 1);
        continue;
      }
      if (dialler->options_.signals != nullptr && !(link.heard && peer->HasHeard(*dialler))) continue;
      link.up = true;
      CountUp(dialler->counters_.connects, 1);
      RailEvent event;
      event.kind = RailEvent::Kind::kPeerUp;
      event.peer = index;
      event.cookie = link.peer.boot.value();
      dialler->Push(event);
    }
  }
}

FakeTransport::FakeTransport(std::shared_ptr<FakeFabricState> fabric, std::string address, FakeTransportOptions options)
    : fabric_(std::move(fabric)), address_(std::move(address)), options_(std::move(options)) {
  if (options_.writes_remotely) registrar_ = std::make_shared<FakeRegistrar>(address_);
  std::lock_guard lock(fabric_->mutex);
  random_.seed(fabric_->next_address);
  fabric_->transports.push_back(this);
}

FakeTransport::~FakeTransport() {
  std::lock_guard lock(fabric_->mutex);
  std::erase(fabric_->transports, this);
  DropIncoming(ECONNRESET);
}

bool FakeTransport::Accepts(const FakeTransport& dialler) const {
  if (dialler.options_.rail != options_.rail) return false;
  return std::any_of(links_.begin(), links_.end(), [&](const auto& entry) {
    return entry.second.peer.node == dialler.options_.node && entry.second.peer.boot == dialler.options_.boot;
  });
}

bool FakeTransport::HasHeard(const FakeTransport& peer) const {
  return std::any_of(links_.begin(), links_.end(), [&](const auto& entry) {
    return entry.second.heard && entry.second.peer.address == peer.address_;
  });
}

std::string FakeTransport::Greeting() const {
  return absl::StrCat("fake ", address_, " ", options_.rail.value(), " ", options_.boot.value());
}

void FakeTransport::OnSignal(PeerIndex index, const std::string& bytes) {
  std::lock_guard lock(fabric_->mutex);
  auto link = links_.find(index);
  const FakeTransport* peer = link == links_.end() ? nullptr : fabric_->Find(link->second.peer.address);
  if (peer == nullptr || bytes != peer->Greeting()) {
    CountUp(counters_.refused_connections, 1);
    return;
  }
  if (!std::exchange(link->second.heard, true)) link->second.greeted = false;  // it may have missed ours
  fabric_->ConnectAll();
}

// A connection that has ended was told before the next one is begun.
void FakeTransport::Greet() {
  if (options_.signals == nullptr || failed_ || !events_.empty()) return;
  for (auto& [index, link] : links_) {
    if (!link.up && !std::exchange(link.greeted, true)) options_.signals->Send(index, Greeting());
  }
}

void FakeTransport::Push(const RailEvent& event) {
  events_.push_back(event);
  changed_ = true;
  wake_.notify_all();
}

void FakeTransport::FinishSend(const SendOrder& order, SendResult result, int error_number, uint64_t arrived_bytes) {
  RailEvent event;
  event.kind = RailEvent::Kind::kSendDone;
  event.result = result;
  event.peer = order.flow->peer;
  event.error_number = error_number;
  event.zone = order.zone;
  event.job = order.flow->job;
  event.cookie = order.cookie;
  event.offset_bytes = order.offset_bytes + arrived_bytes;
  event.length_bytes = order.length_bytes - arrived_bytes;
  CountUp(counters_.tx_payload_bytes, arrived_bytes);
  if (order.flow->left_bytes != nullptr) order.flow->left_bytes->fetch_sub(arrived_bytes, std::memory_order_relaxed);
  counters_.posted_bytes.fetch_sub(order.length_bytes, std::memory_order_relaxed);
  if (result == SendResult::kAcknowledged) {
    event.last = AcknowledgesLast(order);
    CountUp(counters_.tx_payload_bytes, order.length_bytes);
    CountUp(counters_.tx_chunks, order.length_bytes > 0);
    CountUp(counters_.tx_fences, order.fences > 0);
  }
  if (options_.writes_remotely) CountUp(counters_.completions, 1);
  Push(event);
}

void FakeTransport::FailOrders(Link& link, SendResult result, int error_number) {
  for (const Pending& pending : link.orders) {
    const uint64_t arrived = result == SendResult::kReturned ? pending.done_bytes - pending.frame_bytes : 0;
    FinishSend(pending.order, result, error_number, arrived);
  }
  link.orders.clear();
}

void FakeTransport::Disconnect(Link& link, int error_number) {
  FailOrders(link, WhenDown(), error_number);
  if (!std::exchange(link.up, false)) return;
  link.heard = link.greeted = false;
  DropKeys(link.peer.peer);
  CountUp(counters_.disconnects, 1);
  RailEvent event;
  event.kind = RailEvent::Kind::kPeerDown;
  event.peer = link.peer.peer;
  event.error_number = error_number;
  event.cookie = link.peer.boot.value();
  Push(event);
}

void FakeTransport::DropIncoming(int error_number) {
  for (FakeTransport* other : fabric_->transports) {
    for (auto& [index, link] : other->links_) {
      if (link.peer.address == address_) other->Disconnect(link, error_number);
    }
  }
}

void FakeTransport::SetPeer(const RailPeer& peer) {
  std::lock_guard lock(fabric_->mutex);
  Link& link = links_[peer.peer];
  if (link.peer.boot != peer.boot || link.peer.address != peer.address || link.peer.node != peer.node) {
    Disconnect(link, ESTALE);
    link.peer = peer;
    link.heard = link.greeted = false;
  }
  fabric_->ConnectAll();
}

void FakeTransport::RemovePeer(PeerIndex peer) {
  std::lock_guard lock(fabric_->mutex);
  auto found = links_.find(peer);
  if (found == links_.end()) return;
  Link link = std::move(found->second);
  links_.erase(found);
  DropKeys(peer);
  FailOrders(link, SendResult::kStopped, 0);
  // What it sent us has no home any more.
  FakeTransport* other = fabric_->Find(link.peer.address);
  if (other == nullptr) return;
  for (auto& [index, back] : other->links_) {
    if (back.peer.address == address_) other->Disconnect(back, ECONNRESET);
  }
}

size_t FakeTransport::Post(absl::Span<const SendOrder> orders) {
  std::lock_guard lock(fabric_->mutex);
  size_t taken = 0;
  for (const SendOrder& order : orders) {
    if (orders_held_ >= options_.max_posted_orders) break;
    ++taken;
    ++orders_held_;
    CountUp(counters_.posted_bytes, order.length_bytes);
    if (options_.writes_remotely) CountUp(counters_.work_requests, 1);
    auto link = links_.find(order.flow->peer);
    if (link == links_.end() || !link->second.up) {
      FinishSend(order, WhenDown(), ENOTCONN);
      continue;
    }
    link->second.orders.push_back({.order = order});
    if (FakeTransport* peer = fabric_->Find(link->second.peer.address)) {
      peer->changed_ = true;
      peer->wake_.notify_all();
    }
  }
  return taken;
}

void FakeTransport::StopSends(JobTag job) {
  std::lock_guard lock(fabric_->mutex);
  for (auto& [index, link] : links_) {
    for (const Pending& pending : link.orders) {
      if (pending.order.flow->job == job) FinishSend(pending.order, SendResult::kStopped, 0);
    }
    // FinishSend() leaves the flow alone, and so does whoever gets the event only after this lock is released.
    std::erase_if(link.orders, [&](const Pending& pending) { return pending.order.flow->job == job; });
  }
}

void FakeTransport::OpenZones(std::shared_ptr<const ReceiveSet> zones) {
  std::lock_guard lock(fabric_->mutex);
  const std::pair<uint32_t, uint32_t> key(zones->slot, zones->generation);
  if (options_.writes_remotely) OpenRemote(*zones);
  zones_[key] = std::move(zones);
}

void FakeTransport::CloseZones(uint32_t slot, uint32_t generation, bool writers_stopped) {
  std::lock_guard lock(fabric_->mutex);
  auto open = zones_.find({slot, generation});
  if (open != zones_.end()) {
    if (options_.writes_remotely) CloseRemote(*open->second, writers_stopped);
    zones_.erase(open);
  }
  RailEvent event;
  event.kind = RailEvent::Kind::kZonesClosed;
  event.zone.slot = slot;
  event.zone.generation = generation;
  Push(event);
}

FakeTransport::Step FakeTransport::CopyPart(FakeTransport& sender, Link& link, PeerIndex from, const ReceiveSet& set,
                                            uint64_t* budget_bytes) {
  const MemoryRanges& zone = set.zones[link.orders.front().order.zone.index];
  Pending& pending = link.orders.front();
  const SendOrder order = pending.order;
  const uint64_t frame_begin = pending.done_bytes - pending.frame_bytes;
  const uint64_t frame_length = std::min(options_.frame_bytes, order.length_bytes - frame_begin);
  const uint64_t want = std::min(*budget_bytes, frame_length - pending.frame_bytes);
  uint64_t moved = 0;
  const absl::Status copied =
      CopyRangeBytes(order.flow->memory, zone, order.offset_bytes + pending.done_bytes, want, &moved);
  pending.done_bytes += moved;
  pending.frame_bytes += moved;
  *budget_bytes -= moved;
  RailEvent event;
  event.peer = from;
  event.zone = order.zone;
  if (!copied.ok()) {
    const bool readable = IsReadable(order.flow->memory, order.offset_bytes + pending.done_bytes);
    link.orders.pop_front();
    sender.FinishSend(order, readable ? SendResult::kZoneClosed : SendResult::kMemoryFault, EFAULT);
    if (readable) {
      event.kind = RailEvent::Kind::kReceiveFault;
      event.error_number = EFAULT;
      ++receive_events_;
      Push(event);
    }
    return Step::kProgress;
  }
  if (pending.frame_bytes < frame_length) return Step::kProgress;
  event.kind = RailEvent::Kind::kReceived;
  event.offset_bytes = order.offset_bytes + frame_begin;
  event.length_bytes = frame_length;
  event.last = set.left_bytes.fetch_sub(frame_length, std::memory_order_relaxed) == frame_length;
  pending.frame_bytes = 0;
  ++receive_events_;
  CountUp(counters_.rx_payload_bytes, frame_length);
  CountUp(counters_.rx_chunks, 1);
  CountUp(sender.counters_.tx_frames, 1);
  Push(event);
  if (pending.done_bytes == order.length_bytes) {
    link.orders.pop_front();
    sender.FinishSend(order, SendResult::kAcknowledged, 0);
  }
  return Step::kProgress;
}

FakeTransport::Step FakeTransport::ReceiveFrom(FakeTransport& sender, Link& link, uint64_t* budget_bytes) {
  if (!link.up || link.orders.empty() || *budget_bytes == 0 || !IsReceiveRoom()) return Step::kNothing;
  Pending& pending = link.orders.front();
  const SendOrder order = pending.order;
  PeerIndex from;
  for (const auto& [index, back] : links_) {
    if (back.peer.node == sender.options_.node) from = index;
  }
  auto found = zones_.find({order.zone.slot, order.zone.generation});
  const bool known = found != zones_.end();
  if (!known || !found->second->gate.Enter()) {
    if (!known && !pending.begun && pending.parked_at == 0) pending.parked_at = poll_number_;
    if (!known && !pending.begun && pending.parked_at == poll_number_) {
      parked_ = true;
      return Step::kNothing;
    }
    CountUp(counters_.rx_discarded_bytes, order.length_bytes - (pending.done_bytes - pending.frame_bytes));
    link.orders.pop_front();
    sender.FinishSend(order, SendResult::kZoneClosed, 0);
    return Step::kProgress;
  }
  pending.begun = true;
  const ReceiveSet& set = *found->second;
  const bool inside = set.peer == from && order.zone.index < set.zones.size() &&
                      order.length_bytes <= set.zones[order.zone.index].total_bytes() &&
                      order.offset_bytes <= set.zones[order.zone.index].total_bytes() - order.length_bytes;
  if (!inside) {
    set.gate.Leave();
    CountUp(counters_.protocol_errors, 1);
    RailEvent event;
    event.kind = RailEvent::Kind::kBadPeer;
    event.peer = from;
    event.error_number = EPROTO;
    Push(event);
    sender.Disconnect(link, EPROTO);
    return Step::kProgress;
  }
  const Step step = CopyPart(sender, link, from, set, budget_bytes);
  set.gate.Leave();
  return step;
}

bool FakeTransport::ReceiveStep() {
  uint64_t budget = options_.step_bytes;
  bool any = false;
  for (bool progress = true; progress;) {
    progress = false;
    for (FakeTransport* sender : fabric_->transports) {
      for (auto& [index, link] : sender->links_) {
        if (link.peer.address != address_) continue;
        progress |= (options_.writes_remotely ? ReceiveRemote(*sender, link, &budget)
                                              : ReceiveFrom(*sender, link, &budget)) == Step::kProgress;
      }
    }
    any |= progress;
  }
  return any;
}

size_t FakeTransport::Deliver(absl::Span<RailEvent> out) {
  size_t count = 0;
  for (; count < out.size() && !events_.empty(); ++count) {
    out[count] = events_.front();
    events_.pop_front();
    if (out[count].kind == RailEvent::Kind::kSendDone) --orders_held_;
    if (out[count].kind == RailEvent::Kind::kReceived || out[count].kind == RailEvent::Kind::kReceiveFault) {
      --receive_events_;
    }
  }
  return count;
}

size_t FakeTransport::Poll(absl::Duration max_wait, absl::Span<RailEvent> out) {
  std::unique_lock lock(fabric_->mutex);
  const auto deadline =
      std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(std::min(max_wait, absl::Hours(1)));
  CountUp(counters_.polls, 1);
  ++poll_number_;
  parked_ = false;
  Greet();
  if (out.empty()) {
    wake_.wait_until(lock, deadline, [this] { return woken_; });
    woken_ = false;
    return 0;
  }
  for (;;) {
    changed_ = false;
    fabric_->ConnectAll();
    const bool progress = ReceiveStep();
    const size_t count = Deliver(out);
    const bool woken = std::exchange(woken_, false);
    if (count > 0 || progress || parked_ || woken) return count;
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
