// Replays without processes: workers as threads, a cluster that copies, and faults.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <nlohmann/json.hpp>
#include <thread>

#include "absl/time/clock.h"
#include "client/railsctl/replay/memory_check.h"
#include "client/railsctl/replay/run.h"
#include "client/railsctl/replay/worker.h"
#include "tests/unit/client/railsctl/fake_client.h"
#include "tests/unit/client/railsctl/text_message.h"

namespace rails::ctl {
namespace {

using ::testing::HasSubstr;

class ReplayTest : public ::testing::Test {
 protected:
  static constexpr uint32_t kNodes = 2, kRanksPerNode = 2, kRanks = kNodes * kRanksPerNode;

  void SetUp() override {
    std::signal(SIGPIPE, SIG_IGN);  // as main() does: workers may have ended
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      int commands[2], events[2];
      ASSERT_EQ(pipe(commands), 0);
      ASSERT_EQ(pipe(events), 0);
      links_.push_back({commands[1], events[0]});
      threads_.emplace_back([this, in = commands[0], out = events[1]] {
        WorkerOptions worker;
        worker.commands_fd = in;
        worker.events_fd = out;
        worker.connect = [this](const ClientOptions& options) { return cluster_.Connect(options); };
        RunWorker(worker);
        close(in);
        close(out);
      });
    }
    CoordinatorOptions options;
    options.ranks_per_node = kRanksPerNode;
    options.timeout = absl::Seconds(20);
    options.how_ended = [](size_t) { return std::string("ended"); };
    coordinator_ = std::make_unique<Coordinator>(links_, options);
  }

  void TearDown() override {
    coordinator_->Quit(0, "");
    for (const WorkerLink& link : links_) close(link.commands_fd);
    for (std::thread& thread : threads_) thread.join();
    for (const WorkerLink& link : links_) close(link.events_fd);
  }

  static std::vector<workload::Step> Steps() {
    std::vector<workload::Step> steps(3);
    for (size_t s = 0; s < steps.size(); ++s) {
      steps[s].model = "test";
      steps[s].dispatch = workload::TrafficMatrix(kRanks);
      for (size_t i = 0; i < kRanks; ++i) {
        for (size_t j = 0; j < kRanks; ++j) steps[s].dispatch.at(i, j) = (i * 7 + j * 3 + s) % 5 * 1001;
      }
    }
    return steps;
  }

  Exchange Plan(uint32_t ranges_per_flow = 3) {
    ExchangeOptions options;
    options.nodes = kNodes;
    options.ranks_per_node = kRanksPerNode;
    options.bytes_per_rank = 0;
    options.ranges_per_flow = ranges_per_flow;
    absl::StatusOr<Exchange> exchange = PlanExchange(Steps(), options);
    EXPECT_TRUE(exchange.ok()) << exchange.status();
    return *std::move(exchange);
  }

  absl::Status Start(const Exchange& exchange) {
    std::vector<StartCommand> commands(kRanks);
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      StartCommand& command = commands[rank] =
          FromText<StartCommand>("group: 'group' seed: 11 timeout_milliseconds: 20000");
      command.set_socket_dir(rank < kRanksPerNode ? "n0" : "n1");
      command.set_rank(rank);
      command.set_world_size(kRanks);
      command.set_send_bytes(exchange.send_segment_bytes);
      command.set_receive_bytes(exchange.receive_segment_bytes);
    }
    return coordinator_->Start(commands);
  }

  // Rails whose counters say what the test wants.
  RunOptions Options() {
    RunOptions options;
    options.ranges_per_flow = 3;
    options.node_speeds = {1e6, 1e6};
    options.read_rails = [this]() -> absl::StatusOr<std::vector<NodeRails>> { return rails_; };
    return options;
  }

