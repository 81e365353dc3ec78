// The cost of a job on the engine's thread, which all tenants of the node share, grows with the flows that were
// submitted and not with the pairs of ranks that exist. Measured by allocations, because every flow needs some.
#include <gtest/gtest.h>
#include <malloc.h>

#include <utility>
#include <vector>

#include "tests/support/allocations.h"
#include "tests/unit/agent/jobs/cluster.h"

namespace railsd::testing {
namespace {

constexpr uint32_t kWorld = 4096;  // AgentLimits::max_world_size

// Ranks of one session on each node, rank r on node r % nodes, which share a segment to send from and one to receive
// into.
class LargeWorld {
 public:
  explicit LargeWorld(Cluster* cluster) : cluster_(cluster), send_(4 << 20), receive_(4 << 20) {
    std::vector<SessionId> sessions;
    for (size_t n = 0; n < cluster->size(); ++n) {
      sessions.push_back(cluster->OpenSession(n));
      cluster->AddSegment(n, sessions[n], 1, send_);
      cluster->AddSegment(n, sessions[n], 2, receive_);
    }
    for (uint32_t r = 0; r < kWorld; ++r) {
      const size_t n = r % cluster->size();
      trainers_.push_back({cluster, n, Rank(r), sessions[n], nullptr, nullptr});
    }
    for (Trainer& trainer : trainers_) {
      trainer.Join("large", kWorld);
      DeliverAll();
    }
    DeliverAll();  // the commit
    for (const Trainer& trainer : trainers_) EXPECT_TRUE(trainer.group.ok()) << trainer.group.status();
  }

  // Each rank sends 64 bytes to the ranks so far behind it, and expects them likewise.
  Submission For(uint32_t rank, const std::vector<uint32_t>& steps) const {
    Submission submission;
    submission.job = {trainers_[rank].group->epoch, JobSeq(1)};
    submission.rank = Rank(rank);
    for (const uint32_t step : steps) {
      const uint64_t at = 64 * (submission.sends.size() + 16 * rank);
      submission.sends.push_back({Rank((rank + step) % kWorld), {{SegmentId(1), at, 64}}});
      submission.receives.push_back({Rank((rank + kWorld - step) % kWorld), {{SegmentId(2), at, 64}}});
    }
    return submission;
  }
  void Submit(Submission submission) {
    Trainer& trainer = trainers_[submission.rank.value()];
    const absl::Status submitted = trainer.Submit(std::move(submission));
    ASSERT_TRUE(submitted.ok()) << submitted;
  }
  JobReport Report(uint32_t rank) {
    const auto report = trainers_[rank].Wait(1);
    if (report->ok()) return **report;
    JobReport none;
    none.status = report->status();
    return none;
  }

  // In order and at once: Run() delivers one of many at random.
  void DeliverAll() {
    for (size_t n = 0; n < cluster_->size(); ++n) {
      for (auto& [to, message] : std::exchange(cluster_->node(n).outbox, {})) {
        for (size_t m = 0; m < cluster_->size(); ++m) {
          Node& node = cluster_->node(m);
          if (node.name == to) {
            node.engine->OnPeerMessage(cluster_->node(n).name, cluster_->node(n).boot, std::move(message));
          }
        }
      }
    }
  }

