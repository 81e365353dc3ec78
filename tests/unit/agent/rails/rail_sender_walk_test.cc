// A random walk over the senders of two rails: nothing that is given to them is lost, or comes twice.
#include <gtest/gtest.h>

#include <array>
#include <deque>
#include <map>
#include <optional>
#include <random>
#include <vector>

#include "agent/rails/rail_sender.h"
#include "tests/support/seeds.h"
#include "tests/unit/agent/rails/stub_transport.h"

namespace railsd::testing {
namespace {

class RailSenderWalk {
 public:
  explicit RailSenderWalk(uint64_t seed) : random_(seed) {
    for (uint32_t r = 0; r < rails_.size(); ++r) {
      Rail& rail = rails_[r];
      rail.sender.emplace(RailIndex(r),
                          SchedulerOptions{.speed_bytes_per_s = 1e9, .chunk_bytes = 4, .window_bytes = 12}, &board_,
                          &rail.transport);
      RailPeer peer;
      peer.peer = kPeer;
      rail.sender->SetPeer(peer);
      Connect(r);
    }
    for (Flow& flow : flows_) {
      flow.stream.peer = kPeer;
      flow.stream.urgent = Draw(2) == 0;
    }
  }

  void Step() {
    const uint32_t r = Draw(rails_.size());
    Flow& flow = flows_[Draw(flows_.size())];
    now_ += absl::Milliseconds(Draw(20));
    switch (Draw(12)) {
      case 0:
      case 1:
      case 2:
        Give(r, flow, Draw(20), Draw(3) == 0 ? Draw(flow.pool_weight + 1) : Draw(std::min(flow.pool_weight, 4u) + 1));
        break;
      case 3:
        Release(r, flow, 1 + Draw(30));
        break;
      case 4:
        if (Draw(8) == 0) BeginRound(flow);
        break;
      case 5:
        if (Draw(6) == 0) Break(r);
        break;
      case 6:
        if (rails_[r].breaking) Disconnect(r);
        if (!rails_[r].up && Draw(2) == 0) Connect(r);
        break;
      case 7:
      case 8:
        rails_[r].transport.room = Draw(8);
        Post(r);
        break;
      default:
        for (uint32_t n = Draw(4); n > 0 && !rails_[r].transport.orders.empty(); --n) EndFirst(r);
    }
    Check();
  }
  // Ends everything, by carrying it or by failures.
  void Finish() {
    const uint32_t how = Draw(3);
    for (Flow& flow : flows_) {
      if (how == 0) BeginRound(flow);
      for (uint32_t r = 0; r < rails_.size(); ++r) {
        if (how == 1) rails_[r].sender->Drop(&flow.stream);
        if (how == 0) Give(r, flow, 0, 100);
      }
    }
    for (uint32_t r = 0; r < rails_.size(); ++r) {
      Rail& rail = rails_[r];
      rail.transport.room = SIZE_MAX;
      if (how == 2 && rail.up && !rail.breaking) Break(r);
      do {
        while (!rail.transport.orders.empty()) EndFirst(r);
        if (rail.breaking) Disconnect(r);
        Post(r);
      } while (!rail.transport.orders.empty());
      Check();
      EXPECT_EQ(board_[r].done_bytes.load(), rail.given_bytes) << "rail " << r;
      EXPECT_EQ(board_[r].unposted_bytes.load(), 0u) << "rail " << r;
      EXPECT_EQ(board_[r].in_flight_bytes.load(), 0u) << "rail " << r;
      EXPECT_EQ(rail.settled, rail.assignments) << "rail " << r;
    }
    for (const Flow& flow : flows_) {
      for (const Byte& byte : flow.bytes)
        EXPECT_TRUE(byte.where == Byte::kPool || byte.where == Byte::kCarried || how == 1);
      for (const auto& [round, weight] : flow.weights) EXPECT_LE(weight.out, weight.given) << "round " << round;
      if (how != 1) {
        EXPECT_EQ(flow.weights.rbegin()->second.out, flow.weights.rbegin()->second.given);
      }
    }
  }

 private:
  static constexpr PeerIndex kPeer{0};
  static constexpr uint32_t kBytes = 64;

  struct Byte {
    enum Where { kPool = -1, kCarried = -2 };
    int where = kPool;  // or the rail that has it
  };
  struct Weight {
    uint32_t given = 0, out = 0;
  };
  // Orders that a rail has posted of a stream.
  struct Share {
    uint64_t connection = 0;  // 0: it has nothing yet
    bool broken = false, lost = false;
    uint32_t round = 0;
    uint64_t last_covered = 0;       // by an acknowledged fence of the round
    uint64_t last_acknowledged = 0;  // of orders with bytes
  };
  struct Flow {
    SendStream stream;
    std::vector<Byte> bytes = std::vector<Byte>(kBytes);
    uint32_t round = 0, pool_weight = 255;
    std::map<uint32_t, Weight> weights{{0, {}}};
    std::array<Share, 2> shares;
  };
  struct Rail {
    StubTransport transport;
    std::optional<RailSender> sender;
    bool up = false;
    bool breaking = false;  // the connection has broken, and its end is not told
    bool unsent = false;    // orders that come back now were not sent
    uint64_t connection = 0;
    uint64_t given_bytes = 0, assignments = 0, settled = 0;
    uint64_t sequence = 0;
    std::map<uint64_t, uint64_t> sequences;  // by cookie of an order
  };

