// A hub whose connections the test controls. No thread runs; the hub acts only in the test's calls.
#ifndef RAILSD_TESTS_UNIT_DAEMON_PEER_HUB_BY_HAND_H_
#define RAILSD_TESTS_UNIT_DAEMON_PEER_HUB_BY_HAND_H_

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "agent/base/steady_now.h"
#include "daemon/lifecycle/logging.h"
#include "daemon/peer/peer_hub.h"
#include "rails/peer/v1/peer.pb.h"

namespace railsd {

namespace pb = rails::peer::v1;

inline void Must(bool ok, absl::string_view what) {
  if (ok) return;
  std::fprintf(stderr, "%.*s\n", static_cast<int>(what.size()), what.data());
  std::abort();
}

struct HandFrame {
  FrameKind kind;
  uint64_t number;
  std::string body;
};

// Gives `bytes` to a reader, and the frames to `take` while it returns true.
template <typename Take>
absl::Status FeedReader(FrameReader* reader, absl::string_view bytes, Take take) {
  while (!bytes.empty()) {
    size_t room = 0;
    char* const to = reader->Space(&room);
    Must(room > 0, "a reader without space");
    room = std::min(room, bytes.size());
    std::memcpy(to, bytes.data(), room);
    reader->Arrived(room);
    bytes.remove_prefix(room);
    while (true) {
      const absl::StatusOr<std::optional<Frame>> frame = reader->Next();
      if (!frame.ok()) return frame.status();
      if (!*frame) break;
      if (!take(**frame)) return absl::OkStatus();
    }
  }
  return absl::OkStatus();
}

// One end of a connection.
class HandConnection final : public Connection {
 public:
  HandConnection(std::string address, bool dialled) : address_(std::move(address)), dialled_(dialled) {}
  bool Write(std::shared_ptr<const std::string> frame) override {
    if (closed) return true;
    refused = !open || out.size() >= room;
    if (refused) return false;
    absl::StrAppend(&out, std::exchange(prefaced_, true) ? "" : kLinkPreface, *frame);
    return true;
  }
  void Close() override { closed = true; }
  void SetGreeted() override { greeted = true; }
  bool dialled_here() const override { return dialled_; }
  const std::string& address() const override { return address_; }  // no port, so the hub probes nothing
  std::vector<std::string> certificate_names() const override { return names; }
  // The frames that the hub has written since the last call.
  std::vector<HandFrame> Said() {
    std::vector<HandFrame> frames;
    const absl::Status good = FeedReader(&written_, std::exchange(out, ""), [&](const Frame& frame) {
      frames.push_back({frame.kind, frame.number, std::string(frame.body)});
      return true;
    });
    Must(good.ok(), good.message());
    return frames;
  }

  bool open = false, closed = false, ended = false, greeted = false, refused = false;
  std::string out;                  // written, not yet under way
  size_t room = size_t{256} << 20;  // with so many bytes in `out` Write() refuses frames
  std::vector<std::string> names;   // in the other end's certificate
  FrameReader arrived;

 private:
  const std::string address_;
  const bool dialled_;
  bool prefaced_ = false;
  FrameReader written_;
};
using HandPtr = std::shared_ptr<HandConnection>;

class HubByHand final : public Dialler {
 public:
  HubByHand(PeerHubOptions options, Agent* agent) : hub_(std::make_unique<PeerHub>(std::move(options))) {
    Must(hub_->Start(agent).ok(), "a hub that does not listen cannot fail to start");
    absl::MutexLock lock(&hub_->mutex_);
    hub_->dialler_ = this;
    hub_->next_dns_ = absl::InfiniteFuture();  // answers come by Find()
  }
  ~HubByHand() override { hub_->Stop(); }
  ConnectionPtr Dial(const std::string& address) override {
    const std::string seen = with_ports ? address : address.substr(0, address.rfind(':'));
    return dialled.emplace_back(std::make_shared<HandConnection>(seen, true));
  }