 private:
  Cluster* const cluster_;
  Buffer send_;
  Buffer receive_;
  std::vector<Trainer> trainers_;
};

// Counts what `body`, the last submission, allocates: it begins the job.
template <typename Body>
Allocations CostOf(Body body) {
  const Allocations before = AllocationsSoFar();
  body();
  const Allocations after = AllocationsSoFar();
  return {after.count - before.count, after.bytes - before.bytes};
}

TEST(JobCostTest, ManyRanksOfOneNodeWithAFewFlows) {
  Cluster cluster({.nodes = 1, .rails = 1});
  LargeWorld world(&cluster);
  // In an order of their own.
  const std::vector<uint32_t> steps = {5, 4000, 1};
  for (uint32_t r = 0; r + 1 < kWorld; ++r) world.Submit(world.For(r, steps));
  const Allocations cost = CostOf([&] { world.Submit(world.For(kWorld - 1, steps)); });
  EXPECT_LT(cost.count, 32 * 3 * kWorld);
  EXPECT_LT(cost.bytes, 8192 * 3 * kWorld);
  cluster.Run();
  for (uint32_t r = 0; r < kWorld; r += 100) {
    const JobReport report = world.Report(r);
    EXPECT_EQ(report.state, JobState::kDone) << report.status;
    EXPECT_EQ(report.bytes_received, 3 * 64u);
  }
}

TEST(JobCostTest, ManyRanksOfManyNodesWithAFewFlows) {
  Cluster cluster({.nodes = 8, .rails = 1});
  LargeWorld world(&cluster);
  const std::vector<uint32_t> steps = {9};  // from each node to the next
  for (uint32_t r = 0; r + 8 < kWorld; ++r) world.Submit(world.For(r, steps));
  for (uint32_t r = kWorld - 8; r < kWorld; ++r) {
    const Allocations cost = CostOf([&] { world.Submit(world.For(r, steps)); });
    EXPECT_LT(cost.count, 32 * kWorld / 8);
    EXPECT_LT(cost.bytes, 8192 * kWorld / 8);
  }
  for (size_t n = 0; n < cluster.size(); ++n) {
    size_t flows = 0;
    for (const Ready* ready : Outgoing<Ready>(cluster, n)) flows += ready->sends.size();
    EXPECT_EQ(flows, kWorld / 8);
  }
  const Allocations cost = CostOf([&] { world.DeliverAll(); });
  EXPECT_LT(cost.count, 64 * kWorld);
  EXPECT_LT(cost.bytes, 8192 * kWorld);
  cluster.Run();
  for (uint32_t r = 0; r < kWorld; r += 100)
    EXPECT_EQ(world.Report(r).state, JobState::kDone) << world.Report(r).status;
}

// A READY waits for ranks of its receiver, but the tallies that came with it do not: HeldReadys does not count them.
TEST(JobCostTest, AReadyThatIsHeldKeepsNoTallies) {
  constexpr uint64_t kReadys = 16;
  Cluster cluster({.remote = true, .nodes = 2, .rails = 2});
  Exchange exchange(&cluster, "g", AllLengths(2, 1000));
  cluster.Run();
  const Epoch epoch = exchange.trainer(0).group->epoch;
  const auto held_after = [&](uint64_t first, size_t tallies) {
    const size_t before = mallinfo2().uordblks + mallinfo2().hblkhd;
    for (uint64_t seq = first; seq < first + kReadys; ++seq) {
      Ready ready;
      ready.job = {epoch, JobSeq(seq)};
      ready.sends = {{Rank(1), Rank(0), 1000}};
      ready.receives = {{Rank(0), Rank(1), 1000}};
      ready.tallies.resize(tallies, {{epoch, JobSeq(1'000'000)}, std::vector<uint64_t>(64, 1)});
      cluster.node(1).outbox.emplace_back(cluster.node(0).name, std::move(ready));
      cluster.Run();
    }
    return mallinfo2().uordblks + mallinfo2().hblkhd - before;
  };
  const size_t without = held_after(1, 0);
  EXPECT_LT(held_after(1 + kReadys, Ready::kMaxTallies), without + kReadys * Ready::kMaxTallies * sizeof(Tally) / 4);
}

// Work that grows with the number of ranges is done by the thread that took the call.
TEST(JobCostTest, EngineDoesNotLookAtRanges) {
  constexpr uint64_t kRanges = 50'000;
  Cluster cluster({.nodes = 1, .rails = 1});
  Exchange exchange(&cluster, "g", AllLengths(2, 2 * kRanges));
  Engine& engine = *cluster.node(0).engine;
  for (uint32_t rank : {0u, 1u}) {
    Submission submission = exchange.For(rank, 1, kRanges);
    submission.session = exchange.trainer(rank).session;
    // Every second byte, so that no range continues the one before.
    for (auto* flows : {&submission.sends, &submission.receives}) {
      for (Range& range : flows->front().ranges) range.length_bytes = 1;
    }
    submission.receives.front().ranges.resize(submission.sends.front().ranges.size());
    ASSERT_EQ(submission.sends.front().ranges.size(), kRanges);
    CheckedSubmission checked = engine.Check(submission);
    const Allocations cost =
        CostOf([&] { engine.Submit(std::move(checked), [](absl::Status s) { EXPECT_TRUE(s.ok()) << s; }); });
    EXPECT_LT(cost.bytes, 8 * kRanges);
  }
  cluster.Run();
  EXPECT_EQ((*exchange.trainer(0).Wait(1))->state, JobState::kDone);
}

// A job of a prepared exchange costs the same whatever its ranges. Its check allocates the shorter lengths of its flows
// and a claim on its memory; the rest is what any job costs.
TEST(JobCostTest, APreparedJobCostsByFlow) {
  std::vector<uint64_t> counts;
  for (const size_t pieces : {1u, 1000u}) {
    Cluster cluster({.nodes = 2, .rails = 1});
    Exchange exchange(&cluster, "g", AllLengths(2, 4000));
    for (uint32_t rank : {0u, 1u}) {
      Submission layout = exchange.For(rank, 1, pieces);
      layout.session = exchange.trainer(rank).session;
      layout.prepared = PreparedId(1);
      Engine& engine = *cluster.node(rank).engine;
      engine.KeepPrepared(engine.CheckLayout(layout), [](absl::Status s) { EXPECT_TRUE(s.ok()) << s; });
    }
    const auto submit = [&](uint32_t rank, uint64_t seq, absl::Span<const uint64_t> lengths) {
      Engine& engine = *cluster.node(rank).engine;
      Submission submission;
      submission.session = exchange.trainer(rank).session;
      submission.job = {exchange.trainer(rank).group->epoch, JobSeq(seq)};
      submission.rank = Rank(rank);
      submission.prepared = PreparedId(1);
      submission.lengths_bytes = lengths;
      CheckedSubmission checked;
      const Allocations check = CostOf([&] { checked = engine.Check(submission); });
      if (seq > 8) {
        EXPECT_EQ(check.count, lengths.empty() ? 1u : 2u);
      }
      return CostOf([&] { engine.Submit(std::move(checked), [](absl::Status s) { EXPECT_TRUE(s.ok()) << s; }); });
    };
    const std::vector<uint64_t> half(2, 2000);
    for (uint64_t seq = 1; seq <= 12; ++seq) {
      const Allocations engine = submit(0, seq, seq % 2 == 0 ? half : std::vector<uint64_t>());
      submit(1, seq, seq % 2 == 0 ? half : std::vector<uint64_t>());
      cluster.Run();
      if (seq > 8) counts.push_back(engine.count);
    }
    EXPECT_EQ((*exchange.trainer(0).Wait(12))->state, JobState::kDone);
  }
  EXPECT_LE(counts.back(), 40u);
  for (size_t i = 0; i < counts.size() / 2; ++i) EXPECT_EQ(counts[i], counts[i + counts.size() / 2]);
}

// Chunks are the rails' concern.
TEST(JobCostTest, EngineDoesNotHearOfChunks) {
  std::vector<uint64_t> events;
  for (const uint64_t chunk_bytes : {uint64_t{16} << 10, uint64_t{1} << 20}) {
    // A policy without late binding, whose messages go by what rails lag.
    Cluster cluster({.nodes = 2, .rails = 2, .plan = {.policy = Policy::kAligned, .chunk_bytes = chunk_bytes}});
    Exchange exchange(&cluster, "g", AllLengths(2, 4 << 20));
    uint64_t before = 0, after = 0;
    for (auto& rail : cluster.node(0).rails) before += rail->events_taken;
    exchange.SubmitAll(1);
    cluster.Run();
    exchange.ExpectDone(1);
    for (auto& rail : cluster.node(0).rails) after += rail->events_taken;
    events.push_back(after - before);
  }
  EXPECT_EQ(events[0], events[1]);
  EXPECT_LE(events[0], 3u) << "the bytes that were carried, their fence, and a fence of the peer's";
}

}  // namespace
}  // namespace railsd::testing
