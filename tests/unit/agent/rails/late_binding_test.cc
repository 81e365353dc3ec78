// Late binding in a simulated clock: rails and the engine talk by messages that take their time.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "agent/jobs/late_binder.h"
#include "agent/jobs/node_job.h"
#include "agent/jobs/sending.h"
#include "agent/rails/rail_sender.h"
#include "agent/sessions/tenants.h"
#include "tests/unit/agent/jobs/one_flow.h"
#include "tests/unit/agent/rails/stub_transport.h"

namespace railsd::testing {
namespace {

// Rails of 400 Gbit/s to one peer. Each carries what is posted to it in order, at its own speed.
class LateBindingTest : public ::testing::Test {
 protected:
  static constexpr double kRailSpeed = 50e9;
  static constexpr uint64_t kGiB = 1 << 30;
  static constexpr absl::Duration kMessage = absl::Microseconds(10);    // from thread to thread
  static constexpr absl::Duration kRoundTrip = absl::Microseconds(10);  // until a carried chunk is acknowledged

  // A rail's thread with its sender, as the engine sees it.
  class SimRail final : public RailPort {
   public:
    SimRail(LateBindingTest* world, uint32_t index, double part)
        : world_(*world),
          index_(index),
          speed_(part * kRailSpeed),
          sender_(RailIndex(index), {.speed_bytes_per_s = kRailSpeed}, &world->board_, &transport_) {
      RailPeer peer;
      peer.peer = PeerIndex(0);
      peer.link = 1;
      sender_.SetPeer(peer);
      RailEvent up;
      up.kind = RailEvent::Kind::kPeerUp;
      up.cookie = up.connection = 1;
      sender_.OnEvent(up, world->now_);
      for (RailEvent event; sender_.reports().Take({&event, 1}) > 0;) {
      }
    }
    bool TryCommand(RailCommand command) override {
      releases += command.kind == RailCommand::Kind::kRelease;
      world_.At(world_.now_ + kMessage, [this, command]() mutable {
        Apply(command, world_.now_, &sender_, nullptr);
        Turn();
      });
      return true;
    }
    size_t TakeEvents(absl::Span<RailEvent>) override { return 0; }
    void Flush() override {}
    const RailCounters& counters() const override { return transport_.counters; }

    absl::Time ended;  // the last acknowledgement
    uint64_t carried_bytes = 0, releases = 0;

   private:
    // Posts, puts the new orders onto the wire, and sends reports to the engine.
    void Turn() {
      sender_.Post(world_.now_);
      for (; on_wire_ < transport_.orders.size(); ++on_wire_) {
        const auto bytes = static_cast<double>(transport_.orders[on_wire_].length_bytes);
        wire_free_ = std::max(wire_free_, world_.now_) + absl::Seconds(bytes / speed_);
        world_.At(wire_free_ + kRoundTrip, [this] { Acknowledge(); });
      }
      std::vector<RailEvent> reports;
      for (RailEvent event; sender_.reports().Take({&event, 1}) > 0;) reports.push_back(event);
      if (reports.empty()) return;
      world_.At(world_.now_ + kMessage, [this, reports] {
        for (const RailEvent& report : reports) world_.OnReport(index_, report);
        world_.RunBinder();
      });
    }
    void Acknowledge() {
      --on_wire_;
      carried_bytes += transport_.orders.front().length_bytes;
      sender_.OnEvent(transport_.End(0, SendResult::kAcknowledged), world_.now_);
      ended = world_.now_;
      Turn();
    }

    LateBindingTest& world_;
    const uint32_t index_;
    const double speed_;
    StubTransport transport_;
    RailSender sender_;
    size_t on_wire_ = 0;  // of transport_.orders
    absl::Time wire_free_ = absl::InfinitePast();
  };

  LateBindingTest() : board_(64), peers_("n1", 64) {}

