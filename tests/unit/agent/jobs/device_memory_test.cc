// Jobs over segments in the memory of a device: only rails touch their bytes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/dma_bufs.h"
#include "tests/support/seeds.h"
#include "tests/unit/agent/jobs/cluster.h"

namespace railsd::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint64_t kEager = 4096;
constexpr SegmentId kDeviceSends(8), kDeviceReceives(9);

AgentCounters CountersOf(Cluster& cluster, size_t n) { return cluster.node(n).engine->Snapshot(0).counters; }

// An exchange in which some buffers are memory of a device.
class DeviceExchange {
 public:
  DeviceExchange(Cluster* cluster, const Lengths& lengths)
      : cluster_(*cluster), exchange_(cluster, static_cast<uint32_t>(lengths.size()), "g"), lengths_(lengths) {
    exchange_.SetLengths(lengths_, 1);
  }
  // From now on the rank sends from a device, or receives into one.
  void Send(uint32_t rank) { Replace(rank, &exchange_.trainer(rank).send, kDeviceSends); }
  void Receive(uint32_t rank) { Replace(rank, &exchange_.trainer(rank).receive, kDeviceReceives); }
  Submission For(uint32_t rank, uint64_t seq) {
    Submission submission = exchange_.For(rank, seq, 2);
    if (sends_.contains(rank)) Rename(&submission.sends, kDeviceSends);
    if (receives_.contains(rank)) Rename(&submission.receives, kDeviceReceives);
    return submission;
  }
  absl::Status Submit(uint32_t rank, uint64_t seq) { return exchange_.trainer(rank).Submit(For(rank, seq)); }
  void ExpectDone(uint64_t seq) {
    cluster_.Run();
    for (uint32_t rank = 0; rank < exchange_.world(); ++rank) {
      const auto report = exchange_.trainer(rank).Wait(seq);
      ASSERT_TRUE(report->ok()) << report->status();
      EXPECT_EQ((*report)->state, JobState::kDone) << (*report)->status;
      EXPECT_EQ((*report)->bytes_sent, (*report)->bytes_to_send);
      EXPECT_EQ((*report)->bytes_received, (*report)->bytes_to_receive);
    }
    exchange_.ExpectBytes();
    cluster_.ExpectNothingOpen();
  }
  void RunJob(uint64_t seq) {
    exchange_.SetLengths(lengths_, seq);
    for (uint32_t rank = 0; rank < exchange_.world(); ++rank) {
      const absl::Status submitted = Submit(rank, seq);
      ASSERT_TRUE(submitted.ok()) << submitted;
    }
    ExpectDone(seq);
  }
  JobReport Report(uint32_t rank, uint64_t seq) { return **exchange_.trainer(rank).Wait(seq); }
  Trainer& trainer(uint32_t rank) { return exchange_.trainer(rank); }

 private:
  void Replace(uint32_t rank, std::unique_ptr<Buffer>* buffer, SegmentId id) {
    auto device = std::make_unique<Buffer>((*buffer)->size());
    PassForDmaBuf(device->Dup().get());
    const Trainer& trainer = exchange_.trainer(rank);
    const auto segment = cluster_.AddSegment(trainer.node, trainer.session, id.value(), *device);
    ASSERT_EQ(segment->kind(), MemoryKind::kDmaBuf);
    *buffer = std::move(device);
    (id == kDeviceSends ? sends_ : receives_).insert(rank);
    exchange_.SetLengths(lengths_, 1);
  }
  static void Rename(std::vector<FlowRanges>* flows, SegmentId id) {
    for (FlowRanges& flow : *flows) {
      for (Range& range : flow.ranges) range.segment = id;
    }
  }
  Cluster& cluster_;
  Exchange exchange_;
  const Lengths lengths_;
  std::set<uint32_t> sends_, receives_;
};