  uint32_t Draw(uint64_t below) { return static_cast<uint32_t>(random_() % below); }
  Flow& Of(const SendStream* stream) { return stream == &flows_[0].stream ? flows_[0] : flows_[1]; }

  void Give(uint32_t r, Flow& flow, uint32_t most, uint32_t weight) {
    Rail& rail = rails_[r];
    uint32_t offset = Draw(kBytes), length = 0;
    while (length < most && offset + length < kBytes && flow.bytes[offset + length].where == Byte::kPool) ++length;
    if (length == 0 && weight == 0) return;
    for (uint32_t i = 0; i < length; ++i) flow.bytes[offset + i] = {static_cast<int>(r)};
    Assignment assignment;
    assignment.stream = &flow.stream;
    assignment.connection = rail.connection;
    assignment.offset_bytes = offset;
    assignment.length_bytes = length;
    assignment.round = flow.round;
    assignment.weight = static_cast<uint8_t>(weight);
    flow.stream.unposted_bytes[r].fetch_add(length);
    flow.pool_weight -= std::min(flow.pool_weight, weight);
    flow.weights[flow.round].given += weight;
    rail.given_bytes += length;
    ++rail.assignments;
    Share& share = flow.shares[r];
    if (share.connection == 0 && rail.up) share.connection = rail.connection;
    // An assignment for a later connection comes back while the share ends.
    const bool taken = rail.up && !share.broken && share.connection == rail.connection;
    if (taken && share.round != flow.round) {
      share.round = flow.round;
      share.last_covered = 0;
    }
    rail.sender->Give(assignment);
    TakeReports(r);
  }
  void Release(uint32_t r, Flow& flow, uint64_t bytes) {
    ++rails_[r].assignments;
    releases_ = 0;
    rails_[r].sender->Release(&flow.stream, bytes);
    TakeReports(r);
    EXPECT_EQ(releases_, 1u) << "every release is answered";
  }
  void BeginRound(Flow& flow) {
    ++flow.round;
    flow.pool_weight = 255;
    flow.weights[flow.round] = {};
  }
  void Post(uint32_t r) {
    Rail& rail = rails_[r];
    const size_t before = rail.transport.orders.size();
    rail.sender->Post(now_);
    TakeReports(r);
    for (size_t i = before; i < rail.transport.orders.size(); ++i) {
      const SendOrder& order = rail.transport.orders[i];
      Flow& flow = Of(order.stream);
      ASSERT_LE(order.length_bytes, 4u);
      for (uint64_t b = order.offset_bytes; b < order.offset_bytes + order.length_bytes; ++b) {
        ASSERT_EQ(flow.bytes[b].where, static_cast<int>(r));
      }
      rail.sequences[order.cookie] = ++rail.sequence;
      if (order.weight == 0) continue;
      size_t fences = 0;
      for (const SendOrder& other : rail.transport.orders) fences += other.stream == order.stream && other.weight > 0;
      EXPECT_EQ(fences, 1u) << "one fence is under way at a time";
    }
  }
  // The oldest order of the rail ends.
  void EndFirst(uint32_t r) {
    Rail& rail = rails_[r];
    const SendOrder order = rail.transport.orders.front();
    Flow& flow = Of(order.stream);
    Share& share = flow.shares[r];
    SendResult result = SendResult::kAcknowledged;
    const bool dead = !rail.up || rail.breaking || order.connection != rail.connection;
    if (dead)
      result = rail.unsent || order.connection != rail.connection || !rail.up ? SendResult::kNotSent
                                                                              : SendResult::kRailFailed;
    if (result == SendResult::kRailFailed && Draw(3) == 0) rail.unsent = true;
    const uint64_t sequence = rail.sequences[order.cookie];
    if (result == SendResult::kAcknowledged) {
      if (order.length_bytes > 0) share.last_acknowledged = std::max(share.last_acknowledged, sequence);
      if (order.weight > 0 && order.round == share.round) share.last_covered = sequence;
    } else {
      share.broken = true;
      share.lost = share.lost || result == SendResult::kRailFailed;
      if (result == SendResult::kRailFailed) flow.weights[order.round].out += order.weight;
    }
    rail.sender->OnEvent(rail.transport.End(0, result), now_);
    TakeReports(r);
  }
  void LinkEvent(uint32_t r, RailEvent::Kind kind) {
    RailEvent event;
    event.kind = kind;
    event.peer = kPeer;
    event.connection = rails_[r].connection;
    rails_[r].sender->OnEvent(event, now_);
    TakeReports(r);
  }
  void Connect(uint32_t r) {
    ++rails_[r].connection;
    rails_[r].up = true;
    LinkEvent(r, RailEvent::Kind::kPeerUp);
  }
  // Orders that are posted come back from now on, most of them before the end of the connection is told.
  void Break(uint32_t r) {
    if (!rails_[r].up) return;
    rails_[r].breaking = true;
    rails_[r].unsent = Draw(4) == 0;
  }
  void Disconnect(uint32_t r) {
    Rail& rail = rails_[r];
    // Orders that come later were not sent.
    while (!rail.transport.orders.empty() && !rail.unsent) EndFirst(r);
    for (const SendOrder& order : rail.transport.orders) Of(order.stream).shares[r].broken = true;
    rail.up = rail.breaking = false;
    LinkEvent(r, RailEvent::Kind::kPeerDown);
  }

