#include "sim/network/packet.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "sim/network/connection.h"
#include "sim/network/event_heap.h"
#include "sim/network/nic_sender.h"
#include "sim/network/ports.h"
#include "sim/network/resources.h"
#include "sim/network/tally.h"

namespace railsd::sim {
namespace {

// How long a sender takes to leave a path whose packets were lost because it had died.
constexpr double kLeaveSeconds = 1e-6;

class PacketNetwork : public NetworkView {
 public:
  PacketNetwork(const Fabric& fabric, TransferPlan plan, const PacketOptions& options, size_t timeline_bins,
                uint64_t chunk_bytes, bool rail_scheduler, Reaction* reaction);
  Outcome Run();

  double Now() const override { return now_; }
  absl::Span<const uint32_t> ActiveFrom(size_t node) override;
  const Path& PathOf(uint32_t transfer) const override { return connections_[transfer].path; }
  double BytesLeft(uint32_t transfer) const override { return static_cast<double>(connections_[transfer].left); }
  double WeightOf(uint32_t transfer) const override { return connections_[transfer].weight; }
  double Rate(uint32_t transfer) const override { return connections_[transfer].rate; }
  double Congestion(uint32_t transfer) const override { return connections_[transfer].congestion; }
  double SpeedOf(size_t nic) const override { return ports_[nic].speed; }
  double SendRate(size_t nic) const override { return nics_[nic].MeasuredRate(); }
  uint64_t PostedBytes(size_t nic) const override { return nics_[nic].posted_bytes(); }
  void Move(uint32_t transfer, double bytes, const Path& to) override;

 private:
  uint32_t MakeConnection(const Path& path, double weight);
  void StartStage();
  void SetSpeeds();
  void Handle(const Event& event);
  // Starts what the port can send now.
  void Send(uint32_t port);
  void SendFromNic(uint32_t port);
  void SendFromQueue(uint32_t port);
  // Takes room in the port's queue; false: there is none, and `sender` waits (kPause only).
  bool TakeRoom(uint32_t port, uint32_t bytes, uint32_t sender);
  void Transmit(uint32_t port, Packet packet);
  void OnSent(uint32_t port, Packet packet);
  void OnArrived(uint32_t port, Packet packet);
  void OnDelivered(Packet packet);
  // Time from the delivery of a packet until its sender knows.
  double AckSeconds(const Connection& connection) const;
  void OnAcknowledged(const Packet& packet);
  void OnLost(const Packet& packet);
  void Lose(const Packet& packet);
  void FreeRoom(uint32_t port, uint32_t bytes);
  void After(double seconds, EventKind kind, uint32_t id, Packet packet);
  void OnPeriod();
  void AskInAPeriod();
  void ChangeSpeeds();
  void MarkDead();
  void CheckEnded(const Connection& connection) { active_ -= connection.ended() ? 1 : 0; }
  void AskLater(uint32_t nic);
  Outcome Finish();