TEST(DeviceMemoryTest, RailsCarryWhatAnyEndHasInTheMemoryOfADevice) {
  for (const auto& [sends, receives] : {std::pair(true, false), {false, true}, {true, true}}) {
    Cluster cluster({.remote = true, .eager_bytes = kEager});
    DeviceExchange exchange(&cluster, AllLengths(2, 100));
    if (sends) exchange.Send(0);
    if (receives) exchange.Receive(1);
    exchange.RunJob(1);
    const JobReport sender = exchange.Report(0, 1), receiver = exchange.Report(1, 1);
    EXPECT_EQ(sender.eager_sent_bytes, 0u);
    EXPECT_EQ(receiver.eager_received_bytes, 0u);
    EXPECT_EQ(CountersOf(cluster, 1).eager_received, 0u);
    EXPECT_EQ(sender.eager_received_bytes + receiver.eager_sent_bytes, 0u)
        << "no flow of a submission with device memory is eager";
  }
}

// The zone is cut to what READY says, and is still memory of a device.
TEST(DeviceMemoryTest, CapacitiesThatAreNotFilled) {
  for (const uint64_t bytes : {uint64_t{100}, 2 * kEager}) {
    Cluster cluster({.remote = true, .eager_bytes = kEager});
    DeviceExchange exchange(&cluster, AllLengths(2, bytes));
    exchange.Receive(1);
    for (const uint32_t rank : {0u, 1u}) {
      Submission submission = exchange.For(rank, 1);
      submission.capacities = true;
      for (FlowRanges& flow : submission.receives) {
        flow.ranges.push_back({flow.ranges[0].segment, 50000, 700});
      }
      const absl::Status submitted = exchange.trainer(rank).Submit(submission);
      ASSERT_TRUE(submitted.ok()) << submitted;
    }
    exchange.ExpectDone(1);
    EXPECT_EQ(CountersOf(cluster, 1).eager_received, 0u);
  }
}

// The receiver's READY may come before the sender's is made, or after it was acknowledged.
TEST(DeviceMemoryTest, EagerBytesForADeviceAreSentAgainOverRails) {
  for (const bool sender_first : {false, true}) {
    Cluster cluster({.remote = true, .eager_bytes = kEager});
    Lengths lengths = AllLengths(2, 100);
    DeviceExchange exchange(&cluster, lengths);
    exchange.Receive(1);
    ASSERT_TRUE(exchange.Submit(sender_first ? 0 : 1, 1).ok());
    cluster.Run();
    if (sender_first) {
      EXPECT_EQ(CountersOf(cluster, 0).eager_sent, 1u) << "it does not know where its bytes go";
      EXPECT_FALSE(exchange.trainer(0).Wait(1)->ok()) << "it waits for the receiver's READY";
    }
    ASSERT_TRUE(exchange.Submit(sender_first ? 1 : 0, 1).ok());
    exchange.ExpectDone(1);
    EXPECT_EQ(CountersOf(cluster, 0).eager_sent, sender_first ? 1u : 0u);
    EXPECT_EQ(exchange.Report(0, 1).eager_sent_bytes, 0u);
    EXPECT_EQ(CountersOf(cluster, 1).eager_received, 0u);
  }
}

TEST(DeviceMemoryTest, AnyOrderOfMessagesAndRailsThatFail) {
  for (const uint64_t seed : Seeds(60)) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    Cluster cluster({.remote = true, .nodes = 3, .seed = seed, .eager_bytes = kEager});
    Lengths lengths = AllLengths(3, 0);
    for (auto& row : lengths) {
      for (uint64_t& length : row) length = random() % 3 == 0 ? 0 : random() % (2 * kEager);
    }
    for (uint32_t rank = 0; rank < 3; ++rank) lengths[rank][rank] = 0;
    DeviceExchange exchange(&cluster, lengths);
    for (uint32_t rank = 0; rank < 3; ++rank) {
      if (random() % 2 == 0) exchange.Send(rank);
      if (random() % 2 == 0) exchange.Receive(rank);
    }
    for (uint64_t seq = 1; seq <= 4; ++seq) exchange.RunJob(seq);
    for (uint32_t rank = 0; rank < 3; ++rank) ASSERT_TRUE(exchange.Submit(rank, 5).ok());
    cluster.FailRails(3, random);
    exchange.ExpectDone(5);
  }
}

