// Any bytes as what a hostile peer does with the streams of a hub, deed after deed: it greets, answers and numbers
// messages as it likes, in its own name and in others', says boot ids of others, opens and breaks lanes, ends streams,
// and is silent. Meanwhile an honest peer and the hub talk, their streams and lanes breaking now and then: that link
// must stay up, and each of its messages arrive once and in order. Of everybody else: nobody is up before both streams
// have begun with one HELLO of a name that its certificate has, no two have one boot id, and what comes of them is in
// order and once in each link. In the end somebody new comes up.
#include <google/protobuf/stubs/logging.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/lifecycle/logging.h"
#include "tests/fuzz/service/agent/choices.h"
#include "tests/fuzz/service/hub/honest_peer.h"
#include "tests/unit/daemon/fake_agent.h"
#include "tests/unit/daemon/peer/hub_by_hand.h"

namespace railsd::testing {
namespace {

constexpr uint64_t kOwnBoot = 11, kGoodBoot = 100, kLateBoot = 300;
constexpr uint32_t kMaxWorldSize = 64;
constexpr int kMaxDeeds = 200;
constexpr size_t kMaxStreams = 6;  // of the hostile peer at once
constexpr absl::Duration kLostAfter = absl::Seconds(30);
constexpr OutboxLimits kOutbox = {.max_messages = 64, .max_bytes = 1 << 20};

PeerHubOptions Options() {
  PeerHubOptions options;
  options.node = "a";
  options.boot = BootId(kOwnBoot);
  options.lost_after = kLostAfter;
  options.heartbeat = absl::Seconds(1);
  options.max_world_size = kMaxWorldSize;
  options.outbox = kOutbox;
  options.log = NullLogger();
  // Names are compared with those of certificates, which the streams have; nothing more is asked of it.
  static const uint64_t none = 0;
  options.tls = reinterpret_cast<const TlsFiles*>(&none);
  return options;
}

// What the agent is told, against what it may be told.
class Witness : public FakeAgent {
 public:
  void OnPeerUp(PeerHello hello) override {
    Must(!up_.contains(hello.node), "up twice");
    for (const auto& [node, life] : up_) Must(life.boot != hello.boot, "two nodes with one boot id");
    Must(hello.boot.value() != kOwnBoot && (hello.boot.value() == kGoodBoot) == (hello.node == "good"),
         "somebody has the boot id of another");
    Must(has_both(hello), "up without both streams, or under a name that was not shown");
    up_[hello.node] = {hello.boot, 1};
  }
  void OnPeerDown(std::string node, std::string why, bool) override {
    Must(up_.erase(node) == 1, "down, and was not up");
    if (node == "good") Must(false, ("the honest peer is down: " + why).c_str());
  }
  void OnPeerSilent(std::string node, std::string) override { Must(up_.contains(node), "silent, and is not up"); }
  bool OnPeerMessage(std::string node, BootId boot, ControlMessage message) override {
    const auto it = up_.find(node);
    Must(it != up_.end() && it->second.boot == boot, "a message of a life that is not up");
    if (node != "good" && full) return false;
    Must(ContentOf(message) == it->second.next++, "a message is lost, doubled or out of order");
    return true;
  }
  bool IsUp(const std::string& node) const { return up_.contains(node); }
  uint64_t Heard(const std::string& node) const { return up_.at(node).next - 1; }

  std::function<bool(const PeerHello&)> has_both;
  bool full = false;  // for all but the honest peer

 private:
  struct Life {
    BootId boot;
    uint64_t next = 1;
  };
  std::map<std::string, Life> up_;
};

class Attack {
 public:
  Attack(const uint8_t* bytes, size_t size) : choices_(bytes, size) {
    witness_.has_both = [this](const PeerHello& hello) { return HasBoth(hello); };
    hub_.hub().SetPatience("good", absl::Hours(10));
    good_.Connect();
    hub_.Tick(absl::Now());
    good_.Connect();
    Must(witness_.IsUp("good"), "the honest peer does not come up");
  }
  void Run() {
    for (int i = 0; i < kMaxDeeds && !choices_.empty(); ++i) {
      Do();
      CheckCounters();
    }
    Finish();
  }

 private:
  using In = std::shared_ptr<InByHand>;
  using Out = std::shared_ptr<OutByHand>;

