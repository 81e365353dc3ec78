// Jobs with capacities: receivers say how much they can take, and learn how much comes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "tests/support/seeds.h"
#include "tests/unit/agent/jobs/cluster.h"

namespace railsd::testing {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kSlot = 5000;  // for each source
constexpr uint8_t kUntouched = 0xee;

struct Mode {
  bool remote;
  uint64_t eager_bytes;
};

class CapacitiesTest : public ::testing::TestWithParam<Mode> {
 protected:
  void Begin(size_t nodes, uint32_t ranks, uint64_t seed = 1, uint32_t explained_jobs = 0) {
    cluster_.emplace(Cluster::Options{.remote = GetParam().remote,
                                      .nodes = nodes,
                                      .seed = seed,
                                      .explained_jobs = explained_jobs,
                                      .eager_bytes = GetParam().eager_bytes});
    exchange_.emplace(&*cluster_, ranks, "g", ExchangeOptions{.buffer_bytes = kSlot * ranks});
  }
  // Each source has a slot of the receive buffer, cut into so many pieces that do not touch.
  Submission For(uint32_t rank, uint64_t seq, size_t pieces = 1) {
    Submission submission = exchange_->For(rank, seq, pieces);
    submission.capacities = true;
    const uint64_t step = kSlot / pieces;
    for (FlowRanges& flow : submission.receives) {
      flow.ranges.clear();
      for (size_t i = 0; i < pieces; ++i) {
        flow.ranges.push_back({SegmentId(2), flow.peer.value() * kSlot + i * step, step - (pieces > 1)});
      }
    }
    return submission;
  }
  void SubmitAll(uint64_t seq, size_t pieces = 1) {
    for (uint32_t rank = 0; rank < exchange_->world(); ++rank) {
      const absl::Status s = exchange_->trainer(rank).Submit(For(rank, seq, pieces));
      ASSERT_TRUE(s.ok()) << s;
    }
  }
  // The bytes of each source are in the slot's pieces, and nothing else was touched; the report says how much came.
  void ExpectReceived(uint64_t seq, const Lengths& lengths, size_t pieces = 1) {
    for (uint32_t rank = 0; rank < exchange_->world(); ++rank) {
      const JobReport report = exchange_->Report(rank, seq);
      ASSERT_EQ(report.state, JobState::kDone) << report.status;
      std::vector<uint64_t> expected(exchange_->world());
      for (uint32_t source = 0; source < exchange_->world(); ++source) {
        expected[source] = lengths[source][rank];
        ExpectSlot(source, rank, expected[source], lengths, pieces);
      }
      EXPECT_EQ(report.received_by_rank, expected);
      EXPECT_EQ(report.bytes_received, std::accumulate(expected.begin(), expected.end(), uint64_t{0}));
      EXPECT_EQ(report.bytes_to_receive, report.bytes_received);
    }
    cluster_->ExpectNothingOpen();
  }
  void ExpectSlot(uint32_t source, uint32_t rank, uint64_t bytes, const Lengths& lengths, size_t pieces) {
    const uint8_t* sent = exchange_->trainer(source).send->data();
    for (uint32_t peer = 0; peer < rank; ++peer) sent += lengths[source][peer];
    const uint8_t* slot = exchange_->trainer(rank).receive->data() + source * kSlot;
    const uint64_t step = kSlot / pieces;
    uint64_t taken = 0;
    for (uint64_t i = 0; i < kSlot; ++i) {
      const bool used = taken < bytes && i / step < pieces && (pieces == 1 || i % step < step - 1);
      ASSERT_EQ(slot[i], used ? sent[taken] : kUntouched) << source << " to " << rank << " at " << i;
      taken += used;
    }
    EXPECT_EQ(taken, bytes);
  }

  std::optional<Cluster> cluster_;
  std::optional<Exchange> exchange_;
};
INSTANTIATE_TEST_SUITE_P(Rails, CapacitiesTest,
                         ::testing::Values(Mode{false, 0}, Mode{false, 4096}, Mode{true, 0}, Mode{true, 4096}),
                         [](const ::testing::TestParamInfo<Mode>& info) {
                           return std::string(info.param.remote ? "Remote" : "Framed") +
                                  (info.param.eager_bytes > 0 ? "Eager" : "");
                         });

TEST_P(CapacitiesTest, WhatComesIsInItsSlotAndInTheReportThoughRailsFail) {
  for (const uint64_t seed : Seeds(20)) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    Begin(3, 7, seed, /*explained_jobs=*/random() % 2 == 0 ? 4 : 0);
    for (uint64_t seq = 1; seq <= 3; ++seq) {
      const size_t pieces = 1 + random() % 3;
      const Lengths lengths = Exchange::RandomLengths(7, kSlot - 2 * pieces, random);
      exchange_->SetLengths(lengths, seed + seq);
      SubmitAll(seq, pieces);
      cluster_->FailRails(static_cast<int>(random() % 3), random);
      ExpectReceived(seq, lengths, pieces);
    }
  }
}

TEST_P(CapacitiesTest, ASlotMayBeFilledOrStayEmpty) {
  Begin(2, 4);
  for (uint64_t seq = 1; const uint64_t bytes : {kSlot, uint64_t{0}, uint64_t{1}}) {
    exchange_->SetLengths(AllLengths(4, bytes), seq);
    SubmitAll(seq);
    cluster_->Run();
    ExpectReceived(seq++, AllLengths(4, bytes));
  }
}

