// The begin and end of connections: HELLOs, their checks, and the choice of the connection that carries the link.
#include <spdlog/logger.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "agent/base/steady_now.h"
#include "daemon/config/units.h"
#include "daemon/lifecycle/logging.h"
#include "daemon/peer/peer_hub.h"
#include "daemon/tls/certificate.h"
#include "rails/peer/v1/peer.pb.h"

namespace railsd {
namespace {

namespace pb = rails::peer::v1;

// Most bytes of a reason that is sent to a peer, or taken from its frame.
constexpr size_t kMaxReason = 512;

// True if `address`, of a rail in a peer's HELLO, is the configured address `wanted`.
bool IsWantedRail(const std::string& wanted, const std::string& address) {
  if (IsVerbsAddress(wanted)) return wanted == address;
  const auto want = ParseHostPort(wanted, true), have = ParseHostPort(address, false);
  return want.ok() && have.ok() && want->host == have->host && (want->port == 0 || want->port == have->port);
}

// The other end's address. Without the port if the other end dialled, because each dial comes from another port.
std::string PlaceOf(const Connection& connection) {
  const std::string& address = connection.address();
  return connection.dialled_here() ? address : address.substr(0, address.rfind(':'));
}

}  // namespace

void PeerHub::SayHello(const ConnectionPtr& connection, Visit& visit, const HubPeer* peer, absl::string_view then) {
  HelloFacts facts;
  facts.hello = own_hello_;
  facts.hello.node = options_.node;
  facts.hello.boot = options_.boot;
  facts.link_generation = peer == nullptr ? 1 : peer->link.own_generation();
  if (peer != nullptr && peer->link.known()) {
    facts.expected_boot = peer->link.hello().boot;
    facts.expected_generation = peer->link.peer_generation();
    facts.taken = peer->inbox.taken();
  }
  facts.count = ++hellos_;
  facts.max_message_bytes = options_.max_message_bytes;
  facts.max_world_size = options_.max_world_size;
  facts.software = options_.version;
  pb::Hello hello;
  HelloTo(facts, &hello);
  visit.generation = facts.link_generation;
  visit.own_hello = facts.count;
  connection->Write(std::make_shared<const std::string>(
      absl::StrCat(FrameOf(FrameKind::kHello, 0, hello.SerializeAsString()), then)));
}

void PeerHub::EndConnection(const ConnectionPtr& connection, FrameKind kind, absl::string_view why) {
  connection->Write(std::make_shared<const std::string>(FrameOf(kind, 0, why.substr(0, kMaxReason))));
  connection->Close();
}

void PeerHub::OnOpen(const ConnectionPtr& connection) {
  absl::MutexLock lock(&mutex_);
  if (stopping_) return connection->Close();
  Visit& visit = visits_[connection];
  if (visit.target == nullptr) return;  // the dialler sends the first HELLO
  SayHello(connection, visit, FindPeer(visit.target->name()));
}

void PeerHub::OnFrame(const ConnectionPtr& connection, const Frame& frame) {
  const bool numbered =
      frame.kind == FrameKind::kMessage || frame.kind == FrameKind::kPart || frame.kind == FrameKind::kLastPart;
  if (numbered) return OnNumbered(connection, frame);
  absl::MutexLock lock(&mutex_);
  const auto found = visits_.find(connection);
  if (stopping_ || found == visits_.end()) return;
  Visit& visit = found->second;
  if (frame.kind == FrameKind::kHello) {
    if (std::exchange(visit.greeted, true)) return Break(connection, "a second hello");
    return OnHello(connection, visit, frame.body);
  }
  HubPeer* const peer = PeerOf(connection);
  if (frame.kind == FrameKind::kTaken || frame.kind == FrameKind::kKey) {
    if (peer == nullptr) {
      if (!visit.greeted) Break(connection, "the first frame is no hello");
      return;
    }
    if (frame.kind == FrameKind::kKey) return OnKey(connection, *peer, frame.body);
    if (!Heard(connection, *peer)) return;
    if (!peer->outbox.Acknowledge(frame.number)) {
      return Break(connection, absl::StrCat("acknowledges frame ", frame.number, ", which was never sent"));
    }
    TellTaken(*peer);
    return Pump(*peer);
  }
  const std::string why(absl::CEscape(frame.body.substr(0, kMaxReason)));
  if (visit.target != nullptr && !visit.greeted) visit.target->refusal = why;
  if (frame.kind == FrameKind::kStopping && peer != nullptr) {
    Lose(*peer, absl::StrCat("node ", peer->node, " is stopping"), /*ended=*/true);
  }
  connection->Close();
}

absl::Status PeerHub::CheckIdentity(const PeerHello& hello, const std::vector<std::string>& certificate_names) {
  if (options_.links.tls == nullptr) return absl::OkStatus();
  if (std::find(certificate_names.begin(), certificate_names.end(), hello.node) != certificate_names.end()) {
    return absl::OkStatus();
  }
  ++counters_.identity;
  return absl::UnauthenticatedError(absl::StrCat("says that it is node ", hello.node, ", but its certificate is of ",
                                                 PrintableNames(certificate_names)));
}

absl::Status PeerHub::CheckPeer(const PeerHello& hello, const std::string& expected_node) {
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
  if (absl::Status boot = CheckBoot(hello); !boot.ok()) return boot;
  const HubPeer* const peer = FindPeer(hello.node);
  if (peer == nullptr && options_.dns.name.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("node ", hello.node, " is no peer of node ", options_.node, "; add it to peers.static there"));
  }
  if (peer == nullptr || !peer->config) return absl::OkStatus();
  const std::vector<std::string>& wanted = peer->config->rails;
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

absl::Status PeerHub::CheckBoot(const PeerHello& hello) {
  if (hello.boot == options_.boot) {
    return absl::FailedPreconditionError(
        absl::StrCat("node ", hello.node, " claims the boot id of node ", options_.node));
  }
  for (const auto& [node, peer] : peers_) {
    if (node == hello.node || peer->link.last_boot() != hello.boot) continue;
    // Boot ids are random, so one node has copied the other's. The node that used it first is believed.
    return absl::FailedPreconditionError(absl::StrCat("node ", hello.node, " says boot id ",
                                                      absl::Hex(hello.boot.value(), absl::kZeroPad16), ", which node ",
                                                      node, " has said before: two daemons have it; restart both"));
  }
  return absl::OkStatus();
}

absl::Status PeerHub::CheckName(const PeerHello& hello, const Connection& connection) {
  const HubPeer* const peer = FindPeer(hello.node);
  const bool speaks = peer != nullptr && peer->link.up() && peer->connection != nullptr &&
                      !peer->link.Troubled(SteadyNow() - 2 * options_.heartbeat);
  if (!speaks || peer->link.hello().boot == hello.boot) return absl::OkStatus();
  const auto boot = [](BootId id) { return absl::StrCat(absl::Hex(id.value(), absl::kZeroPad16)); };
  return absl::FailedPreconditionError(absl::StrCat(
      "two daemons call themselves node ", hello.node, ": one at ", PlaceOf(connection), " (boot id ", boot(hello.boot),
      "), and one at ", PlaceOf(*peer->connection), " (boot id ", boot(peer->link.hello().boot),
      "), whose link with node ", options_.node, " is up; stop one of them, or give it another name"));
}

void PeerHub::OnHello(const ConnectionPtr& connection, Visit& visit, absl::string_view body) {
  pb::Hello hello;
  if (!hello.ParseFromArray(body.data(), static_cast<int>(body.size()))) return Break(connection, "a broken hello");
  Target* const target = visit.target;
  const absl::StatusOr<HelloFacts> facts = HelloFrom(hello, options_.node, options_.max_world_size);
  // Checked first: nothing in the HELLO counts before the identity is proven.
  absl::Status status =
      facts.ok() ? CheckIdentity(facts->hello, connection->certificate_names()) : absl::Status(facts.status());
  if (!status.ok()) return Refuse(connection, visit, hello.node(), status);
  // This node dialled itself, because DNS lists every node.
  if (facts->hello.boot == options_.boot && facts->hello.node == options_.node) {
    if (target == nullptr) {
      SayHello(connection, visit, nullptr);
    } else if (!target->expected_node.empty() && target->expected_node != options_.node) {
      return Refuse(connection, visit, target->expected_node,
                    absl::FailedPreconditionError(absl::StrCat(
                        "peers.static has this node's own address under the name ", target->expected_node,
                        ", and this node calls itself ", options_.node, ": correct `node` here, or the list")));
    } else {
      options_.log->info("own_address_found address={}", target->address);
      target->self = true;
      ++counters_.own_addresses;
    }
    return EndConnection(connection, FrameKind::kEnd, "this is the node itself");
  }
  status = CheckPeer(facts->hello, target == nullptr ? "" : target->expected_node);
  if (status.ok()) status = CheckName(facts->hello, *connection);
  if (!status.ok()) return Refuse(connection, visit, hello.node(), status);
  if (target != nullptr) {
    target->node = facts->hello.node;
    target->reached_at = connection->address();
    // This node ended the link after it sent its HELLO, or did not know the peer's name when it sent it.
    if (FindOrAddPeer(target->node)->link.own_generation() != visit.generation) {
      return EndConnection(connection, FrameKind::kEnd, "this link is over");
    }
  }
  Greet(connection, visit, *facts);
}

void PeerHub::Greet(const ConnectionPtr& connection, Visit& visit, const HelloFacts& facts) {
  HubPeer& peer = *FindOrAddPeer(facts.hello.node);
  std::optional<std::string> down;
  const bool restarted = peer.link.known() && peer.link.hello().boot != facts.hello.boot;
  const LinkState::Effect effect = peer.link.OnHello(facts.hello, facts.link_generation, &down);
  const bool dialled = visit.target != nullptr;
  if (effect == LinkState::Effect::kStale) {
    // The peer ended this link after it sent its HELLO; or its DNS dropped the address for a while, and it no longer
    // knows which node is there. The answering HELLO tells it, so that it dials again with the right generation.
    options_.log->info("peer_dials_link_that_is_over node={} generation={}", facts.hello.node, facts.link_generation);
    if (!dialled) SayHello(connection, visit, &peer);
    return EndConnection(connection, FrameKind::kEnd, "this link is over; dial anew");
  }
  if (effect == LinkState::Effect::kNew) {
    ResetLink(peer, "the link is over");
    // Forgets addresses of the former life: the daemon may have moved, and IsDead() must not probe its old address.
    for (const auto& target : targets_) {
      const bool of_peer = target->node == peer.node || target->expected_node == peer.node;
      if (!of_peer || target.get() == visit.target) continue;
      target->reached_at.clear();
      target->next_dial = absl::InfinitePast();  // IsDead() looks for the address at once
    }
    peer.looked_at.clear();
    peer.probe.Reset();  // an attempt under way leads to an address of before
  }
  if (down) ReportDown(peer, *down, restarted);
  if (dialled && peer.link.own_generation() != visit.generation) {
    return EndConnection(connection, FrameKind::kEnd, "this link is over");
  }
  const ConnectionOrigin origin = {dialled, dialled ? visit.own_hello : hellos_ + 1, facts.count};
  if (peer.connection != nullptr && !Replaces(origin, peer.origin, options_.node < peer.node)) {
    return EndConnection(connection, FrameKind::kEnd, "another connection carries this link");
  }
  if (peer.connection != nullptr) {
    EndConnection(peer.connection, FrameKind::kEnd, "another connection carries this link");
    counters_.disconnects += peer.confirmed;
  }
  if (!dialled) SayHello(connection, visit, &peer, KeyFrame(peer));
  visit.peer = &peer;
  peer.origin = origin;
  if (dialled) visit.target->back_off = kFirstRedial;
  CarryLink(peer, connection, facts);
}

void PeerHub::CarryLink(HubPeer& peer, const ConnectionPtr& connection, const HelloFacts& facts) {
  peer.connection = connection;
  peer.confirmed = false;
  peer.max_message_bytes = facts.max_message_bytes;
  peer.software = facts.software;
  peer.last_write = SteadyNow();
  peer.link.OnConnected(SteadyNow());
  const bool same = facts.expected_boot == options_.boot && facts.expected_generation == peer.link.own_generation();
  if (!peer.outbox.Rewind(same ? facts.taken : 0)) {
    return Break(connection, absl::StrCat("says it has taken frame ", facts.taken, ", which was never sent"));
  }
  TellTaken(peer);
  if (connection->dialled_here()) {
    peer.acknowledged_in = peer.inbox.taken();
    const std::string accepted = absl::StrCat(KeyFrame(peer), FrameOf(FrameKind::kTaken, peer.acknowledged_in));
    connection->Write(std::make_shared<const std::string>(accepted));
    if (options_.node < peer.node) Confirm(peer);
  }
  Pump(peer);
}

std::string PeerHub::KeyFrame(HubPeer& peer) {
  if (peer.node < options_.node) return "";
  if (!peer.key) peer.key = DrawDataKey();
  return FrameOf(FrameKind::kKey, 0,
                 absl::string_view(reinterpret_cast<const char*>(peer.key->data()), peer.key->size()));
}

void PeerHub::OnKey(const ConnectionPtr& connection, HubPeer& peer, absl::string_view told) {
  DataKey key;
  if (options_.node < peer.node) return Break(connection, "sends a key, but this node draws the key");
  if (told.size() != key.size()) return Break(connection, absl::StrCat("sends a key of ", told.size(), " bytes"));
  std::memcpy(key.data(), told.data(), key.size());
  if (peer.key && !SameKey(*peer.key, key)) return Break(connection, "sends another key than before for this link");
  peer.key = key;
  peer.link.OnHeard(SteadyNow());
  Confirm(peer);
}

bool PeerHub::Heard(const ConnectionPtr& connection, HubPeer& peer) {
  if (!peer.confirmed && peer.node < options_.node) {
    Break(connection, "no key after the hello");
    return false;
  }
  peer.link.OnHeard(SteadyNow());
  Confirm(peer);
  return true;
}

void PeerHub::Confirm(HubPeer& peer) {
  if (std::exchange(peer.confirmed, true)) return;
  peer.dial_failure.clear();
  peer.connection->SetGreeted();
  ++counters_.connects;
  ++peer.connections;
  if (!peer.link.TakeUp()) return;
  options_.log->debug("control_link_up node={} boot={:016x}", peer.node, peer.link.hello().boot.value());
  PeerHello hello = peer.link.hello();
  hello.data_key = *peer.key;
  agent_->OnPeerUp(std::move(hello));
}

void PeerHub::Refuse(const ConnectionPtr& connection, Visit& visit, const std::string& node,
                     const absl::Status& status) {
  ++counters_.refused;
  EndFor(connection, visit, "peer_refused", node.substr(0, 64), std::string(status.message()));
}

void PeerHub::EndFor(const ConnectionPtr& connection, Visit& visit, absl::string_view event, absl::string_view node,
                     const std::string& why) {
  LogFailure(spdlog::level::err, event, node, PlaceOf(*connection), why);
  visit.logged = true;
  if (visit.target != nullptr) {
    visit.target->refusal = why;
    visit.target->back_off = kMaxRedial;
  }
  EndConnection(connection, FrameKind::kEnd, why);
}

void PeerHub::Break(const ConnectionPtr& connection, const std::string& reason) {
  ++counters_.protocol_errors;
  HubPeer* const peer = PeerOf(connection);
  const std::string text = absl::StrCat(
      peer == nullptr ? absl::StrCat("an unknown peer at ", PlaceOf(*connection)) : absl::StrCat("node ", peer->node),
      " to node ", options_.node, ": ", reason);
  EndFor(connection, visits_[connection], "peer_broke_the_protocol", peer == nullptr ? "?" : peer->node, text);
  if (peer != nullptr) Lose(*peer, text);
}

void PeerHub::OnEnd(const ConnectionPtr& connection, const absl::Status& why) {
  absl::MutexLock lock(&mutex_);
  if (stopping_) return;
  if (absl::IsInvalidArgument(why)) Break(connection, std::string(why.message()));
  // The dialler has another version, or not the right certificate. Only this line tells of it.
  if (!connection->dialled_here() && (absl::IsFailedPrecondition(why) || absl::IsUnauthenticated(why))) {
    counters_.refused += absl::IsFailedPrecondition(why);
    LogFailure(spdlog::level::err, "peer_refused", "?", PlaceOf(*connection), why.message());
  }
  const auto found = visits_.find(connection);
  if (found == visits_.end()) return;
  const Visit visit = found->second;
  HubPeer* peer = PeerOf(connection);
  visits_.erase(found);
  if (peer != nullptr) {
    peer->connection = nullptr;
    peer->link.OnDisconnected();
    counters_.disconnects += peer->confirmed;
    options_.log->info("control_connection_ended node={} address={} status={}", peer->node, connection->address(),
                       LogValue(std::string(why.message())));
  }
  Target* const target = visit.target;
  if (target == nullptr) return;
  if (target->connection != connection) return;  // a later connection is being opened, or has replaced this one
  target->connection = nullptr;
  for (const auto& [other, visit_of_other] : visits_) {
    if (visit_of_other.target == target) target->connection = other;  // it was to replace this one
  }
  OnDialFailed(*target, visit, target->refusal.empty() ? why : absl::FailedPreconditionError(target->refusal));
}

void PeerHub::OnDialFailed(Target& target, const Visit& visit, const absl::Status& why) {
  const bool lasting = target.back_off >= kMaxRedial / 2;
  target.next_dial = SteadyNow() + target.back_off;
  target.back_off = std::min(target.back_off * 2, kMaxRedial);
  const std::string& name = target.name();
  HubPeer* const peer = FindPeer(name);
  const bool redial = peer != nullptr && visit.redial_after == peer->connections;
  const bool reached = visit.peer != nullptr || target.self || (peer != nullptr && peer->connection != nullptr);
  if (redial || (lasting && !reached && !visit.logged && !absl::IsCancelled(why))) {
    const char* const advice = absl::IsFailedPrecondition(why) || absl::IsUnauthenticated(why)
                                   ? ""
                                   : "; does railsd run there, and is this the address of its control.listen?";
    LogFailure(spdlog::level::warn, "peer_not_reached", name.empty() ? "?" : name, target.address,
               absl::StrCat(why.message(), advice));
  }
  if (peer == nullptr) return;
  const std::string text = absl::StrCat(target.address, ": ", why.message());
  if (!peer->link.up() && peer->connection == nullptr) peer->why = text;
  const bool outage = peer->link.up() && peer->connection == nullptr && visit.peer == nullptr;
  if (outage || redial) peer->dial_failure = text;
}

void PeerHub::LogFailure(spdlog::level::level_enum level, absl::string_view event, absl::string_view node,
                         absl::string_view address, absl::string_view reason) {
  const uint64_t times = failures_.Note(absl::StrJoin({event, node, address, reason}, " "), SteadyNow());
  if (times == 0) return;
  options_.log->log(level, absl::StrCat(event, " node=", LogValue(node), " address=", address, " times=", times,
                                        " reason=", LogValue(reason)));
}

HubPeer* PeerHub::PeerOf(const ConnectionPtr& connection) {
  const auto it = visits_.find(connection);
  if (it == visits_.end() || it->second.peer == nullptr || it->second.peer->connection != connection) return nullptr;
  return it->second.peer;
}

}  // namespace railsd