TEST(DeviceMemoryTest, FlowsBetweenRanksOfANodeAreRefused) {
  Cluster cluster({.remote = true});
  DeviceExchange exchange(&cluster, AllLengths(4, 100));  // ranks 1 and 3 are on n1
  exchange.Send(1);
  absl::Status refused = exchange.Submit(1, 1);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
  EXPECT_THAT(refused.message(), AllOf(HasSubstr("sends: the flow from rank 1 on n1 to rank 3 on n1"),
                                       HasSubstr("segment 8, a dma-buf"), HasSubstr("copy these bytes on the device")));
  exchange.Receive(3);
  refused = exchange.Submit(3, 1);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
  EXPECT_THAT(refused.message(), AllOf(HasSubstr("receives: the flow from rank 1 on n1 to rank 3 on n1"),
                                       HasSubstr("segment 9, a dma-buf")));
  ASSERT_TRUE(exchange.Submit(0, 1).ok());
  ASSERT_TRUE(exchange.Submit(2, 1).ok()) << "memory of the host";
}

TEST(DeviceMemoryTest, WithoutFlowsOnTheNodeItGoes) {
  Cluster cluster({.remote = true});
  Lengths lengths = AllLengths(4, 100);
  for (uint32_t a = 0; a < 4; ++a) lengths[a][(a + 2) % 4] = 0;
  DeviceExchange exchange(&cluster, lengths);
  for (uint32_t rank = 0; rank < 4; ++rank) exchange.Send(rank), exchange.Receive(rank);
  exchange.RunJob(1);
  exchange.RunJob(2);
}

// Jobs of a prepared exchange are refused for the bytes that they move, not for those that were prepared.
TEST(DeviceMemoryTest, APreparedFlowOnTheNodeMayBeLeftOut) {
  for (const uint64_t used : {60, 0}) {
    Cluster cluster({.remote = true});
    DeviceExchange exchange(&cluster, AllLengths(4, 100));
    exchange.Send(0);
    Trainer& trainer = exchange.trainer(0);
    Submission layout = exchange.For(0, 1);
    layout.job.seq = JobSeq(0);
    layout.session = trainer.session;
    layout.prepared = PreparedId(1);
    const auto on_node = std::find_if(layout.sends.begin(), layout.sends.end(),
                                      [](const FlowRanges& flow) { return flow.peer == Rank(2); });
    on_node->ranges = {{SegmentId(1), 0, 60}, {kDeviceSends, 0, 40}};
    Engine& engine = *cluster.node(trainer.node).engine;
    absl::Status kept = absl::UnknownError("no answer");
    engine.KeepPrepared(engine.CheckLayout(layout), [&](absl::Status s) { kept = std::move(s); });
    ASSERT_TRUE(kept.ok()) << kept;
    Submission submission;
    submission.prepared = layout.prepared;
    submission.job = {trainer.group->epoch, JobSeq(1)};
    submission.rank = Rank(0);
    std::vector<uint64_t> lengths(6, 100);
    submission.lengths_bytes = lengths;
    uint64_t& bytes = lengths[static_cast<size_t>(on_node - layout.sends.begin())];
    for (const uint64_t refused : {100, 61}) {
      bytes = refused;
      EXPECT_THAT(trainer.Submit(submission).message(), HasSubstr("from rank 0 on n0 to rank 2 on n0 uses segment 8"));
    }
    bytes = used;  // all of them in memory of the host
    const absl::Status taken = trainer.Submit(submission);
    EXPECT_TRUE(taken.ok()) << taken;
  }
}