  FakeCluster cluster_;
  std::vector<NodeRails> rails_ = {{"n0", {{"rail0", 500'000, 0, 0}, {"rail1", 500'000, 0, 0}}},
                                   {"n1", {{"rail0", 500'000, 0, 0}, {"rail1", 500'000, 0, 0}}}};
  std::vector<WorkerLink> links_;
  std::vector<std::thread> threads_;
  std::unique_ptr<Coordinator> coordinator_;
  ReplayReport report_;
};

TEST_F(ReplayTest, EveryByteRight) {
  const Exchange exchange = Plan();
  ASSERT_TRUE(Start(exchange).ok());
  EXPECT_EQ(coordinator_->nodes()[3], "n1");
  ASSERT_TRUE(RunExchange(exchange, Options(), coordinator_.get(), &report_).ok());
  EXPECT_TRUE(report_.verified());
  EXPECT_EQ(report_.steps.size(), 3u);
  EXPECT_EQ(cluster_.finished.size(), 8u);  // one step of warm-up, three counted, two phases each
  const nlohmann::ordered_json json = ReplayJson(report_);
  EXPECT_EQ(json["verified"], true);
  EXPECT_EQ(json["steps"], 3);
  uint64_t network = 0;
  for (const auto& step : exchange.steps) network += 2 * step.phases[0].bytes.network;
  EXPECT_EQ(json["bytes"], network);
  EXPECT_GT(json["bound_seconds"], 0);
}

TEST_F(ReplayTest, WithoutBarrier) {
  const Exchange exchange = Plan();
  ASSERT_TRUE(Start(exchange).ok());
  RunOptions options = Options();
  options.barrier = false;
  ASSERT_TRUE(RunExchange(exchange, options, coordinator_.get(), &report_).ok());
  EXPECT_TRUE(report_.verified());
}

TEST_F(ReplayTest, OneFlippedByteIsFoundAndNamed) {
  const Exchange exchange = Plan();
  cluster_.after_copy = [](uint64_t seq, std::map<uint32_t, AllToAllv>& parts) {
    if (seq != 4) return;  // the combine of step 0, after the warm-up
    const FlowRanges& flow = parts.at(2).receives.at(1);
    flow.ranges.at(1).segment->bytes()[flow.ranges.at(1).offset_bytes + 5] ^= std::byte{1};
  };
  ASSERT_TRUE(Start(exchange).ok());
  ASSERT_TRUE(RunExchange(exchange, Options(), coordinator_.get(), &report_).ok());
  EXPECT_FALSE(report_.verified());
  EXPECT_EQ(report_.wrong_bytes, 1u);
  ASSERT_TRUE(report_.first_wrong.has_value());
  EXPECT_EQ(report_.first_wrong->receiving_rank, 2u);
  EXPECT_EQ(report_.first_wrong->phase, "combine");
  EXPECT_EQ(report_.first_wrong->step, 0u);
  EXPECT_FALSE(report_.first_wrong->warmup);
  EXPECT_FALSE(report_.first_wrong->byte.guard());
  EXPECT_EQ(report_.first_wrong->byte.expected() ^ 1, report_.first_wrong->byte.got());
  EXPECT_EQ(cluster_.finished.size(), 4u);  // nothing is run after wrong bytes
  EXPECT_THAT(DescribeWrongBytes(report_), HasSubstr("received by rank 2 from rank"));
}

TEST_F(ReplayTest, AByteBesideTheRangesIsFound) {
  const Exchange exchange = Plan();
  cluster_.after_copy = [](uint64_t seq, std::map<uint32_t, AllToAllv>& parts) {
    if (seq != 1) return;
    const Range& range = parts.at(1).receives.at(0).ranges.at(0);
    range.segment->bytes()[range.offset_bytes + range.length_bytes] = std::byte{0};
  };
  ASSERT_TRUE(Start(exchange).ok());
  ASSERT_TRUE(RunExchange(exchange, Options(), coordinator_.get(), &report_).ok());
  EXPECT_EQ(report_.wrong_bytes, 1u);
  EXPECT_TRUE(report_.first_wrong->byte.guard());
  EXPECT_TRUE(report_.first_wrong->warmup);
}

