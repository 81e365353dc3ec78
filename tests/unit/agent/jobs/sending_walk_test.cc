// A random walk over a whole exchange: the engine's half, the rails' senders, a wire that fails, and a receiver.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "agent/jobs/node_job.h"
#include "agent/jobs/sending.h"
#include "agent/rails/rail_sender.h"
#include "agent/sessions/tenants.h"
#include "tests/support/seeds.h"
#include "tests/unit/agent/jobs/one_flow.h"
#include "tests/unit/agent/rails/recording_port.h"
#include "tests/unit/agent/rails/stub_transport.h"

namespace railsd::testing {
namespace {

// Commands and reports wait in queues, and every queue moves at random. Bytes that a failed connection had on its wire
// may land until the receiver has ended its end of it, as over RDMA.
class SendingWalk {
 public:
  explicit SendingWalk(uint64_t seed) : random_(seed), peers_("n1", kRails) {
    Peer& peer = peers_.FindOrAdd("n0");
    peer.up = true;
    context_.peers = &peers_;
    context_.rails = &handles_;
    context_.board = &board_;
    context_.late_binding = true;
    job_.clock = &now_;
    job_.tenant = &tenants_.Of("one");
    for (uint32_t r = 0; r < kRails; ++r) {
      Rail& rail = rails_[r];
      const SchedulerOptions options{.speed_bytes_per_s = 1e9, .chunk_bytes = 4, .window_bytes = 12};
      rail.sender.emplace(RailIndex(r), options, &board_, &rail.transport);
      RailPeer to;
      to.peer = kPeer;
      rail.sender->SetPeer(to);
      handles_[r].port = &rail.port;
      handles_[r].progress = &board_[r];
      handles_[r].speed_bytes_per_s = 1e9;
      Connect(r);
      while (!rail.reports.empty()) TakeReport(r);
    }
    out_.emplace(&context_, &job_, kPeer);
    out_->SetStream(OneFlow(kBytes), MemoryRanges());
    std::vector<PlanRun> runs;
    const uint64_t part = kBytes / 6;  // two runs for each rail
    for (uint32_t i = 0; i < 6; ++i) runs.push_back({0, RailIndex(i % kRails), i * part, part});
    out_->Start(runs, /*by_flow=*/false);
  }

  void Step(bool faults) {
    const uint32_t r = Draw(kRails);
    Rail& rail = rails_[r];
    now_ += absl::Milliseconds(1);
    switch (Draw(10)) {
      case 0:
      case 1:
        if (rail.port.commands.empty()) break;
        Apply(rail.port.commands.front(), now_, &*rail.sender, nullptr);
        rail.port.commands.pop_front();
        break;
      case 2:
        rail.transport.room = faults ? Draw(6) : SIZE_MAX;
        rail.sender->Post(now_);
        break;
      case 3:
      case 4:
        Land(r);
        break;
      case 5:
        if (rail.landed > 0) End(r, SendResult::kAcknowledged);
        break;
      case 6:
      case 7:
        if (!rail.reports.empty()) TakeReport(r);
        break;
      case 8:
        Question(r);
        break;
      default:
        if (!rail.up || rail.breaking) {
          MendOrEnd(r);
        } else if (faults) {
          Fault(r);
        }
    }
    for (RailEvent report; rail.sender->reports().Take({&report, 1}) > 0;) rail.reports.push_back(report);
    LandLate(r);
  }
  bool ended() const { return out_->over() && !out_->held(); }
  void ExpectArrived() {
    EXPECT_TRUE(done_);
    EXPECT_EQ(std::count(landed_.begin(), landed_.end(), false), 0);
    for (uint32_t r = 0; r < kRails; ++r) {
      EXPECT_EQ(handles_[r].backlog_bytes(), 0u) << "rail " << r;
      EXPECT_EQ(out_->stream().unposted_bytes[r].load(), 0u) << "rail " << r;
    }
  }

 private:
  static constexpr PeerIndex kPeer{0};
  static constexpr uint32_t kRails = 3, kBytes = 96;

  struct Rail {
    StubTransport transport;
    std::optional<RailSender> sender;
    RecordingPort port;  // commands under way
    std::deque<RailEvent> reports;
    uint64_t connection = 0;
    bool up = false, breaking = false;
    // A connection is broken: orders that come back now were not sent, or never land.
    bool unsent = false, cut = false;
    size_t landed = 0;           // the first orders of the transport
    std::deque<SendOrder> late;  // lost to the sender
  };

  uint32_t Draw(uint64_t below) { return static_cast<uint32_t>(random_() % below); }

