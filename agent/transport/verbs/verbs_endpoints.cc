// How endpoints to peers come and go.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/transport/verbs/queue_pair.h"
#include "agent/transport/verbs/verbs_rail.h"

namespace railsd::verbs {
namespace {

constexpr Nanoseconds kLookInterval = 1'000'000'000;
// Endpoints that are looked at in one interval; a device may take a tenth of a millisecond for it.
constexpr size_t kLooks = 16;
// An endpoint that was up for longer than this begins again without counting earlier failures.
constexpr Nanoseconds kSteady = 1'000'000'000;

}  // namespace

// The next tick, which is the same for all endpoints, so that one walk over them serves them all.
Nanoseconds VerbsRail::NextTick(Nanoseconds now) { return (now / kLookInterval + 1) * kLookInterval; }

// How often each endpoint is looked at.
Nanoseconds VerbsRail::LookInterval() const {
  return kLookInterval * static_cast<Nanoseconds>(std::max<size_t>(endpoints_.size() / kLooks, 1));
}

void VerbsRail::SetPeer(const RailPeer& peer) {
  std::unique_ptr<Endpoint>& place = endpoints_[peer.peer];
  if (place != nullptr) {
    const RailPeer& known = place->peer;
    if (known.boot == peer.boot && known.node == peer.node) {
      place->peer.address = peer.address;
      if (place->phase == Endpoint::Phase::kIdle) place->timer = 0;
      Arm(place->timer);
      return;
    }
    Leave(std::move(place), ESTALE);
  }
  place = std::make_unique<Endpoint>();
  place->peer = peer;
  Begin(*place);
}

void VerbsRail::RemovePeer(PeerIndex peer) {
  const auto found = endpoints_.find(peer);
  if (found == endpoints_.end()) return;
  std::unique_ptr<Endpoint> endpoint = std::move(found->second);
  endpoints_.erase(found);
  endpoint->forgotten = true;
  Leave(std::move(endpoint), ESHUTDOWN);
}

// Breaks the endpoint and keeps it until its drain has ended.
void VerbsRail::Leave(std::unique_ptr<Endpoint> endpoint, int error_number) {
  endpoint->gone = true;
  Break(*endpoint, error_number, "");
  leaving_.push_back(std::move(endpoint));
  draining_ = true;
}

bool VerbsRail::IsLeaving(PeerIndex peer) const {
  return std::any_of(leaving_.begin(), leaving_.end(), [&](const auto& other) { return other->peer.peer == peer; });
}

Nanoseconds VerbsRail::BackOff(uint32_t failures) const {
  const absl::Duration wait = options_.min_back_off * static_cast<double>(1u << std::min(failures, 16u));
  return absl::ToInt64Nanoseconds(std::min(wait, options_.max_back_off));
}

// Makes queue pairs and tells the peer of them.
void VerbsRail::Begin(Endpoint& endpoint) {
  endpoint.timer = Now() + BackOff(endpoint.failures);
  // Wait until a former endpoint to this peer has drained and the last kPeerDown was taken: a connection is reported
  // only after the end of the one before.
  if (dead_ || IsLeaving(endpoint.peer.peer) || context_.events.taken() < downs_pushed_) {
    Arm(endpoint.timer);
    return;
  }
  if (absl::Status made = MakeQueuePairs(endpoint); !made.ok()) {
    endpoint.queue_pairs.clear();
    ++endpoint.failures;
    AddTo(context_.counters.connect_failures, 1);
    Notice(&endpoint.notice, absl::StrCat("node '", endpoint.peer.node, "': ", made.message()));
    Arm(endpoint.timer);
    return;
  }
  endpoint.phase = Endpoint::Phase::kLive;
  endpoint.tellings = 0;
  Do(endpoint, endpoint.handshake.Begin(next_generation_++));
}

absl::Status VerbsRail::MakeQueuePairs(Endpoint& endpoint) {
  absl::StatusOr<RdmaDevice::Address> own = context_.device->Refresh();
  if (!own.ok()) return own.status();
  EndpointAddress address;
  address.gid = own->gid.bytes;
  address.lid = own->lid;
  address.link_layer = own->link_layer;
  const uint32_t wanted = context_.tuning.path_mtu_bytes;
  address.mtu_bytes = wanted == 0 ? own->mtu_bytes : std::min(wanted, own->mtu_bytes);
  address.max_dest_rd_atomic = MaxReads(*context_.device);  // rails read nothing of peers; devices want to agree on it
  context_.max_message_bytes = own->max_message_bytes;
  for (uint32_t i = 0; i < context_.tuning.queue_pairs_per_peer; ++i) {
    const QueuePairId id(next_queue_pair_++ & 0xffffff);
    absl::StatusOr<std::unique_ptr<PeerQueuePair>> queue_pair =
        PeerQueuePair::Create(&context_, id, &endpoint, static_cast<uint32_t>(random_()) & 0xffffff);
    if (!queue_pair.ok()) return queue_pair.status();
    address.queue_pairs.push_back({(*queue_pair)->number(), (*queue_pair)->psn()});
    endpoint.queue_pairs.push_back(*std::move(queue_pair));
  }
  for (const auto& queue_pair : endpoint.queue_pairs) {
    queue_pairs_[queue_pair->id()] = queue_pair.get();
    queue_pairs_by_number_[queue_pair->number()] = queue_pair.get();
  }
  endpoint.own = *std::move(own);
  endpoint.address = std::move(address);
  return absl::OkStatus();
}

void VerbsRail::Do(Endpoint& endpoint, const Handshake::Action& action) {
  if (action.fail) {
    // A peer whose write was refused makes new queue pairs, too: check whether ours are in error.
    if (!LookAtQueuePairs(endpoint)) Break(endpoint, ECONNRESET, "its end of the rail broke, or was made anew");
    return;
  }
  if (action.connect.has_value()) {
    for (size_t i = 0; i < endpoint.queue_pairs.size(); ++i) {
      const absl::Status connected =
          endpoint.queue_pairs[i]->Connect(*endpoint.own, endpoint.address, *action.connect, i);
      if (connected.ok()) continue;
      AddTo(context_.counters.connect_failures, 1);
      Break(endpoint, ENETUNREACH, std::string(connected.message()));
      return;
    }
    Do(endpoint, endpoint.handshake.Connected());
    return;
  }
  if (action.up) {
    endpoint.up = true;
    endpoint.up_since = endpoint.last_progress = Now();
    endpoint.next_look =
        endpoint.up_since + static_cast<Nanoseconds>(random_() % static_cast<uint64_t>(LookInterval()));
    endpoint.timer = NextTick(endpoint.up_since);
    Arm(endpoint.timer);
    endpoint.notice.clear();
    AddTo(context_.counters.connects, 1);
    Push(RailEvent::Kind::kPeerUp, endpoint, 0);
  }
  if (action.reply) SendState(endpoint);
}

// Looks for queue pairs that the device has put into error. True if the endpoint was broken for one.
bool VerbsRail::LookAtQueuePairs(Endpoint& endpoint) {
  if (endpoint.phase != Endpoint::Phase::kLive) return false;
  for (const auto& queue_pair : endpoint.queue_pairs) {
    if (!queue_pair->IsInError()) continue;
    // Failures of our own requests yield completions. Without one, this end has refused a request of the peer.
    PollCompletions();
    if (endpoint.phase != Endpoint::Phase::kLive) return true;
    BreakBad(endpoint, "it wrote where no zone is open to it");
    return true;
  }
  return false;
}

void VerbsRail::BreakBad(Endpoint& endpoint, const std::string& why) {
  AddTo(context_.counters.protocol_errors, 1);
  Push(RailEvent::Kind::kBadPeer, endpoint, EPROTO);
  Break(endpoint, EPROTO, why);
}

// Puts the queue pairs into error; FinishDrain() ends what was on them.
void VerbsRail::Break(Endpoint& endpoint, int error_number, const std::string& why) {
  if (endpoint.phase != Endpoint::Phase::kLive) return;
  const bool connected = endpoint.handshake.link_state() != LinkState::kInit;
  if (!why.empty()) {
    Notice(&endpoint.notice, absl::StrCat("node '", endpoint.peer.node, "': ", why));
  }
  SendSignal(endpoint.peer, MakeSignal(endpoint, Signal::Kind::kDown));
  endpoint.phase = Endpoint::Phase::kDraining;
  endpoint.error_number = error_number;
  endpoint.handshake.Break();
  for (const auto& queue_pair : endpoint.queue_pairs) queue_pair->BeginDrain();
  if (connected && !endpoint.gone) AddTo(context_.counters.endpoint_errors, endpoint.queue_pairs.size());
  const Nanoseconds now = Now();
  endpoint.timer = now + absl::ToInt64Nanoseconds(options_.drain_time);
  endpoint.receives_until = last_receives_.WaitUntil(now);
  draining_ = true;
  Arm(endpoint.timer);
}

// True if everything that was posted has come back and everything that was received is in the completion queue, or if
// the drain is given up.
bool VerbsRail::IsDrained(const Endpoint& endpoint, Nanoseconds now) {
  if (now >= endpoint.timer) return true;
  if (!endpoint.All(&PeerQueuePair::drained)) return false;
  if (endpoint.All(&PeerQueuePair::ReceivesEnded)) return true;
  if (now < endpoint.receives_until) {
    Arm(endpoint.receives_until);
    return false;
  }
  last_receives_.OnWaitedInVain();
  return true;
}

// Called after the completion queue was found empty, so that all that arrived before the end has been reported.
void VerbsRail::FinishDrains() {
  if (!draining_) return;
  draining_ = false;
  const Nanoseconds now = Now();
  for (auto& [index, endpoint] : endpoints_) {
    if (endpoint->phase != Endpoint::Phase::kDraining) continue;
    if (TellOrders(*endpoint)) {
      draining_ = true;
    } else if (HasEnded(*endpoint, now)) {
      FinishDrain(*endpoint);
    } else {
      draining_ = true;
    }
  }
  std::erase_if(leaving_, [&](const std::unique_ptr<Endpoint>& endpoint) {
    if (endpoint->phase == Endpoint::Phase::kDraining && !HasEnded(*endpoint, now)) {
      draining_ = true;
      return false;
    }
    FinishDrain(*endpoint);
    const auto successor = endpoints_.find(endpoint->peer.peer);
    if (successor != endpoints_.end() && successor->second->phase == Endpoint::Phase::kIdle)
      Arm(successor->second->timer = 0);
    return true;
  });
}

// Ends the orders of an endpoint whose queue pairs have given everything back. True if there are events to deliver
// first: destroying queue pairs may take long (Soft-RoCE waits for packets in a shaper), and their work can move to
// other rails meanwhile.
bool VerbsRail::TellOrders(Endpoint& endpoint) {
  if (!endpoint.All(&PeerQueuePair::flushed) || std::exchange(endpoint.orders_ended, true)) return false;
  for (const auto& queue_pair : endpoint.queue_pairs) queue_pair->FailOrders(/*stopped=*/false, endpoint.error_number);
  return !context_.events.empty();
}

// True once the queue pairs are gone and no fence that they brought waits to be flushed, or if the drain is given up.
bool VerbsRail::HasEnded(Endpoint& endpoint, Nanoseconds now) {
  if (!endpoint.queue_pairs_ended) {
    if (!IsDrained(endpoint, now)) return false;
    EndQueuePairs(endpoint);
  }
  return now >= endpoint.timer || !flush_.HasFenceOf(endpoint);
}

void VerbsRail::EndQueuePairs(Endpoint& endpoint) {
  endpoint.queue_pairs_ended = true;
  for (const auto& queue_pair : endpoint.queue_pairs) queue_pairs_.erase(queue_pair->id());
  FreeWindows(endpoint);
  // A device that does not report the last receive may still be busy with one when the queue pair goes into error. Its
  // fence is in the completion queue once the queue pair is destroyed.
  for (const auto& queue_pair : endpoint.queue_pairs) queue_pair->Destroy();
  PollAllCompletions();
  for (const auto& queue_pair : endpoint.queue_pairs) queue_pairs_by_number_.erase(queue_pair->number());
}

void VerbsRail::FinishDrain(Endpoint& endpoint) {
  endpoint.orders_ended = endpoint.queue_pairs_ended = false;
  flush_.Forget(endpoint, [this](const UnflushedFence& fence) { GiveUp(fence, ETIMEDOUT); });
  DropZones(endpoint);
  for (const auto& queue_pair : endpoint.queue_pairs) queue_pair->FailOrders(endpoint.forgotten, endpoint.error_number);
  endpoint.queue_pairs.clear();
  if (endpoint.up) {
    AddTo(context_.counters.disconnects, 1);
    if (!endpoint.forgotten) Push(RailEvent::Kind::kPeerDown, endpoint, endpoint.error_number);
    downs_pushed_ = context_.events.pushed();
  }
  const Nanoseconds now = Now();
  endpoint.failures = endpoint.up && now - endpoint.up_since > kSteady ? 0 : endpoint.failures + 1;
  endpoint.up = false;
  endpoint.phase = Endpoint::Phase::kIdle;
  endpoint.timer = now + BackOff(endpoint.failures);
  Arm(endpoint.timer);
}

Signal VerbsRail::MakeSignal(const Endpoint& endpoint, Signal::Kind kind) const {
  Signal signal;
  signal.kind = kind;
  signal.state = kind == Signal::Kind::kHello ? endpoint.handshake.link_state() : LinkState::kInit;
  signal.to_boot = endpoint.peer.boot;
  signal.generation = endpoint.handshake.generation();
  if (kind == Signal::Kind::kHello) {
    signal.answers = endpoint.handshake.answers();
    signal.endpoint = endpoint.address;
  }
  return signal;
}

void VerbsRail::SendSignal(const RailPeer& to, Signal signal) {
  if (options_.signals == nullptr) return;
  signal.node = local_.node;
  signal.boot = local_.boot;
  signal.rail = local_.rail;
  signal.port = local_.port;
  options_.signals->Send(to.peer, EncodeSignal(signal));
}

void VerbsRail::SendState(Endpoint& endpoint) {
  SendSignal(endpoint.peer, MakeSignal(endpoint, Signal::Kind::kHello));
  if (endpoint.up) return;
  endpoint.timer = Now() + BackOff(endpoint.tellings++);
  Arm(endpoint.timer);
}

void VerbsRail::Refuse(PeerIndex peer, const Endpoint* endpoint, const Signal& signal, const Refusal& refusal) {
  AddTo(context_.counters.refused_connections, 1);
  Notice(&inbound_notice_, absl::StrCat("refused a peer: ", refusal.text));
  if (signal.kind == Signal::Kind::kRefused) return;  // otherwise two ends could refuse each other for ever
  Signal answer;
  answer.kind = Signal::Kind::kRefused;
  answer.reason = refusal.reason;
  answer.text = refusal.text;
  answer.to_boot = signal.boot;
  answer.generation = signal.generation;
  RailPeer to = endpoint != nullptr ? endpoint->peer : RailPeer{};
  to.peer = peer;
  SendSignal(to, std::move(answer));
}

void VerbsRail::OnSignal(PeerIndex peer, const std::string& bytes) {
  const absl::StatusOr<Signal> signal = DecodeSignal(bytes);
  const auto found = endpoints_.find(peer);
  Endpoint* const endpoint = found == endpoints_.end() ? nullptr : found->second.get();
  if (!signal.ok()) {
    AddTo(context_.counters.protocol_errors, 1);
    Notice(&inbound_notice_,
           absl::StrCat("node '", endpoint == nullptr ? "?" : endpoint->peer.node, "': ", signal.status().message()));
    return;
  }
  if (endpoint == nullptr) {
    Refuse(peer, nullptr, *signal,
           {RefusalReason::kUnknownNode,
            absl::StrCat("node '", signal->node, "' is not known to node '", local_.node, "'")});
    return;
  }
  EndpointAddress own = endpoint->address;
  own.queue_pairs.resize(context_.tuning.queue_pairs_per_peer);
  if (!endpoint->own.has_value()) own.link_layer = signal->endpoint.link_layer;  // not known yet
  const Refusal refusal = JudgeSignal(local_, own, endpoint->peer.node, endpoint->peer.boot, *signal);
  if (refusal.reason != RefusalReason::kNone) {
    Refuse(peer, endpoint, *signal, refusal);
    return;
  }
  if (signal->kind == Signal::Kind::kRefused) {
    AddTo(context_.counters.connect_failures, 1);
    Notice(&endpoint->notice, absl::StrCat("refused by node '", endpoint->peer.node, "': ", signal->text));
    return;
  }
  Do(*endpoint, endpoint->handshake.OnSignal(*signal));
}

void VerbsRail::RunTimers(Nanoseconds now) {
  next_timer_ = INT64_MAX;
  for (auto& [index, endpoint] : endpoints_) {
    if (now >= endpoint->timer) RunTimer(*endpoint, now);
    Arm(endpoint->timer);
  }
  for (const auto& endpoint : leaving_) {
    if (now >= endpoint->timer) RunTimer(*endpoint, now);
    Arm(endpoint->timer);
  }
}

void VerbsRail::RunTimer(Endpoint& endpoint, Nanoseconds now) {
  switch (endpoint.phase) {
    case Endpoint::Phase::kIdle:
      if (!endpoint.gone) Begin(endpoint);
      return;
    case Endpoint::Phase::kDraining:
      endpoint.timer = 0;  // given up: FinishDrains() ends it in this round
      draining_ = true;
      return;
    case Endpoint::Phase::kLive:
      break;
  }
  if (!endpoint.up) {
    SendState(endpoint);
    return;
  }
  endpoint.timer = NextTick(now);
  if (now >= endpoint.next_look) {
    endpoint.next_look = now + LookInterval();
    if (LookAtQueuePairs(endpoint)) return;
  }
  const bool waits = std::any_of(endpoint.queue_pairs.begin(), endpoint.queue_pairs.end(),
                                 [](const auto& queue_pair) { return queue_pair->outstanding() > 0; }) ||
                     flush_.HasFenceOf(endpoint);
  if (!waits) endpoint.last_progress = now;
  if (now - endpoint.last_progress > absl::ToInt64Nanoseconds(options_.progress_time)) {
    Break(endpoint, ETIMEDOUT,
          absl::StrCat("nothing was acknowledged for ", absl::FormatDuration(options_.progress_time)));
    return;
  }
  WakeStillQueuePairs(endpoint);
}

void VerbsRail::WakeStillQueuePairs(Endpoint& endpoint) {
  for (const auto& queue_pair : endpoint.queue_pairs) {
    bool woken = false;
    if (const int error = queue_pair->WakeIfStill(&woken); error != 0) {
      Break(endpoint, error, std::string(CallFailed("posting", "ibv_post_send", error).message()));
      return;
    }
    if (!woken) continue;
    Notice(&endpoint.notice, absl::StrCat("node '", endpoint.peer.node, "': nothing was acknowledged for ",
                                          absl::FormatDuration(absl::Nanoseconds(kLookInterval)),
                                          "; the rail posted an empty write, because a queue pair may have stalled"));
  }
}

}  // namespace railsd::verbs