TEST_F(ReplayTest, SwappedRangesAndStaleBytesAreFound) {
  const Exchange exchange = Plan();
  cluster_.after_copy = [](uint64_t seq, std::map<uint32_t, AllToAllv>& parts) {
    if (seq != 1) return;
    for (const FlowRanges& flow : parts.at(0).receives) {
      std::byte* a = flow.ranges.at(0).segment->bytes().data() + flow.ranges.at(0).offset_bytes;
      std::byte* b = flow.ranges.at(1).segment->bytes().data() + flow.ranges.at(1).offset_bytes;
      std::swap_ranges(a, a + 100, b);
    }
  };
  ASSERT_TRUE(Start(exchange).ok());
  ASSERT_TRUE(RunExchange(exchange, Options(), coordinator_.get(), &report_).ok());
  EXPECT_GT(report_.wrong_bytes, 150u);
  // Go on with a cluster that does not move a byte any more: what lies there is from the phase before.
  cluster_.after_copy = nullptr;
  cluster_.lose_bytes = true;
  const absl::StatusOr<PhaseOutcome> outcome =
      coordinator_->RunPhase({.job = 99, .ranks = &exchange.steps[0].phases[0].ranks});
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_GT(outcome->wrong_bytes, exchange.steps[0].phases[0].ranks.Total() * 9 / 10);
}

TEST_F(ReplayTest, AFailedJobNamesTheRankAndTheNode) {
  const Exchange exchange = Plan();
  cluster_.outcome = [](uint64_t seq, uint32_t rank) {
    return seq == 3 && rank == 3 ? absl::UnavailableError("node n0 is lost") : absl::OkStatus();
  };
  ASSERT_TRUE(Start(exchange).ok());
  const absl::Status status = RunExchange(exchange, Options(), coordinator_.get(), &report_);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("step 0, dispatch: rank 3 on node n1 failed"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("node n0 is lost"));
}

TEST_F(ReplayTest, ADaemonThatIsNotThereIsUnavailable) {
  cluster_.connect_status = absl::UnavailableError("nobody at n0");
  const absl::Status status = Start(Plan());
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("could not connect"));
}

TEST_F(ReplayTest, RailsAreFromTheJobsWhenOthersUseThem) {
  const Exchange exchange = Plan();
  ASSERT_TRUE(Start(exchange).ok());
  RunOptions options = Options();
  options.warmup = 0;
  int readings = 0;
  options.read_rails = [&]() -> absl::StatusOr<std::vector<NodeRails>> {
    std::vector<NodeRails> rails = rails_;
    if (readings++ > 0) rails[0].rails[0].tx_bytes = 123;
    return rails;
  };
  ASSERT_TRUE(RunExchange(exchange, options, coordinator_.get(), &report_).ok());
  EXPECT_TRUE(report_.rails_from_counters);  // the fake jobs do not add up either
  EXPECT_EQ(report_.rails[0].rails[0].tx_bytes, 123u);
}

// Over verbs a receiver hears up to 10 ms after a job what its rails have carried.
TEST_F(ReplayTest, RailsAreCountedFromTheEndOfTheWarmUp) {
  const Exchange exchange = Plan();
  ASSERT_TRUE(Start(exchange).ok());
  RunOptions options = Options();
  options.warmup = 1;
  const auto bytes_of = [](const ExchangeStep& step) {
    uint64_t bytes = 0;
    for (const Phase& phase : step.phases) bytes += phase.bytes.network;
    return bytes;
  };
  const uint64_t warm_up = bytes_of(exchange.steps[0]);
  uint64_t counted = 0;
  for (const ExchangeStep& step : exchange.steps) counted += bytes_of(step);
  ASSERT_GT(warm_up, 0u);
  int readings = 0;
  options.read_rails = [&]() -> absl::StatusOr<std::vector<NodeRails>> {
    std::vector<NodeRails> rails = rails_;
    const int reading = readings++;  // 0: before; 1: too early; 2: the warm-up is there; 3: all is
    const uint64_t so_far = reading < 2 ? 0 : reading == 2 ? warm_up : warm_up + counted;
    rails[0].rails[1].tx_bytes = rails[1].rails[1].rx_bytes = so_far;
    return rails;
  };
  ASSERT_TRUE(RunExchange(exchange, options, coordinator_.get(), &report_).ok());
  EXPECT_TRUE(report_.rails_from_counters);
  EXPECT_EQ(report_.rails[0].rails[1].tx_bytes, counted);
  EXPECT_EQ(report_.rails[1].rails[1].rx_bytes, counted);
  EXPECT_EQ(readings, 4);
}

