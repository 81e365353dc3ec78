#include <spdlog/logger.h>

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "daemon/config/units.h"
#include "daemon/lifecycle/logging.h"
#include "daemon/peer/hub.h"

namespace railsd {
namespace {

// Is this rail of a peer the one that the configuration names?
bool IsWantedRail(const std::string& wanted, const std::string& address) {
  if (IsVerbsAddress(wanted)) return wanted == address;
  const auto want = ParseHostPort(wanted, true), have = ParseHostPort(address, false);
  return want.ok() && have.ok() && want->host == have->host && (want->port == 0 || want->port == have->port);
}

// What a certificate says goes into logs and to the peer: bounded.
std::string NamesText(const std::vector<std::string>& names) {
  if (names.empty()) return "no node (it has no DNS names)";
  std::string text;
  for (size_t i = 0; i < std::min<size_t>(names.size(), 4); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : ", ", absl::CEscape(names[i].substr(0, 253)));
  }
  return absl::StrCat(text, names.size() > 4 ? ", ..." : "");
}

}  // namespace

void Hub::OnResponse(const OutPtr& stream, const pb::ExchangeResponse& response) {
  absl::MutexLock lock(&mutex_);
  Target* const target = TargetOf(stream);
  if (target == nullptr || stopping_) return;
  if (!std::exchange(target->answered, true)) {
    return response.has_hello() ? OnAnswer(*target, response.hello()) : Break(*target, "the first answer is no hello");
  }
  if (target->peer == nullptr || target->peer->out != stream) return;  // given up: what it still carries is of no link
  HubPeer& peer = *target->peer;
  if (response.response_case() == pb::ExchangeResponse::kAcknowledged) {
    if (!peer.outbox.Acknowledge(response.acknowledged())) {
      return Break(*target, absl::StrCat("acknowledges message ", response.acknowledged(), ", which was never sent"));
    }
    peer.lanes.waits_since = absl::Now();
  } else if (!response.has_heartbeat()) {
    // Whoever answers as somebody else now was checked under another name, and its link is of that.
    return Break(*target, "a second hello, or an empty answer");
  }
  peer.link.OnHeard(Direction::kOutbound, absl::Now());
}

void Hub::OnWritten(const OutPtr& stream) {
  absl::MutexLock lock(&mutex_);
  Target* const target = TargetOf(stream);
  if (target != nullptr && target->peer != nullptr && target->peer->out == stream) Pump(*target->peer);
}

void Hub::OnEnded(const OutPtr& stream, absl::Status status, bool stopping) {
  absl::MutexLock lock(&mutex_);
  --streams_;
  Target* const target = TargetOf(stream);
  if (target == nullptr) return;
  outbound_.erase(stream);
  target->stream = nullptr;
  target->peer = nullptr;
  target->next_dial = absl::Now() + target->back_off;
  target->back_off = std::min(target->back_off * 2, kMaxRedial);
  const std::string& node = target->expected_node.empty() ? target->node : target->expected_node;
  const auto it = peers_.find(node);
  if (it == peers_.end()) return;
  HubPeer& peer = *it->second;
  if (!peer.link.up())
    peer.why = absl::StrCat(target->address, ": ", target->refusal.empty() ? status.ToString() : target->refusal);
  if (peer.out != stream) return;
  peer.out = nullptr;
  CloseLane(peer, Direction::kOutbound);
  peer.link.OnStreamEnd(Direction::kOutbound);
  ++counters_.disconnects;
  options_.log->info("control_stream_ended node={} address={} status={}", node, target->address,
                     LogValue(status.ToString()));
  if (stopping) Lose(peer, absl::StrCat("node ", node, " is stopping"), /*ended=*/true);
}

bool Hub::OnAccepted(const InPtr& stream) {
  absl::MutexLock lock(&mutex_);
  if (stopping_) return false;
  // A peer needs one.
  if (inbound_.size() >= options_.server.gate.max_connections) {
    options_.server.gate.refused->Count(Limit::kControlConnections);
    return false;
  }
  ++streams_;
  inbound_.emplace(stream, Origin{absl::Now()});
  return true;
}