  // Rails that deliver these parts of their speed. One exchange, planned evenly.
  void Build(const std::vector<double>& parts, uint64_t bytes, bool late_binding = true) {
    bytes_ = bytes;
    handles_.resize(parts.size());
    Peer& peer = peers_.FindOrAdd("n0");
    peer.up = true;
    for (uint32_t r = 0; r < parts.size(); ++r) {
      rails_.push_back(std::make_unique<SimRail>(this, r, parts[r]));
      handles_[r].port = rails_[r].get();
      handles_[r].progress = &board_[r];
      handles_[r].speed_bytes_per_s = kRailSpeed;
      Set(&peer.connected, r, true);
      peer.rails[r].connection = 1;
    }
    context_.peers = &peers_;
    context_.rails = &handles_;
    context_.board = &board_;
    context_.late_binding = late_binding;
    auto job = std::make_unique<NodeJob>();
    job->clock = &now_;
    job->tenant = &tenants_.Of("one");
    job->running = true;
    job->AddExchanges(&context_, std::make_shared<GroupLayout>(GroupLayout{{}, {PeerIndex(0)}, {0}}));
    out_ = &job->exchanges[0].out;
    jobs_[job->key] = std::move(job);
    out_->SetStream(OneFlow(bytes), MemoryRanges());
    std::vector<PlanRun> runs;
    const uint64_t each = bytes / parts.size();
    for (uint32_t r = 0; r < parts.size(); ++r) runs.push_back({0, RailIndex(r), r * each, each});
    runs.back().length_bytes += bytes % parts.size();
    start_ = now_;
    out_->Start(runs, /*by_flow=*/false);
  }
  void At(absl::Time time, std::function<void()> what) { events_.emplace(time, std::move(what)); }
  void OnReport(uint32_t rail, const RailEvent& report) {
    if (report.kind == RailEvent::Kind::kDry || report.kind == RailEvent::Kind::kStretch) return;
    const bool returned = report.kind == RailEvent::Kind::kReturned;
    vain_releases_ += report.kind == RailEvent::Kind::kReleased && !returned_;
    returned_ = returned;
    out_->OnReport(RailIndex(rail), report);
  }
  void RunBinder() {
    binder_.Run(now_);
    const absl::Time again = binder_.NextDeadline();
    if (again == absl::InfiniteFuture() || again >= binder_at_) return;
    binder_at_ = again;
    At(again, [this, again] {
      if (binder_at_ != again) return;
      binder_at_ = absl::InfiniteFuture();
      RunBinder();
    });
  }
  void Run() {
    for (uint64_t steps = 0; !events_.empty(); ++steps) {
      ASSERT_LT(steps, 5'000'000u) << "no end";
      const auto next = events_.begin();
      now_ = std::max(now_, next->first);
      const std::function<void()> what = std::move(next->second);
      events_.erase(next);
      what();
    }
    EXPECT_TRUE(out_->over());
    EXPECT_FALSE(out_->held());
    uint64_t carried = 0;
    for (const auto& rail : rails_) carried += rail->carried_bytes;
    EXPECT_EQ(carried, bytes_);
  }
  // How far apart the first and the last rail end, as a part of the whole time.
  double Spread() const {
    absl::Time first = absl::InfiniteFuture(), last = absl::InfinitePast();
    for (const auto& rail : rails_) {
      first = std::min(first, rail->ended);
      last = std::max(last, rail->ended);
    }
    const double spread = absl::FDivDuration(last - first, last - start_);
    std::printf("%zu rails, %s, ends differ by %.2f %%, %llu moves, %llu in vain\n", rails_.size(),
                absl::FormatDuration(last - start_).c_str(), 100 * spread,
                static_cast<unsigned long long>(binder_.moves()), static_cast<unsigned long long>(vain_releases_));
    return spread;
  }
  uint64_t Releases() const {
    uint64_t releases = 0;
    for (const auto& rail : rails_) releases += rail->releases;
    return releases;
  }