TEST(DeviceMemoryTest, ARankMayKeepItsOwnBytesWhereTheyAre) {
  Cluster cluster({.remote = true});
  DeviceExchange exchange(&cluster, AllLengths(2, 100));
  exchange.Send(0);
  Submission submission = exchange.For(0, 1);
  submission.sends.push_back({Rank(0), {{kDeviceSends, 5000, 100}}});
  submission.receives.push_back({Rank(0), {{SegmentId(2), 5000, 100}}});
  const absl::Status refused = exchange.trainer(0).Submit(submission);
  EXPECT_THAT(refused.message(), HasSubstr("sends: the flow from rank 0 on n0 to rank 0 on n0 uses segment 8"));
  submission.receives.back().ranges = submission.sends.back().ranges;
  const absl::Status taken = exchange.trainer(0).Submit(submission);
  EXPECT_TRUE(taken.ok()) << taken;
}

TEST(DeviceMemoryTest, AFaultOfAFlushFailsTheJobWithItsReason) {
  Cluster cluster({.remote = true});
  DeviceExchange exchange(&cluster, AllLengths(2, 100));
  exchange.Receive(1);
  for (const auto& rail : cluster.node(1).rails) {
    rail->watched.on_event = [](RailEvent& event) {
      if (event.kind == RailEvent::Kind::kFence)
        event = {
            .kind = RailEvent::Kind::kReceiveFault, .peer = event.peer, .error_number = EACCES, .zone = event.zone};
    };
  }
  ASSERT_TRUE(exchange.Submit(0, 1).ok());
  ASSERT_TRUE(exchange.Submit(1, 1).ok());
  cluster.Run();
  const JobReport report = exchange.Report(1, 1);
  EXPECT_EQ(report.state, JobState::kFailed);
  EXPECT_THAT(report.status.message(),
              AllOf(HasSubstr("of n1 cannot read back what it wrote into the memory of a device"),
                    HasSubstr("Permission denied")));
}

TEST(DeviceMemoryTest, BytesTakenBackForAPeerThatNoRailReachesFailAsSoonAsOthers) {
  for (const uint64_t eager : {uint64_t{0}, kEager}) {
    SCOPED_TRACE(eager);
    Cluster cluster({.remote = true, .eager_bytes = eager});
    Lengths lengths = AllLengths(2, 0);
    lengths[0][1] = 100;
    DeviceExchange exchange(&cluster, lengths);
    exchange.Receive(1);
    for (const size_t node : {0, 1}) {
      for (const size_t rail : {0, 1}) cluster.fabric().Fail(cluster.AddressOf(node, rail));
    }
    cluster.Run();
    ASSERT_TRUE(exchange.Submit(0, 1).ok());
    cluster.Run();
    cluster.RunFor(absl::Seconds(1));
    ASSERT_TRUE(exchange.Submit(1, 1).ok());
    cluster.Run();
    const auto report = exchange.trainer(0).Wait(1);
    for (int second = 0; second < 20 && !report->ok(); ++second) cluster.RunFor(absl::Seconds(1));
    ASSERT_TRUE(report->ok()) << "it waits for its own deadline";
    EXPECT_EQ((*report)->status.code(), absl::StatusCode::kUnavailable) << (*report)->status;
    EXPECT_THAT((*report)->status.message(), HasSubstr("no rail of n0 has reached n1"));
  }
}

TEST(DeviceMemoryTest, AFaultOfHostMemoryIsNotToldAsOneOfADevice) {
  Cluster cluster({.remote = false});
  Exchange exchange(&cluster, "g", AllLengths(2, 5000));
  Buffer buffer(8192);
  const auto segment = cluster.AddSegment(0, exchange.trainer(0).session, 9, buffer);
  const UniqueFd empty(::memfd_create("empty", MFD_CLOEXEC));
  ASSERT_NE(::mmap(segment->base(), 8192, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, empty.get(), 0), MAP_FAILED);
  for (const uint32_t rank : {0u, 1u}) {
    Submission submission = exchange.For(rank, 1);
    if (rank == 0) submission.receives[0].ranges = {{SegmentId(9), 0, 5000}};
    ASSERT_TRUE(exchange.trainer(rank).Submit(submission).ok());
  }
  cluster.Run();
  EXPECT_THAT(exchange.Report(0, 1).status.message(),
              HasSubstr("a page of a receive range on n0 cannot be written (rank 0)"));
}

}  // namespace
}  // namespace railsd::testing