  // One that is cancelled is there until it has ended.
  template <typename Stream>
  static bool Began(const Stream& stream, const PeerHello& hello) {
    return !stream->ended && stream->hello && stream->hello->hello.node == hello.node &&
           stream->hello->hello.boot == hello.boot &&
           std::find(stream->names.begin(), stream->names.end(), hello.node) != stream->names.end();
  }
  bool HasBoth(const PeerHello& hello) const {
    const auto out = std::find_if(hub_.dialled().begin(), hub_.dialled().end(),
                                  [&](const Out& stream) { return Began(stream, hello); });
    if (out == hub_.dialled().end()) return false;
    return std::any_of(hub_.accepted().begin(), hub_.accepted().end(), [&](const In& stream) {
      return Began(stream, hello) && !stream->finished &&
             stream->hello->link_generation == (*out)->hello->link_generation;
    });
  }

  void Do() {
    switch (choices_.Below(16)) {
      case 0:
        return Accept();
      case 1:
        return Greet();
      case 2:
        return Answer();
      case 3:
      case 4:
        return SayNumbered();
      case 5:
        return SayAnything();
      case 6:
        return Acknowledge();
      case 7:
        return End();
      case 8:
        return Lane();
      case 9:
        return Written();
      case 10:
        return Pass();
      case 11:
        return HubSends();
      case 12:
        return Disturb();
      default:
        return Good();
    }
  }

  In Stream() {
    std::erase_if(streams_, [](const In& stream) { return stream->ended; });
    return streams_.empty() ? nullptr : streams_[choices_.Below(streams_.size())];
  }
  Out Dialled() { return hub_.DialledTo(choices_.Below(4) == 0 ? "late" : "evil"); }