void Hub::OnRequest(const InPtr& stream, const pb::ExchangeRequest& request) {
  // Converted before the lock is taken: an OFFER may be large.
  absl::StatusOr<ControlMessage> message = absl::UnknownError("");
  if (request.has_message()) message = MessageFrom(request.message(), options_.max_world_size);
  absl::MutexLock lock(&mutex_);
  if (stopping_) return;
  const auto it = inbound_.find(stream);
  if (it == inbound_.end()) return;
  if (!it->second.greeted) {
    it->second.greeted = true;
    if (!request.has_hello()) return Break(nullptr, stream, "the first message is no hello");
    return OnGreeting(stream, request.hello());
  }
  HubPeer* const peer = PeerOf(stream);
  if (peer == nullptr) return;  // replaced or ended: what it still carries is of no link
  peer->link.OnHeard(Direction::kInbound, absl::Now());
  if (request.has_message()) return OnNumbered(*peer, request.message().number(), std::move(message));
  if (!request.has_heartbeat()) return Break(peer, stream, "a second hello, or an empty message");
  stream->ReadNext();
}

void Hub::OnWritten(const InPtr& stream) {
  absl::MutexLock lock(&mutex_);
  HubPeer* const peer = PeerOf(stream);
  if (peer != nullptr) AcknowledgeIfMany(*peer);
}

void Hub::OnEnded(const InPtr& stream) {
  absl::MutexLock lock(&mutex_);
  --streams_;
  HubPeer* const peer = PeerOf(stream);
  inbound_.erase(stream);
  if (peer == nullptr) return;
  peer->in = nullptr;
  CloseLane(*peer, Direction::kInbound);  // what came early is not acknowledged: it comes again
  peer->link.OnStreamEnd(Direction::kInbound);
}

absl::Status Hub::CheckIdentity(const PeerHello& hello, const std::vector<std::string>& certificate_names) {
  if (options_.tls == nullptr) return absl::OkStatus();
  if (std::find(certificate_names.begin(), certificate_names.end(), hello.node) != certificate_names.end()) {
    return absl::OkStatus();
  }
  ++counters_.identity;
  return absl::UnauthenticatedError(
      absl::StrCat("says that it is node ", hello.node, ", but its certificate is of ", NamesText(certificate_names)));
}

absl::Status Hub::CheckPeer(const PeerHello& hello, const std::string& expected_node) {
  if (hello.node == options_.node) {
    return absl::FailedPreconditionError(absl::StrCat("node name ", hello.node, ": two daemons have it"));
  }
  if (!expected_node.empty() && hello.node != expected_node) {
    return absl::FailedPreconditionError(
        absl::StrCat("peers.static: the address of ", expected_node, " is answered by node ", hello.node));
  }
  for (size_t i = 0; i < std::min(hello.rails.size(), own_hello_.rails.size()); ++i) {
    const std::string &theirs = hello.rails[i].address, &ours = own_hello_.rails[i].address;
    if (IsVerbsAddress(theirs) == IsVerbsAddress(ours)) continue;
    return absl::FailedPreconditionError(absl::StrCat("rail ", i, " is ", theirs, " on node ", hello.node, " and ",
                                                      ours, " on node ", options_.node,
                                                      "; a rail has one transport on all nodes"));
  }
  if (const absl::Status boot = CheckBoot(hello); !boot.ok()) return boot;
  const auto it = peers_.find(hello.node);
  if (it == peers_.end() && options_.dns.name.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("node ", hello.node, " is no peer of node ", options_.node, "; add it to peers.static there"));
  }
  if (it == peers_.end() || !it->second->config) return absl::OkStatus();
  const std::vector<std::string>& wanted = it->second->config->rails;
  if (!wanted.empty() && wanted.size() != hello.rails.size()) {
    return absl::FailedPreconditionError(absl::StrCat("node ", hello.node, " has ", hello.rails.size(),
                                                      " rails, but node ", options_.node, " expects ", wanted.size()));
  }
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (!IsWantedRail(wanted[i], hello.rails[i].address)) {
      return absl::FailedPreconditionError(absl::StrCat("node ", hello.node, ": rail ", i, " is ",
                                                        hello.rails[i].address, ", but node ", options_.node,
                                                        " expects ", wanted[i]));
    }
  }
  return absl::OkStatus();
}