  void TakeReports(uint32_t r) {
    for (RailEvent report; rails_[r].sender->reports().Take({&report, 1}) > 0;) {
      if (report.stream != nullptr) OnReport(r, report, Of(report.stream));
    }
  }
  void OnReport(uint32_t r, const RailEvent& report, Flow& flow) {
    Share& share = flow.shares[r];
    rails_[r].settled += report.settled;
    const bool has_weight = report.kind == RailEvent::Kind::kFenceDone || report.kind == RailEvent::Kind::kReturned ||
                            report.kind == RailEvent::Kind::kShareEnded;
    if (has_weight) flow.weights[report.round].out += report.weight;
    switch (report.kind) {
      case RailEvent::Kind::kCarried:
        return Leave(r, report, flow, Byte::kCarried);
      case RailEvent::Kind::kReturned:
        if (report.round == flow.round) flow.pool_weight += report.weight;
        return Leave(r, report, flow, Byte::kPool);
      case RailEvent::Kind::kLost:
        return Leave(r, report, flow, Byte::kPool);
      case RailEvent::Kind::kReleased:
        ++releases_;
        return;
      case RailEvent::Kind::kShareEnded:
        if (report.round == flow.round) flow.pool_weight += report.weight;
        EXPECT_TRUE(report.doubtful || (!share.lost && share.last_acknowledged <= share.last_covered));
        share = Share{.connection = 0, .round = flow.round};
        return;
      case RailEvent::Kind::kFenceDone:
        Leave(r, report, flow, Byte::kCarried);
        [[fallthrough]];
      case RailEvent::Kind::kSettled:
        if (report.settled > 0) share = Share{.connection = 0, .round = flow.round};
        return;
      default:
        FAIL() << "report " << static_cast<int>(report.kind);
    }
  }
  void Leave(uint32_t r, const RailEvent& report, Flow& flow, int where) {
    ASSERT_GT(report.length_bytes + report.weight + report.settled, 0u);
    for (uint64_t b = report.offset_bytes; b < report.offset_bytes + report.length_bytes; ++b) {
      ASSERT_EQ(flow.bytes[b].where, static_cast<int>(r))
          << "byte " << b << ", report " << static_cast<int>(report.kind);
      flow.bytes[b].where = where;
    }
  }
  // Compares the counters with what is held.
  void Check() {
    for (uint32_t r = 0; r < rails_.size(); ++r) {
      uint64_t held = 0, unposted = 0;
      for (const Flow& flow : flows_) {
        for (const Byte& byte : flow.bytes) held += byte.where == static_cast<int>(r);
        unposted += flow.stream.unposted_bytes[r].load();
      }
      EXPECT_LE(rails_[r].given_bytes - board_[r].done_bytes.load(), held);
      EXPECT_LE(unposted, held);
    }
  }

  std::mt19937_64 random_;
  absl::Time now_ = absl::UnixEpoch();
  RailBoard board_{2};
  std::array<Rail, 2> rails_;
  std::array<Flow, 2> flows_;
  uint32_t releases_ = 0;
};

TEST(RailSenderWalkTest, NothingIsLostOrComesTwice) {
  for (const uint64_t seed : Seeds(2000)) {
    SCOPED_TRACE(::testing::Message() << "--gtest_random_seed=" << seed);
    RailSenderWalk walk(seed);
    for (int i = 0; i < 400 && !::testing::Test::HasFailure(); ++i) walk.Step();
    if (!::testing::Test::HasFailure()) walk.Finish();
    ASSERT_FALSE(::testing::Test::HasFailure());
  }
}

}  // namespace
}  // namespace railsd::testing