// The bytes that come count, not the capacities. 100 MB/s a rail.
TEST_P(CapacitiesTest, ThePinnedBoundIsOfWhatComes) {
  Begin(2, 4);
  Lengths lengths = AllLengths(4, 0);
  lengths[1][0] = 2000;
  lengths[1][2] = 1000;
  lengths[3][0] = kSlot;
  exchange_->SetLengths(lengths, 1);
  SubmitAll(1);
  cluster_->Run();
  EXPECT_EQ(exchange_->Report(0, 1).pinned_bound, absl::Microseconds(50)) << "rank 3's rail";
}

// The receiver cuts its zone to what READY says, so the grant comes after it.
TEST_P(CapacitiesTest, AJobIsAReadyAndAGrantToEachPeer) {
  Begin(2, 2);
  exchange_->SetLengths(AllLengths(2, kSlot), 1);
  const auto messages = [&] {
    return cluster_->node(0).engine->Snapshot(0).counters.control_messages_out +
           cluster_->node(1).engine->Snapshot(0).counters.control_messages_out;
  };
  const uint64_t before = messages();
  SubmitAll(1);
  cluster_->Run();
  EXPECT_EQ(messages() - before, 4u);
}

TEST_P(CapacitiesTest, MoreThanTheCapacityFailsTheJobEverywhereAndNothingIsWritten) {
  for (const uint32_t source : {2u, 1u, 0u}) {  // on the same node as rank 0, on another, and rank 0 itself
    SCOPED_TRACE(source);
    Begin(2, 4);
    Lengths lengths = AllLengths(4, 10);
    lengths[source][0] = kSlot + 1;
    exchange_->SetLengths(lengths, 1);
    SubmitAll(1);
    cluster_->Run();
    exchange_->ExpectFailed(1, "sends 5001 bytes to");
    EXPECT_THAT(std::string(exchange_->Report(0, 1).status.message()), HasSubstr("has room for 5000 in job 1"));
    const uint8_t* slot = exchange_->trainer(0).receive->data() + source * kSlot;
    EXPECT_TRUE(std::all_of(slot, slot + kSlot, [](uint8_t byte) { return byte == kUntouched; }));
  }
}

TEST_P(CapacitiesTest, AllRanksGiveThemOrNone) {
  for (const uint32_t other : {2u, 1u}) {
    SCOPED_TRACE(other);
    Begin(2, 4);
    exchange_->SetLengths(AllLengths(4, 10), 1);
    for (uint32_t rank = 0; rank < 4; ++rank) {
      // As many bytes as are sent, so that nothing else differs.
      Submission submission = exchange_->For(rank, 1);
      submission.capacities = rank % 2 != 0 ? other != 1 : other != 2 || rank != 2;
      ASSERT_TRUE(exchange_->trainer(rank).Submit(submission).ok());
    }
    cluster_->Run();
    exchange_->ExpectFailed(1, "capacities: rank ");
  }
}

TEST_P(CapacitiesTest, PreparedRangesAreCapacities) {
  Begin(2, 4);
  exchange_->SetLengths(AllLengths(4, kSlot), 1);
  for (uint32_t rank = 0; rank < 4; ++rank) {
    Submission layout = For(rank, 1);
    layout.session = exchange_->trainer(rank).session;
    layout.prepared = PreparedId(1);
    Engine& engine = *cluster_->node(exchange_->trainer(rank).node).engine;
    absl::Status kept = absl::UnknownError("no answer");
    engine.KeepPrepared(engine.CheckLayout(layout), [&](absl::Status s) { kept = std::move(s); });
    ASSERT_TRUE(kept.ok()) << kept;
    Submission submission;
    submission.job = layout.job;
    submission.rank = Rank(rank);
    submission.prepared = PreparedId(1);
    submission.capacities = true;
    std::vector<uint64_t> bytes(6, kSlot);
    std::fill_n(bytes.begin(), 3, 100 * (rank + 1));
    submission.lengths_bytes = bytes;
    ASSERT_TRUE(exchange_->trainer(rank).Submit(submission).ok());
  }
  cluster_->Run();
  for (uint32_t rank = 0; rank < 4; ++rank) {
    std::vector<uint64_t> expected = {100, 200, 300, 400};
    expected[rank] = 0;
    EXPECT_EQ(exchange_->Report(rank, 1).received_by_rank, expected);
  }
  cluster_->ExpectNothingOpen();
}

TEST_P(CapacitiesTest, TheFlagIsPartOfTheContentAndRangesAreBounded) {
  Begin(2, 2);
  exchange_->SetLengths(AllLengths(2, 10), 1);
  Submission submission = For(0, 1);
  ASSERT_TRUE(exchange_->trainer(0).Submit(submission).ok());
  submission.capacities = false;
  EXPECT_EQ(exchange_->trainer(0).Submit(submission).code(), absl::StatusCode::kAlreadyExists);
  submission = For(1, 1);
  submission.receives[0].ranges.resize(Submission::kMaxCapacityRanges + 1);
  const Buffer large(4 * Submission::kMaxCapacityRanges);
  cluster_->AddSegment(1, exchange_->trainer(1).session, 3, large);
  for (uint64_t i = 0; Range & range : submission.receives[0].ranges) range = {SegmentId(3), 2 * i++, 1};
  EXPECT_THAT(std::string(exchange_->trainer(1).Submit(submission).message()),
              HasSubstr("capacities: 16385 ranges of receives, the limit is 16384"));
  submission.receives[0].ranges.pop_back();
  EXPECT_TRUE(exchange_->trainer(1).Submit(submission).ok());
  cluster_->Run();
  EXPECT_EQ(exchange_->Report(1, 1).received_by_rank, (std::vector<uint64_t>{10, 0}));
}

}  // namespace
}  // namespace railsd::testing