absl::Status Hub::CheckBoot(const PeerHello& hello) {
  for (const auto& [node, peer] : peers_) {
    if (node == hello.node || peer->link.last_boot() != hello.boot) continue;
    // Boot ids are random, so one of them has heard it of the other. Who said it first is believed.
    return absl::FailedPreconditionError(absl::StrCat("node ", hello.node, " says boot id ",
                                                      absl::Hex(hello.boot.value(), absl::kZeroPad16), ", which node ",
                                                      node, " has said before: one of them lies; restart both"));
  }
  return absl::OkStatus();
}

HubPeer* Hub::Greet(Direction direction, const HelloFacts& facts) {
  HubPeer* const peer = FindOrAddPeer(facts.hello.node);
  std::optional<std::string> down;
  const bool restarted = peer->link.known() && peer->link.hello().boot != facts.hello.boot;
  const LinkState::Effect effect =
      peer->link.OnHello(direction, facts.hello, facts.link_generation, absl::Now(), &down);
  if (effect == LinkState::Effect::kStale) return nullptr;
  if (effect == LinkState::Effect::kNew) CloseStreams(*peer, "the link is over");
  if (down) ReportDown(*peer, *down, restarted);
  peer->max_message_bytes = facts.max_message_bytes;
  peer->software = facts.software;
  return peer;
}

void Hub::OnAnswer(Target& target, const pb::HelloAnswer& answer) {
  const absl::StatusOr<HelloFacts> facts = HelloFrom(answer.hello(), options_.node, options_.max_world_size);
  // First of all: a stranger's word about who he is, or whose address this is, counts for nothing.
  if (facts.ok()) {
    const absl::Status identity = CheckIdentity(facts->hello, target.stream->CertificateNames());
    if (!identity.ok()) return RefuseTarget(target, identity);
  }
  if (facts.ok() && facts->hello.boot == options_.boot) {
    options_.log->info("own_address_found address={}", target.address);
    target.self = true;
    ++counters_.own_addresses;
    return target.stream->Cancel();
  }
  const absl::Status status = facts.ok() ? CheckPeer(facts->hello, target.expected_node) : facts.status();
  if (!status.ok()) return RefuseTarget(target, status);
  target.node = facts->hello.node;
  if (const auto it = peers_.find(target.node); it != peers_.end() && it->second->out != nullptr) {
    return target.stream->Cancel();  // reached over another address already
  }
  // The link was given up from here while the HELLO was under way: the peer has not been told yet.
  if (FindOrAddPeer(target.node)->link.own_generation() != target.generation) return target.stream->Cancel();
  HubPeer* const peer = Greet(Direction::kOutbound, *facts);
  if (peer == nullptr) return target.stream->Cancel();
  target.peer = peer;
  peer->out = target.stream;
  peer->last_out = absl::Now();
  target.back_off = kFirstRedial;
  target.reached_at = target.stream->RemoteAddress();
  ++counters_.connects;
  if (!peer->outbox.Rewind(answer.acknowledged())) {
    return Break(target, absl::StrCat("says it has taken message ", answer.acknowledged(),
                                      ", which contradicts what it said before"));
  }
  TryUp(*peer);
  AgreeOnLane(*peer, target, *facts);
  Pump(*peer);
}

void Hub::RefuseTarget(Target& target, const absl::Status& status) {
  ++counters_.refused;
  options_.log->error("peer_refused address={} reason={}", target.address, LogValue(std::string(status.message())));
  target.refusal = std::string(status.message());
  target.back_off = kMaxRedial;
  target.stream->Cancel();
}

