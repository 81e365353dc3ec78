// Any bytes as what a hostile peer does to a hub. An input begins with what arrives on the first connection: two bytes
// of length, and so many bytes. Its rest are choices, deed after deed: connections, HELLOs in its own name and in
// others', frames of any kind and number, ends, silence. Meanwhile an honest hub and this one talk, their connections
// breaking now and then: that link must stay up, and each of its messages arrive once and in order. Nobody is up under
// a name that no certificate has shown, or with another's boot id. In the end somebody new comes up.
#include <google/protobuf/stubs/logging.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/null_sink.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/fuzz/service/agent/choices.h"
#include "tests/unit/daemon/fake_agent.h"
#include "tests/unit/daemon/peer/hub_by_hand.h"
#include "tests/unit/daemon/peer/long_ready.h"

namespace railsd {

// The hub listens and dials nowhere.
absl::StatusOr<std::unique_ptr<Links>> Links::Start(LinksOptions, ConnectionHandler*, EventHost*) {
  return absl::UnimplementedError("no network");
}
std::shared_ptr<spdlog::logger> NullLogger() {
  return std::make_shared<spdlog::logger>("null", std::make_shared<spdlog::sinks::null_sink_mt>());
}

namespace testing {
namespace {

constexpr uint64_t kOwnBoot = 11, kGoodBoot = 100, kLateBoot = 300;
constexpr int kMaxDeeds = 200;
constexpr absl::Duration kLostAfter = absl::Seconds(30);
constexpr OutboxLimits kOutbox = {.max_messages = 64, .max_bytes = 1 << 20};
constexpr char kGoodHost[] = "127.0.0.2", kLateHost[] = "127.0.0.4", kOwnHost[] = "127.0.0.1";

ControlMessage MessageOf(uint64_t number) {
  const JobKey job = {{BootId(1), 1}, JobSeq(number)};
  if (number % 32 > 0) return Quiesced{job, {}};
  return LongReady(job, 10'000);  // in parts
}
uint64_t ContentOf(const ControlMessage& message) {
  if (const Ready* const ready = std::get_if<Ready>(&message)) return ready->job.seq.value();
  return std::get<Quiesced>(message).job.seq.value();
}

// Compares what an agent is told with what it may be told.
class Witness final : public FakeAgent {
 public:
  explicit Witness(std::string honest) : honest_(std::move(honest)) {}
  void OnPeerUp(PeerHello hello) override {
    for (const auto& [node, boot] : up) Must(node != hello.node && boot != hello.boot, "up twice");
    Must(hello.boot.value() != kOwnBoot || honest_ == "a", "somebody has the boot id of this node");
    Must(honest_ == "a" || (hello.boot.value() == kGoodBoot) == (hello.node == honest_), "another's boot id");
    Must(honest_ == "a" || hello.node != "nobody", "a name that no certificate has shown");
    up[hello.node] = hello.boot;
  }
  void OnPeerDown(std::string node, std::string why, bool) override {
    Must(up.erase(node) == 1, "down, and was not up");
    Must(node != honest_, "the honest peer is down: " + why);
  }
  bool OnPeerMessage(std::string node, BootId boot, ControlMessage message) override {
    Must(up.contains(node) && up[node] == boot, "a message of a life that is not up");
    if (node != honest_) return !full;
    Must(ContentOf(message) == ++heard, "a message is lost, doubled or out of order");
    return true;
  }

  std::map<std::string, BootId> up;
  uint64_t heard = 0;  // of the honest peer's
  bool full = false;   // for all but that one

 private:
  const std::string honest_;
};

PeerHubOptions OptionsOf(const std::string& node, uint64_t boot) {
  PeerHubOptions options = OptionsByHand(node, boot, {"a", "good", "evil", "late"});
  if (node == "good") options.static_peers.resize(1);
  options.lost_after = node == "a" ? kLostAfter : absl::Hours(10);
  options.heartbeat = absl::Seconds(1);
  options.outbox = kOutbox;
  // Names are compared with those of certificates, which the connections have; nothing more is asked of it.
  static const uint64_t none = 0;
  if (node == "a") options.links.tls = reinterpret_cast<const TlsFiles*>(&none);
  return options;
}

class Attack {
 public:
  Attack(const uint8_t* bytes, size_t size) : choices_(bytes, size) {
    hub_.hub().SetPatience("good", absl::Hours(10));
    Settle();
    Must(at_hub_.up.contains("good") && at_good_.up.contains("a"), "the honest peer does not come up");
    evil_.push_back(hub_.Accept({"evil"}));
    const size_t length = choices_.Byte() + size_t{256} * choices_.Byte();
    hub_.Arrive(evil_[0], choices_.Bytes(length));
  }
  void Run() {
    for (int i = 0; i < kMaxDeeds && !choices_.empty(); ++i) Do();
    Finish();
  }

 private:
  void Do() {
    switch (choices_.Below(16)) {
      case 0:
        if (evil_.size() < 6) evil_.push_back(hub_.Accept({Flipped("evil", "nobody")}));
        return;
      case 1:
        return Answer();
      case 2:
        return hub_.Say(Any(), FrameKind::kHello, 0, HelloOf(DrawFacts()));
      case 3:
        return Say(FrameKind::kMessage, BytesOf(MessageOf(1)));
      case 4:
        return Say(static_cast<FrameKind>(1 + choices_.Below(7)), choices_.Bytes(choices_.Byte()));
      case 5:
        return hub_.Arrive(Any(), choices_.Bytes(choices_.Byte()));
      case 6:
        return hub_.Say(Any(), FrameKind::kTaken, choices_.Byte());
      case 7:
        return End(Any());
      case 8: {
        const HandPtr connection = Any();
        connection->out.clear();
        connection->room = choices_.Flip() ? 1 : 1 << 20;
        return hub_.Writable(connection);
      }
      case 9:
        return Pass();
      case 10:
        return HubSends();
      case 11:
        return Disturb();
      default:
        return Good();
    }
  }
  const char* Flipped(const char* usual, const char* seldom) { return choices_.Below(4) == 0 ? seldom : usual; }
  HandPtr Any() {
    if (evil_.empty()) evil_.push_back(hub_.Accept({"evil"}));
    return evil_[choices_.Below(evil_.size())];
  }
  void End(const HandPtr& connection) {
    hub_.End(connection);
    next_.erase(connection);
    std::erase(evil_, connection);
  }
  // Where the hub dials somebody else than the honest peer.
  void Answer() {
    const HandPtr dialled = hub_.DialledTo(Flipped("127.0.0.3", kLateHost));
    if (dialled == nullptr || dialled->open) return;
    dialled->names = {"evil"};
    hub_.Open(dialled);
    evil_.push_back(dialled);
  }
  HelloFacts DrawFacts() {
    static constexpr std::array<uint64_t, 5> kBoots = {200, 201, kGoodBoot, kOwnBoot, 0};
    static constexpr std::array<const char*, 5> kNodes = {"evil", "good", "late", "nobody", "a"};
    const uint8_t how = choices_.Byte();  // 0: as it should be
    HelloFacts facts = FactsOf(kNodes[how % 8 < 5 ? 0 : choices_.Below(kNodes.size())],
                               kBoots[how / 8 % 4 < 2 ? 0 : choices_.Below(kBoots.size())]);
    if ((how & 32) != 0) facts.link_generation = static_cast<uint32_t>(choices_.Below(4));
    if ((how & 64) != 0) facts.count = choices_.Byte();
    if ((how & 128) == 0) return facts;
    facts.expected_boot = BootId(kOwnBoot);
    facts.expected_generation = static_cast<uint32_t>(choices_.Below(4));
    facts.taken = choices_.Byte();
    return facts;
  }
  // Mostly with the number that is next.
  void Say(FrameKind kind, const std::string& body) {
    const HandPtr connection = Any();
    const uint8_t how = choices_.Byte();
    const uint64_t number = how < 192 ? ++next_[connection] : how % 8;
    hub_.Say(connection, kind, number, body);
  }
  void Pass() {
    static constexpr absl::Duration kTimes[] = {absl::ZeroDuration(), absl::Milliseconds(500), absl::Seconds(2)};
    const size_t how = choices_.Below(8);
    hub_.Tick(SteadyNow() + (how == 7 ? kLostAfter + absl::Seconds(1) : kTimes[how % 3]));
  }
  void HubSends() {
    static constexpr std::array<const char*, 3> kNodes = {"evil", "late", "nobody"};
    const char* const node = kNodes[choices_.Below(kNodes.size())];
    choices_.Flip() ? hub_.hub().Send(node, MessageOf(1)) : (void)hub_.hub().SendIfItFits(node, MessageOf(32));
    const OutboxDepths depths = hub_.hub().Outboxes();
    Must(depths.most_messages <= kOutbox.max_messages, "an outbox too full");
  }
  void Disturb() {
    static constexpr std::array<const char*, 3> kNodes = {"evil", "good", "late"};
    const char* const node = kNodes[choices_.Below(kNodes.size())];
    if (choices_.Flip()) return hub_.hub().Redial(node).IgnoreError();
    at_hub_.full = choices_.Flip();
    if (node[0] == 'e') hub_.hub().SetPatience(node, absl::Seconds(choices_.Byte()));
  }

  // The honest peer.
  void Good() {
    switch (choices_.Below(8)) {
      case 0:
        good_.Tick(SteadyNow() + absl::Seconds(2));
        return Connect();
      case 1:
        if (!wires_.empty()) cut_ = wires_[choices_.Below(wires_.size())];
        return;
      case 2:
        if (good_.hub().Outboxes().messages < 16) good_.hub().Send("a", MessageOf(++said_));
        return;
      case 3:
        if (told_ - at_good_.heard < 8 && hub_.hub().Outboxes().messages < 16)
          hub_.hub().Send("good", MessageOf(++told_));
        return;
      default:
        Move(1 + 97 * size_t{choices_.Byte()});
    }
  }
  using Wire = std::pair<HandPtr, HandPtr>;  // here, and there
  void Connect() {
    for (auto [from, to, host] : {std::tuple(&hub_, &good_, kGoodHost), std::tuple(&good_, &hub_, kOwnHost)}) {
      const HandPtr dialled = from->DialledTo(host);
      if (dialled == nullptr || dialled->open) continue;
      dialled->names = {"good"};
      const HandPtr accepted = to->Accept({"good"});
      wires_.emplace_back(from == &hub_ ? Wire(dialled, accepted) : Wire(accepted, dialled));
      from->Open(dialled);
    }
  }
  static bool MoveOne(HubByHand* to, const HandPtr& here, HubByHand* from, const HandPtr& there, size_t most,
                      bool cut) {
    if (here->ended) return false;
    if (here->closed || cut || (there->out.empty() && there->closed)) return to->End(here), true;
    if (there->out.empty()) return false;
    const std::string bytes = there->out.substr(0, most);
    there->out.erase(0, most);
    to->Arrive(here, bytes);
    if (!there->ended) from->Writable(there);
    return true;
  }
  bool Move(size_t most) {
    bool moved = false;
    for (const Wire& wire : wires_) {
      moved |= MoveOne(&hub_, wire.first, &good_, wire.second, most, wire == cut_);
      moved |= MoveOne(&good_, wire.second, &hub_, wire.first, most, wire == cut_);
    }
    std::erase_if(wires_, [](const Wire& wire) { return wire.first->ended && wire.second->ended; });
    return moved;
  }
  void Settle() {
    hub_.Tick(SteadyNow() + absl::Seconds(2));
    good_.Tick(SteadyNow() + absl::Seconds(2));
    Connect();
    while (Move(~size_t{0})) continue;
  }

  // The hostile peer goes, and the honest one ends what it has begun; then somebody comes who was not there before.
  void Finish() {
    at_hub_.full = false;
    while (!evil_.empty()) End(HandPtr(evil_.front()));
    for (int i = 0; i < 8; ++i) {
      Settle();
      const HandPtr late = hub_.DialledTo(kLateHost);
      if (late == nullptr || late->open) continue;
      late->names = {"late"};
      hub_.Open(late);
      hub_.Say(late, FrameKind::kHello, 0, HelloOf(FactsOf("late", kLateBoot)));
    }
    Must(at_hub_.heard == said_, "a message of the honest peer has not arrived");
    Must(at_good_.heard == told_, "a message to the honest peer has not arrived");
    for (const PeerView& peer : hub_.hub().Peers()) {
      Must(peer.node != "late" || peer.up, "nobody new comes up: " + peer.why);
    }
    const PeerCounters& counters = hub_.hub().counters();
    Must(counters.disconnects <= counters.connects, "counters contradict each other");
    Must(good_.hub().counters().protocol_errors == 0, "the hub breaks the protocol");
  }

  Choices choices_;
  Witness at_hub_{"good"}, at_good_{"a"};
  HubByHand hub_{OptionsOf("a", kOwnBoot), &at_hub_}, good_{OptionsOf("good", kGoodBoot), &at_good_};
  std::vector<HandPtr> evil_;
  std::map<HandPtr, uint64_t> next_;
  std::vector<Wire> wires_;
  Wire cut_;
  uint64_t told_ = 0, said_ = 0;  // to the honest peer, and by it
};

}  // namespace
}  // namespace testing
}  // namespace railsd

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  google::protobuf::SetLogHandler(nullptr);  // as the daemon does
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  railsd::testing::Attack(bytes, size).Run();
  return 0;
}