  void Accept() {
    if (Stream() != nullptr && streams_.size() >= kMaxStreams) return;
    const In stream = hub_.Accept();
    if (stream == nullptr) return;
    static const std::vector<std::string> kNames[] = {{"evil"}, {"evil", "nobody"}, {}, {"nobody"}};
    stream->names = kNames[choices_.Below(8) < 5 ? 0 : 1 + choices_.Below(3)];
    streams_.push_back(stream);
  }
  HelloFacts DrawFacts() {
    static constexpr std::array<uint64_t, 5> kBoots = {200, 201, kGoodBoot, kOwnBoot, 0};
    static constexpr std::array<const char*, 5> kNodes = {"evil", "good", "late", "nobody", "a"};
    const uint8_t how = choices_.Byte();  // 0: as it should be
    HelloFacts facts = FactsOf(kNodes[how % 8 < 5 ? 0 : choices_.Below(kNodes.size())],
                               kBoots[how / 8 % 4 < 2 ? 0 : choices_.Below(kBoots.size())]);
    facts.max_world_size = (how & 224) == 224 ? 1 : kMaxWorldSize;
    facts.link_generation = static_cast<uint32_t>((how & 32) != 0 ? choices_.Below(4) : 1);
    if ((how & 64) != 0) facts.max_message_bytes = uint64_t{64} << 10;
    if ((how & 128) != 0) facts.lane_share = choices_.Flip() ? EvilShare() : PublicShare{};
    return facts;
  }
  static PublicShare EvilShare() {
    static const KeyShare share = *KeyShare::Draw();
    return share.share();
  }
  void Greet() {
    const In stream = Stream();
    const HelloFacts facts = DrawFacts();
    if (stream != nullptr) hub_.Request(stream, GreetingOf(facts));
  }
  void Answer() {
    const Out stream = Dialled();
    const HelloFacts facts = DrawFacts();
    const uint64_t acknowledged = choices_.Below(4) == 0 ? choices_.Byte() : LastTo(stream);
    if (stream == nullptr) return;
    if (!stream->begun) stream->names = {"evil"};
    hub_.Respond(stream, AnswerOf(facts, acknowledged));
  }
  // The number of the last message that was written to a stream.
  static uint64_t LastTo(const Out& stream) {
    if (stream == nullptr) return 0;
    for (auto it = stream->written.rbegin(); it != stream->written.rend(); ++it) {
      if ((*it)->has_message()) return (*it)->message().number();
    }
    return 0;
  }
  // Mostly the next one.
  pb::Numbered DrawNumbered() {
    const uint64_t next = witness_.IsUp("evil") ? witness_.Heard("evil") + 1 : 1;
    const uint8_t how = choices_.Byte();
    pb::Numbered message;
    message.set_number(how < 160 ? next : how < 192 ? next + choices_.Below(4) : choices_.Byte());
    // Content is the number, so that the witness sees which one it is; or it is none.
    if (how < 250) MessageTo(MessageOf(std::max<uint64_t>(message.number(), 1)), &message);
    return message;
  }
  void SayNumbered() {
    const In stream = Stream();
    pb::ExchangeRequest request;
    *request.mutable_message() = DrawNumbered();
    if (stream != nullptr) hub_.Request(stream, request);
  }
  void SayAnything() {
    pb::ExchangeRequest request;
    pb::ExchangeResponse response;
    const std::string bytes = choices_.Bytes(choices_.Below(64));
    const bool asks = choices_.Flip();
    if (const In stream = Stream(); asks && stream != nullptr && request.ParseFromString(bytes)) {
      if (!request.has_message()) hub_.Request(stream, request);  // the witness would not know what it says
    }
    if (const Out stream = Dialled(); !asks && stream != nullptr && response.ParseFromString(bytes)) {
      hub_.Respond(stream, response);
    }
  }
  void Acknowledge() {
    const Out stream = Dialled();
    pb::ExchangeResponse response;
    response.set_acknowledged(choices_.Below(4) == 0 ? choices_.Byte() : LastTo(stream));
    if (stream != nullptr) hub_.Respond(stream, response);
  }
  void End() {
    const uint8_t how = choices_.Byte();
    if (how % 2 == 0) {
      if (const In stream = Stream(); stream != nullptr) hub_.End(stream);
    } else if (const Out stream = Dialled(); stream != nullptr) {
      hub_.End(stream, absl::UnavailableError("it broke"), /*stopping=*/how % 8 == 7);
    }
  }
  void Written() {
    if (const In stream = Stream(); stream != nullptr) hub_.Written(stream);
    if (const Out stream = Dialled(); stream != nullptr) hub_.Written(stream);
  }
  // One that is not the honest peer's.
  void Lane() {
    std::vector<LaneId> ids;
    for (const auto& [id, lane] : hub_.lanes().lanes) {
      if (!good_.Holds(lane)) ids.push_back(id);
    }
    const uint8_t how = choices_.Byte();
    const pb::Numbered message = DrawNumbered();
    if (ids.empty()) return;
    const LaneId id = ids[ids.size() - 1 - choices_.Below(std::min<size_t>(ids.size(), 4))];
    LanesByHand::Lane& lane = hub_.lanes().lanes[id];
    const bool open = lane.state == LanesByHand::State::kOpen;
    switch (how % 4) {
      case 0:  // also one that was closed meanwhile
        if (lane.state == LanesByHand::State::kMaking) lane.state = LanesByHand::State::kOpen;
        return open ? void() : hub_.hub().OnLaneOpen(id);
      case 1:
        if (open && lane.address.empty()) hub_.hub().OnLaneMessage(id, message.SerializeAsString());
        return;
      case 2:
        return hub_.hub().OnLaneWritable(id);
      default:
        lane.state = LanesByHand::State::kClosed;
        return hub_.hub().OnLaneEnd(id, "it broke", how % 8 == 7);
    }
  }
  void Pass() {
    static constexpr absl::Duration kTimes[] = {absl::ZeroDuration(), absl::Milliseconds(500), absl::Seconds(2)};
    const size_t how = choices_.Below(8);
    hub_.Tick(absl::Now() + (how == 7 ? kLostAfter + absl::Seconds(1) : kTimes[how % 3]));
  }
  void HubSends() {
    const uint8_t how = choices_.Byte();
    if (how % 4 == 0) return Tell();
    if (how % 4 == 1) hub_.hub().Send("nobody", MessageOf(1));
    if (how % 4 == 2) hub_.hub().Send("evil", MessageOf(1));
    if (how % 4 == 3) (void)hub_.hub().SendIfItFits("evil", MessageOf(1, /*longer=*/true));
    const OutboxDepths depths = hub_.hub().Outboxes();
    Must(depths.most_messages <= kOutbox.max_messages && depths.most_bytes <= kOutbox.max_bytes, "an outbox too full");
  }
  // The honest peer; never more than its outbox takes.
  void Tell() {
    if (told_ - acknowledged_ > kOutbox.max_messages / 4) Catch();
    if (told_ - acknowledged_ > kOutbox.max_messages / 4) return;
    ++told_;
    if (told_ % 32 == 0) {
      Must(hub_.hub().SendIfItFits("good", MessageOf(told_, /*longer=*/true)).ok(), "there is room");
    } else {
      hub_.hub().Send("good", MessageOf(told_));
    }
  }
  void Catch() {
    good_.Connect();
    good_.Hear();
    good_.Acknowledge();
    acknowledged_ = good_.heard();
  }
  void Disturb() {
    static constexpr std::array<const char*, 4> kNodes = {"evil", "good", "late", "nobody"};
    const char* const node = kNodes[choices_.Below(kNodes.size())];
    switch (choices_.Below(5)) {
      case 0:
        return hub_.hub().BreakStreams(node);
      case 1:
        return hub_.hub().BreakLane(node);
      case 2:
        if (node[0] == 'e') hub_.hub().SetPatience(node, absl::Seconds(choices_.Byte()));
        return;
      case 3:
        witness_.full = !witness_.full;
        return;
      default:
        hub_.lanes().busy = !hub_.lanes().busy;
        if (!hub_.lanes().busy) WritableAgain();
    }
  }
  void WritableAgain() {
    for (const auto& [id, lane] : hub_.lanes().lanes) {
      if (lane.state == LanesByHand::State::kOpen && !lane.address.empty()) hub_.hub().OnLaneWritable(id);
    }
  }
  void Good() {
    switch (choices_.Below(12)) {
      case 0:
        return good_.Connect();
      case 1:
        return good_.Hear();
      case 2:
        return good_.Acknowledge();
      case 3:
        return good_.OpenLanes();
      case 4:
        return good_.EndLanes();
      case 5:
        return good_.Break(choices_.Flip());
      case 6:
        return Tell();
      case 7:
        return good_.ArriveOverLane();
      case 8:
        return good_.ArriveOverStream();
      default:
        return good_.Say(choices_.Flip());
    }
  }