void Hub::OnGreeting(const InPtr& stream, const pb::Hello& hello) {
  const absl::StatusOr<HelloFacts> facts = HelloFrom(hello, options_.node, options_.max_world_size);
  if (facts.ok()) {
    const absl::Status identity = CheckIdentity(facts->hello, stream->CertificateNames());
    if (!identity.ok()) return RefuseGreeting(stream, hello.node(), identity);
  }
  auto answer = std::make_shared<pb::ExchangeResponse>();
  answer->mutable_hello()->set_version(kPeerProtocolVersion);
  if (facts.ok() && facts->hello.boot == options_.boot) {
    // This node dialled itself (DNS names every node): it learns so from the boot id.
    FillHello(nullptr, answer->mutable_hello()->mutable_hello());
    stream->Write(std::move(answer));
    return stream->Finish(absl::FailedPreconditionError("this is the node itself"));
  }
  const absl::Status status = facts.ok() ? CheckPeer(facts->hello, "") : facts.status();
  HubPeer* const peer = status.ok() ? Greet(Direction::kInbound, *facts) : nullptr;
  if (peer == nullptr && status.ok()) {
    // It has given this link up while its HELLO was under way; or DNS had lost its target, and it dials an address of
    // which it does not know any more whose it is. The answer tells, so that it dials anew with the right generation.
    options_.log->info("peer_dials_link_that_is_over node={} generation={}", facts->hello.node, facts->link_generation);
    FillHello(FindOrAddPeer(facts->hello.node), answer->mutable_hello()->mutable_hello());
    stream->Write(std::move(answer));
    return stream->Finish(absl::FailedPreconditionError("this link is over; dial anew"));
  }
  if (peer == nullptr) return RefuseGreeting(stream, hello.node(), status);
  if (peer->in != nullptr) peer->in->Finish(absl::UnavailableError("replaced by a newer stream"));
  peer->in = stream;
  inbound_[stream].peer = peer;
  CloseLane(*peer, Direction::kInbound);
  peer->last_in = absl::Now();
  peer->acknowledged_in = peer->inbox.taken();
  answer->mutable_hello()->set_acknowledged(peer->inbox.taken());
  FillHello(peer, answer->mutable_hello()->mutable_hello(), ExpectLane(*peer, *facts));
  stream->Write(std::move(answer));
  TryUp(*peer);
  stream->ReadNext();
  Hasten(*peer);
}

void Hub::RefuseGreeting(const InPtr& stream, const std::string& node, const absl::Status& status) {
  ++counters_.refused;
  options_.log->error("peer_refused node={} reason={}", LogValue(node.substr(0, 64)),
                      LogValue(std::string(status.message())));
  stream->Finish(status);
}

void Hub::TryUp(HubPeer& peer) {
  if (!peer.link.TakeUp()) return;
  options_.log->debug("control_link_up node={} boot={:016x}", peer.node, peer.link.hello().boot.value());
  agent_->OnPeerUp(peer.link.hello());
  DeliverEarly(peer);
}

void Hub::Break(HubPeer* peer, const InPtr& stream, const std::string& reason) {
  ++counters_.protocol_errors;
  const std::string from = peer == nullptr ? "a stranger" : absl::StrCat("node ", peer->node);
  const std::string text = absl::StrCat(from, " to node ", options_.node, ": ", reason);
  options_.log->error("peer_broke_the_protocol node={} reason={}", peer == nullptr ? "?" : peer->node, LogValue(text));
  stream->Finish(absl::InvalidArgumentError(text));
  if (peer != nullptr) Lose(*peer, text);
}

void Hub::Break(Target& target, const std::string& reason) {
  ++counters_.protocol_errors;
  HubPeer* const peer = target.peer;
  const std::string from = peer == nullptr ? absl::StrCat("whoever is at ", target.address) : "node " + peer->node;
  target.refusal = absl::StrCat(from, " to node ", options_.node, ": ", reason);
  options_.log->error("peer_broke_the_protocol node={} reason={}", peer == nullptr ? "?" : peer->node,
                      LogValue(target.refusal));
  target.back_off = kMaxRedial;
  target.stream->Cancel();
  if (peer != nullptr) Lose(*peer, target.refusal);
}

}  // namespace railsd