  void Receive(const SendOrder& order) {
    for (uint64_t b = order.offset_bytes; b < order.offset_bytes + order.length_bytes; ++b) landed_[b] = true;
    if (order.weight == 0 || order.round != round_ || done_) return;
    arrived_weight_ += order.weight;
    ASSERT_LE(arrived_weight_, kWholeWeight);
    if (arrived_weight_ < kWholeWeight) return;
    done_ = true;
    ASSERT_EQ(std::count(landed_.begin(), landed_.end(), false), 0) << "the receiver is done before all has landed";
  }
  void Land(uint32_t r) {
    Rail& rail = rails_[r];
    if (rail.breaking || !rail.up || rail.landed == rail.transport.orders.size()) return;
    ASSERT_FALSE(done_ && rail.transport.orders[rail.landed].length_bytes > 0) << "bytes for a closed zone";
    Receive(rail.transport.orders[rail.landed++]);
  }
  void LandLate(uint32_t r) {
    std::deque<SendOrder>& late = rails_[r].late;
    if (late.empty() || Draw(4) != 0) return;
    if (!done_) Receive(late.front());
    late.pop_front();
  }
  void End(uint32_t r, SendResult result) {
    Rail& rail = rails_[r];
    rail.landed -= rail.landed > 0;
    rail.sender->OnEvent(rail.transport.End(0, result), now_);
  }
  void LinkEvent(uint32_t r, RailEvent::Kind kind) {
    RailEvent event;
    event.kind = kind;
    event.peer = kPeer;
    event.connection = rails_[r].connection;
    rails_[r].sender->OnEvent(event, now_);
    for (RailEvent report; rails_[r].sender->reports().Take({&report, 1}) > 0;) rails_[r].reports.push_back(report);
  }
  void Connect(uint32_t r) {
    ++rails_[r].connection;
    rails_[r].up = true;
    LinkEvent(r, RailEvent::Kind::kPeerUp);
  }
  void Fault(uint32_t r) {
    switch (Draw(10)) {
      case 0:
      case 1:
        rails_[r].breaking = true;
        return;
      case 2:
        Set(&peers_.Get(kPeer).usable, r, Draw(3) != 0);
        return out_->OnPathsChanged();
      default:
        out_->Move(r, (r + 1) % kRails, 1 + Draw(20));
    }
  }
  // Orders of a broken connection come back one by one, then its end is told, then it comes up again.
  void MendOrEnd(uint32_t r) {
    Rail& rail = rails_[r];
    if (!rail.breaking) return Connect(r);
    if (rail.transport.orders.empty()) {
      rail.breaking = rail.up = rail.unsent = rail.cut = false;
      return LinkEvent(r, RailEvent::Kind::kPeerDown);
    }
    const SendOrder order = rail.transport.orders.front();
    if (rail.landed > 0 && Draw(2) == 0) return End(r, SendResult::kAcknowledged);
    if (rail.landed == 0) {
      rail.unsent = rail.unsent || Draw(4) == 0;
      if (rail.unsent) return End(r, SendResult::kNotSent);
      rail.cut = rail.cut || Draw(3) == 0;
      if (!rail.cut) rail.late.push_back(order);
    }
    End(r, SendResult::kRailFailed);
  }
  // The engine asks the receiver, which answers.
  void Question(uint32_t r) {
    if (answer_.has_value()) {
      const absl::Status status = out_->OnAnswer(*answer_);
      answer_.reset();
      ASSERT_TRUE(status.ok()) << status;
    } else if (question_.has_value()) {
      const std::vector<RailConnection> connections = *std::exchange(question_, std::nullopt);
      for (const RailConnection& failed : connections) {
        std::erase_if(rails_[failed.rail.value()].late,
                      [&](const SendOrder& order) { return order.connection <= failed.connection; });
      }
      answer_ = Rehomed::Exchange{job_.key, Rehomed::State::kComplete, round_, {}};
      if (done_) return;
      answer_->state = Rehomed::State::kOpen;
      answer_->round = ++round_;
      arrived_weight_ = 0;
    } else if (out_->MayAsk()) {
      question_.emplace();
      out_->Ask(&*question_);
    } else if (r == 0) {
      out_->OnPathsChanged();
    }
  }
  void TakeReport(uint32_t r) {
    const RailEvent report = rails_[r].reports.front();
    rails_[r].reports.pop_front();
    Peer& peer = peers_.Get(kPeer);
    switch (report.kind) {
      case RailEvent::Kind::kPeerUp:
        Set(&peer.connected, r, true);
        peer.rails[r].connection = report.connection;
        break;
      case RailEvent::Kind::kPeerDown:
        Set(&peer.connected, r, false);
        out_->OnRailDown(RailIndex(r), report.connection);
        break;
      case RailEvent::Kind::kDry:
      case RailEvent::Kind::kStretch:
        return;
      default:
        ASSERT_NE(report.kind, RailEvent::Kind::kSendFault);
        return out_->OnReport(RailIndex(r), report);
    }
    if (out_.has_value()) out_->OnPathsChanged();
  }

  std::mt19937_64 random_;
  absl::Time now_ = absl::UnixEpoch();
  TenantTable tenants_{{{"one"}}, nullptr};
  NodeJob job_;
  ExchangeContext context_;
  RailBoard board_{kRails};
  PeerTable peers_;
  std::vector<RailHandle> handles_{kRails};
  std::array<Rail, kRails> rails_;
  std::optional<Sending> out_;
  // The receiver.
  std::vector<bool> landed_ = std::vector<bool>(kBytes);
  uint32_t round_ = 0, arrived_weight_ = 0;
  bool done_ = false;
  // Under way to it, and back.
  std::optional<std::vector<RailConnection>> question_;
  std::optional<Rehomed::Exchange> answer_;
};

TEST(SendingWalkTest, EverythingArrivesBeforeTheReceiverIsDone) {
  for (const uint64_t seed : Seeds(3000)) {
    SCOPED_TRACE(::testing::Message() << "--gtest_random_seed=" << seed);
    SendingWalk walk(seed);
    for (int i = 0; i < 1500 && !walk.ended() && !::testing::Test::HasFailure(); ++i) walk.Step(/*faults=*/true);
    for (int i = 0; i < 50'000 && !walk.ended() && !::testing::Test::HasFailure(); ++i) walk.Step(/*faults=*/false);
    ASSERT_TRUE(walk.ended());
    walk.ExpectArrived();
    ASSERT_FALSE(::testing::Test::HasFailure());
  }
}

}  // namespace
}  // namespace railsd::testing