  void CheckCounters() {
    const PeerCounters& now = hub_.hub().counters();
    const std::array<uint64_t, 15> values = {
        now.connects,         now.disconnects, now.refused,          now.identity,           now.protocol_errors,
        now.messages_out,     now.messages_in, now.messages_dropped, now.duplicates,         now.lost,
        now.lane_messages_in, now.lanes_lost,  now.lanes_opened,     now.messages_held_back, now.own_addresses};
    for (size_t i = 0; i < values.size(); ++i) Must(values[i] >= counted_[i], "a counter goes back");
    counted_ = values;
    Must(now.lanes_refused == 0 && now.disconnects <= now.connects, "counters contradict each other");
  }

  // The hostile peer goes, and the honest one ends what it has begun; then somebody comes who was not there before.
  void Finish() {
    witness_.full = false;
    hub_.lanes().busy = false;
    WritableAgain();
    for (const In& stream : streams_) hub_.End(stream);
    for (const char* node : {"evil", "late"}) {
      if (const Out stream = hub_.DialledTo(node); stream != nullptr) hub_.End(stream, absl::CancelledError(""));
    }
    HonestPeer late(&hub_, "late", kLateBoot);
    for (int i = 0; i < 8 && !AllIsWell(); ++i) {
      hub_.Tick(absl::Now() + absl::Seconds(2));
      late.Connect();
      good_.Connect();
      for (int j = 0; j < 2 * kMaxDeeds && !good_.idle(); ++j) {
        good_.ArriveOverLane();
        good_.ArriveOverStream();
      }
      good_.Hear();
      good_.Acknowledge();
    }
    Must(good_.idle() && witness_.Heard("good") == good_.said(), "a message of the honest peer has not arrived");
    Must(good_.heard() == told_, "a message to the honest peer has not arrived");
    Must(witness_.IsUp("late"), "nobody new comes up");
    CheckCounters();
  }

  bool AllIsWell() const {
    return witness_.IsUp("late") && good_.idle() && witness_.Heard("good") == good_.said() && good_.heard() == told_;
  }

  Choices choices_;
  Witness witness_;
  HubByHand hub_{Options(), {"good", "evil", "late"}, &witness_};
  HonestPeer good_{&hub_, "good", kGoodBoot};
  std::vector<In> streams_;               // of the hostile peer
  uint64_t told_ = 0, acknowledged_ = 0;  // to the honest one, and by it at least
  std::array<uint64_t, 15> counted_ = {};
};

}  // namespace
}  // namespace railsd::testing

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  google::protobuf::SetLogHandler(nullptr);  // as the daemon does
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  railsd::testing::Attack(bytes, size).Run();
  return 0;
}