  PeerHub& hub() { return *hub_; }
  void Tick(absl::Time now) { hub_->OnTick(now); }
  // Delivers an answer of DNS.
  void Find(std::vector<std::string> addresses) {
    absl::MutexLock lock(&hub_->mutex_);
    hub_->OnLookedUp(hub_->dns_address_, std::move(addresses));
    hub_->next_dns_ = absl::InfiniteFuture();
  }
  // Pretends that nothing was heard of a node for `silence`.
  void Silence(const std::string& node, absl::Duration silence) {
    absl::MutexLock lock(&hub_->mutex_);
    const auto peer = hub_->peers_.find(node);
    if (peer != hub_->peers_.end()) peer->second->link.OnHeard(SteadyNow() - silence);
  }
  // The last connection dialled to `host` that has not ended, or null.
  HandPtr DialledTo(const std::string& host) const {
    for (auto it = dialled.rbegin(); it != dialled.rend(); ++it) {
      if ((*it)->address() == host && !(*it)->ended) return *it;
    }
    return nullptr;
  }
  HandPtr Accept(std::vector<std::string> names = {}) {
    const auto connection = std::make_shared<HandConnection>("192.0.2.1", false);
    connection->names = std::move(names);
    Open(connection);
    return connection;
  }
  void Open(const HandPtr& connection) {
    connection->open = true;
    hub_->OnOpen(connection);
  }
  // Delivers a frame, unless the hub has closed the connection.
  void Say(const HandPtr& connection, FrameKind kind, uint64_t number = 0, absl::string_view body = {}) {
    if (!connection->closed && !connection->ended) hub_->OnFrame(connection, Frame{kind, number, body});
  }
  void Arrive(const HandPtr& connection, absl::string_view bytes) {
    if (connection->closed || connection->ended) return;
    const absl::Status good = FeedReader(&connection->arrived, bytes, [&](const Frame& frame) {
      hub_->OnFrame(connection, frame);
      return !connection->closed;
    });
    if (!good.ok()) End(connection, good);
  }
  void Writable(const HandPtr& connection) {
    if (connection->open && !connection->closed && std::exchange(connection->refused, false)) {
      hub_->OnWritable(connection);
    }
  }
  void End(const HandPtr& connection, const absl::Status& why = absl::UnavailableError("it broke")) {
    if (std::exchange(connection->ended, true)) return;
    hub_->OnEnd(connection, connection->closed ? absl::CancelledError("closed by this node") : why);
    connection->closed = true;
  }

  std::vector<HandPtr> dialled;  // the oldest first
  bool with_ports = false;       // connections know the ports that they lead to, so the hub probes those

 private:
  std::unique_ptr<PeerHub> hub_;
};

// The HELLO of a node, with a hub's default limits.
inline HelloFacts FactsOf(const std::string& node, uint64_t boot, uint32_t generation = 1) {
  HelloFacts facts;
  facts.hello.node = node;
  facts.hello.boot = BootId(boot);
  facts.hello.rails = {{RailIndex(0), "127.0.0.1:1", 1000}};
  facts.link_generation = generation;
  facts.max_message_bytes = 1 << 20;
  facts.max_world_size = PeerHubOptions().max_world_size;
  return facts;
}
inline std::string HelloOf(const HelloFacts& facts) {
  pb::Hello hello;
  HelloTo(facts, &hello);
  return hello.SerializeAsString();
}
inline std::string BytesOf(const ControlMessage& message) {
  pb::Message out;
  MessageTo(message, &out);
  return out.SerializeAsString();
}
// Node i of `nodes` has the address 127.0.0.(i+1).
inline PeerHubOptions OptionsByHand(const std::string& node, uint64_t boot, const std::vector<std::string>& nodes) {
  PeerHubOptions options;
  options.node = node;
  options.boot = BootId(boot);
  options.log = NullLogger();
  for (size_t i = 0; i < nodes.size(); ++i) {
    options.static_peers.push_back({nodes[i], absl::StrCat("127.0.0.", i + 1, ":1"), {}});
  }
  return options;
}

}  // namespace railsd

#endif  // RAILSD_TESTS_UNIT_DAEMON_PEER_HUB_BY_HAND_H_