  absl::Time now_ = absl::UnixEpoch();
  absl::Time start_;
  uint64_t bytes_ = 0;
  uint64_t vain_releases_ = 0;  // rails gave nothing back
  bool returned_ = false;       // the last report was that
  std::multimap<absl::Time, std::function<void()>> events_;
  TenantTable tenants_{{{"one"}}, nullptr};
  RailBoard board_;
  PeerTable peers_;
  std::vector<RailHandle> handles_;
  std::vector<std::unique_ptr<SimRail>> rails_;
  ExchangeContext context_;
  JobMap jobs_;
  Sending* out_ = nullptr;
  LateBinder binder_{&context_, &jobs_};
  absl::Time binder_at_ = absl::InfiniteFuture();
};

TEST_F(LateBindingTest, ARailAtNineTenthsEndsWithTheOthers) {
  Build({0.9, 1, 1, 1, 1, 1, 1, 1}, 32 * kGiB);
  Run();
  EXPECT_LE(Spread(), 0.01);
  EXPECT_GT(binder_.moves(), 0u);
  EXPECT_LE(binder_.moves(), 50u);
}

// Bytes in flight, and those not worth two messages, are a larger part of a short exchange.
TEST_F(LateBindingTest, EndsDifferByLittleInAShortExchange) {
  Build({0.9, 1, 1, 1, 1, 1, 1, 1}, 2 * kGiB);
  Run();
  EXPECT_LE(Spread() * absl::ToDoubleMicroseconds(now_ - start_), 600);
}

TEST_F(LateBindingTest, ARailAtHalfSpeedEndsWithTheOthers) {
  Build({1, 1, 1, 0.5}, 32 * kGiB);
  Run();
  EXPECT_LE(Spread(), 0.01);
}

TEST_F(LateBindingTest, SeveralSlowRailsEndWithTheOthers) {
  Build({0.9, 1, 0.6, 1, 0.8, 1, 1, 0.3}, 64 * kGiB);
  Run();
  EXPECT_LE(Spread(), 0.01);
}

TEST_F(LateBindingTest, EvenRailsKeepTheirPlan) {
  Build(std::vector<double>(8, 1), 8 * kGiB);
  Run();
  EXPECT_EQ(binder_.moves(), 0u);
  EXPECT_LE(Spread(), 0.01);
  for (const auto& rail : rails_) EXPECT_EQ(rail->carried_bytes, kGiB);
}

TEST_F(LateBindingTest, NothingMovesWithoutLateBinding) {
  Build({0.9, 1, 1, 1, 1, 1, 1, 1}, 8 * kGiB, /*late_binding=*/false);
  Run();
  EXPECT_EQ(binder_.moves(), 0u);
  EXPECT_EQ(Releases(), 0u);
  for (const auto& rail : rails_) EXPECT_EQ(rail->carried_bytes, kGiB);
  EXPECT_GT(Spread(), 0.05);
}

// A release takes weight along, and weight 1 is not split: late binding must not use the weight up before the bytes.
// Posted bytes cannot move.
TEST_F(LateBindingTest, AVerySlowRailDoesNotHoldTheExchangeUp) {
  Build({0.002, 1, 1, 1, 1, 1, 1, 1}, 8 * kGiB);
  Run();
  Spread();
  const absl::Duration ideal = absl::Seconds(static_cast<double>(bytes_) / (7 * kRailSpeed));
  const absl::Duration posted = absl::Seconds(static_cast<double>(board_[0].window_bytes) / (0.002 * kRailSpeed));
  EXPECT_LE(now_ - start_, ideal + 1.2 * posted);
}

// Asking a rail that gives nothing back at the speed of messages would keep both threads busy.
TEST_F(LateBindingTest, ARailThatKeepsItsBytesIsNotAskedAllTheTime) {
  Build({0.002, 1, 1, 1, 1, 1, 1, 1}, 8 * kGiB);
  Run();
  Spread();
  EXPECT_LE(vain_releases_, 100u);
}

// A rail that has posted all may need longer for that than another one for all that it has left.
TEST(RailProgressTest, ARailThatIsBusyForLongerTakesNothing) {
  constexpr uint64_t kMiB = 1 << 20;
  RailProgress slow, fast;
  slow.speed_bytes_per_s = 3e9;
  fast.speed_bytes_per_s = 12e9;
  slow.movable_bytes = fast.movable_bytes = kMiB;
  fast.unposted_bytes = 8 * kMiB;   // 0.7 ms
  slow.in_flight_bytes = 6 * kMiB;  // 2.1 ms
  EXPECT_TRUE(fast.Lags());
  EXPECT_FALSE(fast.EndsAfter(slow));
  slow.in_flight_bytes = 0;
  EXPECT_TRUE(fast.EndsAfter(slow));
  slow.rate_bytes_per_s = 1'000'000;  // as measured while a peer was silent: no reason not to help
  EXPECT_TRUE(fast.EndsAfter(slow));
  fast.unposted_bytes = kMiB / 4;  // less than the slow one needs for what would move
  EXPECT_FALSE(fast.EndsAfter(slow));
}

}  // namespace
}  // namespace railsd::testing