  const Fabric& fabric_;
  const PacketOptions options_;
  const Resources resources_;
  Reaction* const reaction_;
  const std::vector<SpeedPeriod> periods_;
  const Sharing sharing_;
  std::vector<Transfer> transfers_;
  std::vector<Connection> connections_;
  std::vector<Port> ports_;                  // by resource
  std::vector<NicSender> nics_;              // by NIC
  std::vector<double> ask_at_;               // by NIC: time of the pending kAsk event
  std::vector<bool> idle_;                   // by NIC: the policy knows that it is idle
  std::vector<bool> leaving_;                // by node: a kLeave event is pending
  std::vector<std::vector<uint32_t>> from_;  // by node: its connections
  std::vector<uint32_t> active_from_;        // result of the last ActiveFrom()
  absl::flat_hash_map<uint64_t, uint32_t> by_path_;
  EventHeap events_;
  Tally tally_;
  double now_ = 0;
  size_t period_ = 0, started_ = 0;
  uint64_t active_ = 0;  // connections that have not ended
  bool asks_ = false;    // a kPeriod event is pending
};

PacketNetwork::PacketNetwork(const Fabric& fabric, TransferPlan plan, const PacketOptions& options,
                             size_t timeline_bins, uint64_t chunk_bytes, bool rail_scheduler, Reaction* reaction)
    : fabric_(fabric),
      options_(options),
      resources_(fabric),
      reaction_(reaction),
      periods_(SpeedPeriods(fabric)),
      sharing_(plan.sharing),
      transfers_(std::move(plan.transfers)),
      ports_(resources_.count()),
      ask_at_(fabric.nics(), std::numeric_limits<double>::infinity()),
      idle_(fabric.nics(), false),
      leaving_(fabric.nodes, false),
      from_(fabric.nodes),
      tally_(fabric, timeline_bins) {
  std::stable_sort(transfers_.begin(), transfers_.end(),
                   [](const Transfer& a, const Transfer& b) { return a.stage < b.stage; });
  const std::vector<double> nominal = NominalSpeeds(periods_);
  for (size_t nic = 0; nic < fabric.nics(); ++nic) {
    nics_.emplace_back(&connections_, nic / fabric.rails(), fabric.nodes);
    if (rail_scheduler) nics_.back().UseScheduler(nominal[nic], chunk_bytes);
  }
  for (size_t link = 2 * resources_.nics(); link < ports_.size(); ++link) ports_[link].speed = fabric.SpineLinkSpeed();
  SetSpeeds();
}

void PacketNetwork::SetSpeeds() {
  for (size_t nic = 0; nic < fabric_.nics(); ++nic) {
    ports_[nic].speed = periods_[period_].speeds[nic];
    ports_[resources_.nics() + nic].speed = periods_[period_].speeds[nic];
  }
}

uint32_t PacketNetwork::MakeConnection(const Path& path, double weight) {
  const auto number = static_cast<uint32_t>(connections_.size());
  connections_.push_back(OpenConnection(fabric_, path, ports_, options_));
  connections_.back().weight = weight;
  connections_.back().stretch_since = now_;
  from_[path.source_node].push_back(number);
  if (reaction_ != nullptr) by_path_[RailPathKey(path)] = number;
  return number;
}

void PacketNetwork::StartStage() {
  const uint32_t stage = transfers_[started_].stage;
  for (; started_ < transfers_.size() && transfers_[started_].stage == stage; ++started_) {
    const Transfer& transfer = transfers_[started_];
    const auto bytes = static_cast<uint64_t>(std::llround(transfer.bytes));
    if (bytes == 0) continue;
    const uint32_t number = MakeConnection(transfer.path, sharing_ == Sharing::kByWeight ? transfer.weight : 1);
    connections_[number].left = bytes;
    ++active_;
    nics_[connections_[number].ports[0]].OnAdded(number, bytes);
  }
  for (uint32_t nic = 0; nic < nics_.size(); ++nic) Send(nic);
}

void PacketNetwork::After(double seconds, EventKind kind, uint32_t id, Packet packet) {
  events_.Add(now_ + seconds, kind, id, packet);
}

void PacketNetwork::Send(uint32_t port) {
  if (ports_[port].busy || ports_[port].stopped || ports_[port].speed <= 0) return;
  if (port < nics_.size()) {
    SendFromNic(port);
  } else {
    SendFromQueue(port);
  }
}

void PacketNetwork::SendFromNic(uint32_t port) {
  NicSender& nic = nics_[port];
  Packet packet;
  uint32_t bytes = 0;
  packet.connection = nic.Choose(options_.packet_bytes, now_, &bytes);
  AskLater(port);
  if (packet.connection == NicSender::kNone) return;
  packet.bytes = bytes;
  if (!TakeRoom(connections_[packet.connection].ports[1], bytes, port)) return;
  packet.stopped = ports_[port].stopped_since == now_;
  nic.OnSent(packet.connection, bytes);
  ++tally_.outcome().packets;
  const double speed = ports_[port].speed;
  tally_.AddSent(port, bytes, speed, now_, now_ + bytes / speed);
  Transmit(port, packet);
  if (reaction_ == nullptr || nic.left_bytes() > 0 || idle_[port]) return;
  idle_[port] = true;
  After(0, EventKind::kIdle, port, {});
}

void PacketNetwork::SendFromQueue(uint32_t port) {
  Port& from = ports_[port];
  if (from.queue.empty()) return;
  Packet packet = from.queue.front();
  const Connection& connection = connections_[packet.connection];
  if (packet.hop + 1U < connection.hops && !TakeRoom(connection.ports[packet.hop + 1U], packet.bytes, port)) return;
  from.queue.pop_front();
  Transmit(port, packet);
}

bool PacketNetwork::TakeRoom(uint32_t port, uint32_t bytes, uint32_t sender) {
  if (options_.queue_mode != QueueMode::kPause) return true;
  Port& to = ports_[port];
  if (to.queued_bytes + bytes <= options_.queue_bytes) {
    to.Take(bytes);
    return true;
  }
  to.waiting.push_back(sender);
  ports_[sender].stopped = true;
  ports_[sender].stopped_since = now_;
  return false;
}

void PacketNetwork::FreeRoom(uint32_t port, uint32_t bytes) {
  Port& from = ports_[port];
  from.queued_bytes -= bytes;
  // Lets waiting ports send while a packet of full size fits. A port waits again if its packet does not fit.
  for (size_t waiting = from.waiting.size(); waiting > 0; --waiting) {
    if (from.queued_bytes + options_.packet_bytes > options_.queue_bytes) return;
    const uint32_t sender = from.waiting.front();
    from.waiting.pop_front();
    ports_[sender].stopped = false;
    if (sender < nics_.size()) tally_.outcome().paused_seconds += now_ - ports_[sender].stopped_since;
    ports_[sender].stopped_since = now_;
    Send(sender);
  }
}

void PacketNetwork::Transmit(uint32_t port, Packet packet) {
  ports_[port].busy = true;
  After(packet.bytes / ports_[port].speed, EventKind::kSent, port, packet);
}

void PacketNetwork::OnSent(uint32_t port, Packet packet) {
  Port& from = ports_[port];
  from.busy = false;
  const Connection& connection = connections_[packet.connection];
  const bool dead = from.speed <= 0;
  if (port >= nics_.size()) FreeRoom(port, packet.bytes);
  const double propagation = absl::ToDoubleSeconds(fabric_.propagation);
  if (dead) {
    if (packet.hop + 1U < connection.hops && options_.queue_mode == QueueMode::kPause) {
      FreeRoom(connection.ports[packet.hop + 1U], packet.bytes);
    }
    Lose(packet);
  } else if (packet.hop + 1U == connection.hops) {
    tally_.AddReceived(port - resources_.nics(), packet.bytes, from.speed);
    if (propagation > 0) {
      After(propagation, EventKind::kDelivered, 0, packet);
    } else {
      OnDelivered(packet);
    }
  } else {
    const uint32_t next = connection.ports[++packet.hop];
    if (propagation > 0) {
      After(propagation, EventKind::kArrived, next, packet);
    } else {
      OnArrived(next, packet);
    }
  }
  Send(port);
}

void PacketNetwork::OnArrived(uint32_t port, Packet packet) {
  Port& at = ports_[port];
  if (options_.queue_mode != QueueMode::kPause) {
    if (at.queued_bytes + packet.bytes > options_.queue_bytes) return Lose(packet);
    if (options_.queue_mode == QueueMode::kEcn && at.queued_bytes >= options_.mark_bytes) {
      packet.marked = true;
      ++tally_.outcome().marked_packets;
    }
    at.Take(packet.bytes);
  }
  if (at.speed <= 0) {
    FreeRoom(port, packet.bytes);
    return Lose(packet);
  }
  at.queue.push_back(packet);
  Send(port);
}

double PacketNetwork::AckSeconds(const Connection& connection) const {
  const Path& path = connection.path;
  const uint32_t out = resources_.Sender(path.destination_node, path.destination_rail);
  const Port& in = ports_[resources_.Receiver(path.source_node, path.source_rail)];
  if (!options_.acks_wait || ports_[out].speed <= 0 || in.speed <= 0) return connection.propagation;
  return connection.propagation + static_cast<double>(nics_[out].posted_bytes()) / ports_[out].speed +
         static_cast<double>(in.queued_bytes) / in.speed;
}

void PacketNetwork::OnDelivered(Packet packet) {
  const Connection& connection = connections_[packet.connection];
  tally_.Finish(connection.path.source_node, connection.path.destination_node, now_);
  if (const double delay = AckSeconds(connection); delay > 0) {
    After(delay, EventKind::kAcknowledged, 0, packet);
  } else {
    OnAcknowledged(packet);
  }
}

void PacketNetwork::OnAcknowledged(const Packet& packet) {
  Connection& connection = connections_[packet.connection];
  connection.in_flight -= packet.bytes;
  connection.window.OnAcknowledged(packet.bytes, packet.marked);
  connection.Observe(packet.bytes, packet.marked || packet.stopped, now_);
  const uint32_t nic = connection.ports[0];
  nics_[nic].OnAcknowledged(packet.connection, packet.bytes, now_);
  CheckEnded(connection);
  Send(nic);
}

// The sender learns of the loss when the acknowledgement would have come.
void PacketNetwork::Lose(const Packet& packet) {
  ++tally_.outcome().dropped_packets;
  After(connections_[packet.connection].round_trip, EventKind::kLost, 0, packet);
}

void PacketNetwork::OnLost(const Packet& packet) {
  Connection& connection = connections_[packet.connection];
  const uint32_t nic = connection.ports[0];
  connection.in_flight -= packet.bytes;
  connection.window.OnLost();
  connection.Observe(packet.bytes, true, now_);
  if (nics_[nic].has_scheduler() && !connection.dead) {
    nics_[nic].PostAgain(packet.connection, packet.bytes);
  } else {
    connection.left += packet.bytes;
    nics_[nic].OnAdded(packet.connection, packet.bytes);
  }
  if (connection.dead) {
    const uint32_t node = connection.path.source_node;
    if (reaction_ != nullptr && !leaving_[node]) {
      leaving_[node] = true;
      After(kLeaveSeconds, EventKind::kLeave, node, {});
    }
    return;
  }
  const double pause = connection.window.Pause() * connection.round_trip;
  if (pause > 0) {
    connection.paused_until = now_ + pause;
    After(pause, EventKind::kRetry, packet.connection, {});
  }
  Send(nic);
}

void PacketNetwork::AskLater(uint32_t nic) {
  const double at = nics_[nic].AskAt();
  if (at >= ask_at_[nic] || std::isinf(at)) return;
  ask_at_[nic] = at;
  events_.Add(std::max(at, now_), EventKind::kAsk, nic);
}

absl::Span<const uint32_t> PacketNetwork::ActiveFrom(size_t node) {
  active_from_.clear();
  for (const uint32_t number : from_[node]) {
    if (connections_[number].left > 0) active_from_.push_back(number);
  }
  return active_from_;
}

void PacketNetwork::Move(uint32_t transfer, double bytes, const Path& to) {
  const uint64_t moved = std::min(connections_[transfer].left, static_cast<uint64_t>(std::llround(bytes)));
  if (moved == 0) return;
  ++tally_.outcome().moves;
  Connection& source = connections_[transfer];
  const double weight = source.weight * static_cast<double>(moved) / static_cast<double>(source.left);
  source.left -= moved;
  CheckEnded(source);
  nics_[source.ports[0]].OnRemoved(transfer, moved);
  const auto same = by_path_.find(RailPathKey(to));
  const uint32_t target = same != by_path_.end() ? same->second : MakeConnection(to, 0);
  Connection& destination = connections_[target];
  if (destination.ended()) {
    ++active_;
    destination.weight = 0;
  }
  if (sharing_ == Sharing::kByWeight) destination.weight += weight;
  destination.left += moved;
  const uint32_t nic = destination.ports[0];
  idle_[nic] = false;
  nics_[nic].OnAdded(target, moved);
  // Sends in an event of its own, because the policy may still work through a list of connections.
  events_.Add(now_, EventKind::kRetry, target);
}

void PacketNetwork::MarkDead() {
  for (uint32_t number = 0; number < connections_.size(); ++number) {
    const Connection& connection = connections_[number];
    NicSender& nic = nics_[connection.ports[0]];
    const double slower =
        std::min(ports_[connection.ports[0]].speed, ports_[connection.ports[connection.hops - 1]].speed);
    if (slower <= 0) {
      nic.OnDead(number, now_);
    } else {
      nic.OnAlive(number);
    }
  }
}

void PacketNetwork::ChangeSpeeds() {
  ++period_;
  SetSpeeds();
  MarkDead();
  for (uint32_t port = 0; port < ports_.size(); ++port) {
    if (ports_[port].speed > 0) continue;
    std::deque<Packet> lost;
    lost.swap(ports_[port].queue);
    for (const Packet& packet : lost) {
      FreeRoom(port, packet.bytes);
      Lose(packet);
    }
  }
  for (size_t node = 0; reaction_ != nullptr && node < fabric_.nodes; ++node) reaction_->OnChange(node, *this);
  for (uint32_t port = 0; port < ports_.size(); ++port) Send(port);
  AskInAPeriod();
}

void PacketNetwork::OnPeriod() {
  for (size_t node = 0; node < fabric_.nodes; ++node) reaction_->OnPeriod(node, *this);
  // Stops the periods while nothing moves, that is, while all further events are changes of speeds.
  asks_ = events_.size() > periods_.size() - 1 - period_;
  if (asks_) events_.Add(NextPeriod(now_, periods_[period_].since, reaction_->PeriodSeconds()), EventKind::kPeriod, 0);
}

void PacketNetwork::AskInAPeriod() {
  if (asks_ || reaction_ == nullptr || reaction_->PeriodSeconds() <= 0) return;
  asks_ = true;
  After(reaction_->PeriodSeconds(), EventKind::kPeriod, 0, {});
}

void PacketNetwork::Handle(const Event& event) {
  switch (event.kind) {
    case EventKind::kSent:
      return OnSent(event.id, event.packet);
    case EventKind::kArrived:
      return OnArrived(event.id, event.packet);
    case EventKind::kDelivered:
      return OnDelivered(event.packet);
    case EventKind::kAcknowledged:
      return OnAcknowledged(event.packet);
    case EventKind::kLost:
      return OnLost(event.packet);
    case EventKind::kRetry:
      nics_[connections_[event.id].ports[0]].Enqueue(event.id);
      return Send(connections_[event.id].ports[0]);
    case EventKind::kAsk:
      ask_at_[event.id] = std::numeric_limits<double>::infinity();
      nics_[event.id].AskAgain();
      return Send(event.id);
    case EventKind::kLeave:
      leaving_[event.id] = false;
      return reaction_->OnChange(event.id, *this);
    case EventKind::kIdle:
      return reaction_->OnIdle(event.id / fabric_.rails(), event.id % fabric_.rails(), *this);
    case EventKind::kPeriod:
      return OnPeriod();
    case EventKind::kChange:
      return ChangeSpeeds();
  }
}

Outcome PacketNetwork::Finish() {
  const auto miss = [this](const Path& path, double bytes) {
    tally_.Miss(path.source_node, path.destination_node, bytes);
  };
  for (const Connection& connection : connections_) {
    miss(connection.path, static_cast<double>(connection.left + connection.posted + connection.in_flight));
  }
  for (size_t i = started_; i < transfers_.size(); ++i) miss(transfers_[i].path, std::round(transfers_[i].bytes));
  Outcome outcome = tally_.Take();
  for (size_t port = resources_.nics(); port < ports_.size(); ++port) {
    std::vector<double>& peaks =
        port < 2 * resources_.nics() ? outcome.queue_peak_bytes : outcome.spine_queue_peak_bytes;
    peaks.push_back(static_cast<double>(ports_[port].peak_bytes));
  }
  return outcome;
}

Outcome PacketNetwork::Run() {
  tally_.outcome().transfers = transfers_.size();
  for (size_t i = 1; i < periods_.size(); ++i) events_.Add(periods_[i].since, EventKind::kChange, 0);
  AskInAPeriod();
  while (active_ > 0 || started_ < transfers_.size()) {
    if (active_ == 0) {
      StartStage();
      continue;
    }
    if (events_.empty()) break;
    const Event event = events_.Take();
    now_ = event.at;
    ++tally_.outcome().events;
    Handle(event);
  }
  return Finish();
}

}  // namespace

Outcome RunPacket(const Fabric& fabric, TransferPlan plan, const PacketOptions& options, size_t timeline_bins,
                  uint64_t chunk_bytes, bool rail_scheduler, Reaction* reaction) {
  return PacketNetwork(fabric, std::move(plan), options, timeline_bins, chunk_bytes, rail_scheduler, reaction).Run();
}

}  // namespace railsd::sim