TEST(CoordinatorTest, WorkersThatSayNonsenseOrDieAreNamed) {
  struct Case {
    std::string says;
    const char* expected;
  };
  std::signal(SIGPIPE, SIG_IGN);
  for (const Case& c :
       {Case{Encode(Event()), "sent an invalid event"}, Case{EncodeAs<Event>(ReadyEvent()), "out of turn"},
        Case{"nonsense", "no message of a replay: \"nonsense\""}, Case{"", "was killed"},
        Case{"\1", "in the middle of a message"},
        Case{EncodeAs<Event>(FromText<ConnectedEvent>("node: 'n0'")) + "nonsense",
             "no message of a replay: \"nonsense\""}}) {
    int commands[2], events[2];
    ASSERT_EQ(pipe(commands), 0);
    ASSERT_EQ(pipe(events), 0);
    ASSERT_TRUE(write(events[1], c.says.data(), c.says.size()) >= 0);
    close(events[1]);
    CoordinatorOptions options;
    options.how_ended = [](size_t) { return std::string("was killed"); };
    Coordinator coordinator({WorkerLink{commands[1], events[0]}}, options);
    const absl::Status status = coordinator.Start({StartCommand{}});
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 0")) << c.says;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.expected)) << c.says;
    close(commands[0]);
    close(commands[1]);
    close(events[0]);
  }
}

TEST(CoordinatorTest, InterruptEndsTheWait) {
  int commands[2], events[2], interrupt[2];
  ASSERT_EQ(pipe(commands), 0);
  ASSERT_EQ(pipe(events), 0);
  ASSERT_EQ(pipe(interrupt), 0);
  ASSERT_EQ(write(interrupt[1], "x", 1), 1);
  CoordinatorOptions options;
  options.interrupt_fd = interrupt[0];
  Coordinator coordinator({WorkerLink{commands[1], events[0]}}, options);
  EXPECT_EQ(coordinator.Start({StartCommand{}}).code(), absl::StatusCode::kCancelled);
  for (int fd : {commands[0], commands[1], events[0], events[1], interrupt[0], interrupt[1]}) close(fd);
}

TEST(BuffersOfAll, AreSummedWithoutOverflow) {
  EXPECT_EQ(BuffersOfAll(3, 5, 7), 36u);
  EXPECT_EQ(BuffersOfAll(2, ~uint64_t{0}, 1), ~uint64_t{0});
  EXPECT_EQ(BuffersOfAll(4, uint64_t{1} << 62, 0), ~uint64_t{0});
}

TEST(FitsMemory, RefusesWhatTheMachineDoesNotHave) {
  constexpr absl::string_view kMeminfo = "MemTotal:       16000000 kB\nMemAvailable:    1048576 kB\nBuffers: 1 kB\n";
  EXPECT_TRUE(FitsMemory(kMeminfo, uint64_t{1} << 30).ok());
  const absl::Status refused = FitsMemory(kMeminfo, uint64_t{1} << 31);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.message(), HasSubstr("need 2.00 GiB, and 1.00 GiB of this machine's memory are free"));
  EXPECT_TRUE(FitsMemory("", ~uint64_t{0}).ok());
  EXPECT_TRUE(FitsMemory("MemAvailable: many kB\n", ~uint64_t{0}).ok());
}

}  // namespace
}  // namespace rails::ctl
