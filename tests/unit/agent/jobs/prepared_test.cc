// Prepared exchanges: ranges that are checked once, and jobs that use the begin of each flow.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "tests/unit/agent/jobs/cluster.h"

namespace railsd::testing {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kCapacity = 5000;  // of each flow
constexpr PreparedId kId{7};

// Two nodes with two ranks each, whose flows have a capacity.
class PreparedTest : public ::testing::TestWithParam<bool> {
 protected:
  void Begin(AgentLimits limits = {}, uint64_t eager_bytes = 0) {
    cluster_.emplace(Cluster::Options{.remote = GetParam(), .limits = limits, .eager_bytes = eager_bytes});
    exchange_.emplace(&*cluster_, "g", AllLengths(4, kCapacity));
  }

  Trainer& trainer(uint32_t rank) { return exchange_->trainer(rank); }
  Engine& engine(uint32_t rank) { return *cluster_->node(trainer(rank).node).engine; }

  Submission Layout(uint32_t rank, PreparedId id, size_t pieces = 3) {
    Submission layout = exchange_->For(rank, 1, pieces);
    layout.job.seq = JobSeq(0);
    layout.session = trainer(rank).session;
    layout.prepared = id;
    return layout;
  }
  absl::Status Prepare(const Submission& layout) {
    absl::Status result = absl::UnknownError("no answer");
    Engine& at = engine(layout.rank.value());
    at.KeepPrepared(at.CheckLayout(layout), [&](absl::Status s) { result = std::move(s); });
    return result;
  }
  absl::Status Release(uint32_t rank, PreparedId id) {
    absl::Status result = absl::UnknownError("no answer");
    engine(rank).ReleasePrepared(trainer(rank).session, id, [&](absl::Status s) { result = std::move(s); });
    return result;
  }
  absl::Status RemoveSegment(uint32_t rank, uint32_t id) {
    absl::Status result = absl::UnknownError("no answer");
    engine(rank).RemoveSegment(trainer(rank).session, SegmentId(id), [&](absl::Status s) { result = std::move(s); });
    return result;
  }
  absl::Status Submit(uint32_t rank, uint64_t seq, const std::vector<uint64_t>& lengths, PreparedId id = kId,
                      uint64_t tag = 0) {
    Submission submission;
    submission.job = {trainer(rank).group->epoch, JobSeq(seq)};
    submission.rank = Rank(rank);
    submission.tag = tag;
    submission.prepared = id;
    submission.lengths_bytes = lengths;
    return trainer(rank).Submit(submission);
  }
  // By the flows of Layout().
  std::vector<uint64_t> LengthsOf(uint32_t rank, const Lengths& matrix) const {
    std::vector<uint64_t> lengths;
    for (uint32_t peer = 0; peer < 4; ++peer) {
      if (peer != rank) lengths.push_back(matrix[rank][peer]);
    }
    for (uint32_t peer = 0; peer < 4; ++peer) {
      if (peer != rank) lengths.push_back(matrix[peer][rank]);
    }
    return lengths;
  }
  void ExpectEnded(uint64_t seq, const Lengths& matrix) {
    for (uint32_t rank = 0; rank < 4; ++rank) {
      const auto report = trainer(rank).Wait(seq);
      ASSERT_TRUE(report->ok()) << report->status();
      ASSERT_EQ((*report)->state, JobState::kDone) << (*report)->status;
      EXPECT_EQ((*report)->bytes_received, (*report)->bytes_to_receive);
      const uint8_t* at = trainer(rank).receive->data();
      for (uint32_t source = 0; source < 4; ++source) {
        if (source == rank) continue;
        const uint8_t* sent = trainer(source).send->data() + kCapacity * (rank < source ? rank : rank - 1);
        for (uint64_t i = 0; i < kCapacity; ++i) {
          ASSERT_EQ(at[i], i < matrix[source][rank] ? sent[i] : untouched_) << source << " to " << rank << " at " << i;
        }
        at += kCapacity;
      }
    }
  }
  void Untouch() {
    for (uint32_t rank = 0; rank < 4; ++rank) {
      std::fill_n(trainer(rank).receive->data(), trainer(rank).receive->size(), untouched_);
    }
  }

  const uint8_t untouched_ = 0xee;
  std::optional<Cluster> cluster_;
  std::optional<Exchange> exchange_;
};

TEST_P(PreparedTest, JobsMoveTheBeginOfEachFlow) {
  std::mt19937_64 random(3);
  for (const uint64_t eager_bytes : {0u, 4096u}) {
    Begin({}, eager_bytes);
    for (uint32_t rank = 0; rank < 4; ++rank) ASSERT_TRUE(Prepare(Layout(rank, kId, 1 + rank)).ok());
    for (uint64_t seq = 1; seq <= 20; ++seq) {
      auto matrix = Exchange::RandomLengths(4, eager_bytes > 0 && seq % 2 == 0 ? 300 : kCapacity, random);
      if (seq == 2) matrix = AllLengths(4, 0);
      if (seq % 10 == 3) matrix = AllLengths(4, kCapacity);
      Untouch();
      for (uint32_t rank = 0; rank < 4; ++rank) {
        const std::vector<uint64_t> lengths = seq == 3 ? std::vector<uint64_t>() : LengthsOf(rank, matrix);
        const absl::Status status = Submit(rank, seq, lengths, kId, seq);
        ASSERT_TRUE(status.ok()) << status;
      }
      cluster_->Run();
      ExpectEnded(seq, matrix);
    }
    cluster_->ExpectNothingOpen();
  }
}

TEST_P(PreparedTest, OtherRanksNeedNotPrepare) {
  Begin();
  ASSERT_TRUE(Prepare(Layout(2, kId)).ok());
  ASSERT_TRUE(Submit(2, 1, {}).ok());
  for (uint32_t rank : {0u, 1u, 3u}) {
    Submission plain = exchange_->For(rank, 1);
    plain.tag = 0;
    ASSERT_TRUE(trainer(rank).Submit(plain).ok());
  }
  cluster_->Run();
  exchange_->ExpectBytes();
}

TEST_P(PreparedTest, LengthsAreChecked) {
  Begin();
  ASSERT_TRUE(Prepare(Layout(1, kId)).ok());
  struct Case {
    std::vector<uint64_t> lengths;
    std::string text;
  };
  const std::vector<Case> cases = {
      {{1, 2, 3, 4, 5}, "lengths_bytes: 5 entries, and the prepared exchange has 6 flows"},
      {std::vector<uint64_t>(7), "lengths_bytes: 7 entries"},
      {{0, kCapacity + 1, 0, 0, 0, 0}, "lengths_bytes[1]: 5001 bytes to rank 2, more than the 5000 that were prepared"},
      {{0, 0, 0, 0, 0, ~uint64_t{0}}, "lengths_bytes[5]: 18446744073709551615 bytes from rank 3, more than the 5000"},
  };
  for (const Case& c : cases) {
    const absl::Status status = Submit(1, 1, c.lengths);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.text));
  }
  // The id is of another session, of another rank of the session, or of nobody.
  EXPECT_EQ(Submit(3, 1, {}).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Submit(1, 1, {}, PreparedId(8)).message(),
            "prepared_id: 8 is no prepared exchange of rank 1 in this epoch");
  Submission other;
  other.job = {trainer(1).group->epoch, JobSeq(1)};
  other.job.epoch.counter += 1;
  other.rank = Rank(1);
  other.prepared = kId;
  EXPECT_EQ(trainer(1).Submit(other).code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(Submit(1, 1, {}).ok()) << "a refused submission takes no number";
}

TEST_P(PreparedTest, LayoutsAreCheckedAsSubmissionsAre) {
  Begin({.max_ranges_per_submission = 20});
  Submission layout = Layout(0, kId, 1);
  layout.receives[1].ranges[0].offset_bytes = 0;
  EXPECT_THAT(std::string(Prepare(layout).message()), HasSubstr("overlap"));
  layout = Layout(0, kId, 1);
  layout.sends[0].ranges[0].segment = SegmentId(9);
  EXPECT_EQ(Prepare(layout).code(), absl::StatusCode::kNotFound);
  layout = Layout(0, kId, 1);
  layout.sends[0].peer = Rank(4);
  EXPECT_THAT(std::string(Prepare(layout).message()), HasSubstr("is not below the world size 4"));
  layout = Layout(0, kId, 1);
  layout.rank = Rank(2);  // of another session
  EXPECT_EQ(Prepare(layout).code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(Prepare(Layout(0, kId, 5)).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(Prepare(Layout(0, kId, 1)).ok());
  EXPECT_EQ(Prepare(Layout(0, kId, 1)).code(), absl::StatusCode::kAlreadyExists);
}

TEST_P(PreparedTest, LimitsRefuseAndCount) {
  // Each layout of 4 pieces has 3 sends of 4 ranges and 3 receives of 5.
  Begin({.max_prepared_per_session = 3, .max_prepared_ranges_per_session = 31});
  EXPECT_TRUE(Prepare(Layout(0, PreparedId(1), 4)).ok());
  absl::Status refused = Prepare(Layout(0, PreparedId(2), 1));
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(refused.message(),
            "limits.max_prepared_ranges_per_session: the session's prepared exchanges have 27 ranges, 9 more would "
            "pass the limit of 31");
  Submission empty = Layout(0, PreparedId(2));
  empty.sends.clear();
  empty.receives.clear();
  EXPECT_TRUE(Prepare(empty).ok());
  empty.prepared = PreparedId(3);
  EXPECT_TRUE(Prepare(empty).ok());
  empty.prepared = PreparedId(4);
  EXPECT_EQ(Prepare(empty).message(),
            "limits.max_prepared_per_session: the session has 3 prepared exchanges; release one first");
  EXPECT_TRUE(Prepare(Layout(1, PreparedId(1), 4)).ok()) << "of another session";
  EXPECT_TRUE(Release(0, PreparedId(1)).ok());
  EXPECT_TRUE(Prepare(Layout(0, PreparedId(4), 1)).ok());
  for (Limit limit : {Limit::kPreparedPerSession, Limit::kPreparedRangesPerSession}) {
    EXPECT_EQ(cluster_->node(0).refused->Read(limit), 1u);
  }
}

TEST_P(PreparedTest, SegmentsStayWhileTheyAreUsed) {
  Begin();
  for (uint32_t rank = 0; rank < 4; ++rank) ASSERT_TRUE(Prepare(Layout(rank, kId)).ok());
  EXPECT_EQ(RemoveSegment(0, 1).code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(Submit(0, 1, {}).ok());
  // Released under a job: the job goes on, and holds the segments until it has ended.
  EXPECT_TRUE(Release(0, kId).ok());
  EXPECT_EQ(Release(0, kId).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Submit(0, 2, {}).code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(Submit(0, 1, {}).ok()) << "the same job again, while it is under way";
  EXPECT_EQ(RemoveSegment(0, 1).code(), absl::StatusCode::kFailedPrecondition);
  for (uint32_t rank = 1; rank < 4; ++rank) ASSERT_TRUE(Submit(rank, 1, {}).ok());
  cluster_->Run();
  ExpectEnded(1, AllLengths(4, kCapacity));
  EXPECT_TRUE(RemoveSegment(0, 1).ok());
  EXPECT_EQ(RemoveSegment(1, 1).code(), absl::StatusCode::kFailedPrecondition) << "not released there";
}

TEST_P(PreparedTest, ItEndsWithTheMembership) {
  Begin();
  for (uint32_t rank = 0; rank < 4; ++rank) ASSERT_TRUE(Prepare(Layout(rank, kId)).ok());
  const Epoch before = trainer(0).group->epoch;
  for (uint32_t rank = 0; rank < 4; ++rank) {
    engine(rank).Leave(trainer(rank).session, before, Rank(rank), [](absl::Status s) { EXPECT_TRUE(s.ok()) << s; });
  }
  cluster_->Run();
  EXPECT_EQ(Release(0, kId).code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(RemoveSegment(0, 1).ok());
  cluster_->AddSegment(0, trainer(0).session, 1, *trainer(0).send);
  exchange_->JoinAll();
  EXPECT_EQ(Submit(0, 1, {}).code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(Prepare(Layout(0, kId)).ok());
  EXPECT_TRUE(Submit(0, 1, {}).ok());
}

TEST_P(PreparedTest, ANumberThatWasTakenIsComparedByContent) {
  Begin();
  ASSERT_TRUE(Prepare(Layout(0, kId)).ok());
  ASSERT_TRUE(Prepare(Layout(0, PreparedId(8))).ok());
  const std::vector<uint64_t> all(6, kCapacity);
  ASSERT_TRUE(Submit(0, 1, {}).ok());
  EXPECT_TRUE(Submit(0, 1, {}).ok());
  EXPECT_TRUE(Submit(0, 1, all).ok()) << "all lengths were said in another way";
  EXPECT_TRUE(Submit(0, 1, {}, PreparedId(8)).ok()) << "the same ranges, prepared anew";
  EXPECT_EQ(Submit(0, 1, std::vector<uint64_t>(6, 1)).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(Submit(0, 1, {}, kId, 5).code(), absl::StatusCode::kAlreadyExists);
}

TEST_P(PreparedTest, JobsUnderWayKeepTheirRangesWhateverTheLengths) {
  Begin();
  ASSERT_TRUE(Prepare(Layout(0, kId)).ok());
  ASSERT_TRUE(Submit(0, 1, std::vector<uint64_t>(6, 1)).ok());
  const absl::Status again = Submit(0, 2, std::vector<uint64_t>(6, 1));
  EXPECT_EQ(again.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(again.message()), HasSubstr("which job 1 of rank 0 receives and which has not ended"));
  EXPECT_EQ(trainer(0).Submit(exchange_->For(0, 2)).code(), absl::StatusCode::kFailedPrecondition);
}

// Long lists are compared once, whichever of the two comes first.
TEST_P(PreparedTest, OverlapsOfManyRangesAreFound) {
  Begin();
  const auto every_second_byte = [&](uint64_t first, PreparedId id) {
    Submission layout = Layout(0, id, 1);
    layout.sends.clear();
    layout.receives.resize(1);
    layout.receives[0].ranges.clear();
    for (uint64_t i = 0; i < 1100; ++i) layout.receives[0].ranges.push_back({SegmentId(2), first + 2 * i, 1});
    return layout;
  };
  const auto plain = [&](uint64_t first, uint64_t seq) {
    Submission submission = every_second_byte(first, PreparedId());
    submission.job.seq = JobSeq(seq);
    return submission;
  };
  const PreparedId even(1), odd(2), last(3);
  ASSERT_TRUE(Prepare(every_second_byte(0, even)).ok());
  ASSERT_TRUE(Prepare(every_second_byte(1, odd)).ok());
  ASSERT_TRUE(Prepare(every_second_byte(1998, last)).ok());
  ASSERT_TRUE(Submit(0, 1, {}, even).ok());
  ASSERT_TRUE(Submit(0, 2, {}, odd).ok());
  for (int i = 0; i < 2; ++i) {
    const absl::Status refused = Submit(0, 3, {}, last);
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(refused.message()), HasSubstr("receives: [1998, 1999) of segment 2 overlaps"));
  }
  ASSERT_TRUE(trainer(0).Submit(plain(6001, 3)).ok());
  ASSERT_TRUE(Prepare(every_second_byte(7999, PreparedId(4))).ok());
  EXPECT_THAT(std::string(Submit(0, 4, {}, PreparedId(4)).message()), HasSubstr("[7999, 8000)"));
  EXPECT_THAT(std::string(trainer(0).Submit(plain(1998, 4)).message()), HasSubstr("which job 1 of rank 0 receives"));
  EXPECT_TRUE(trainer(0).Submit(plain(2201, 4)).ok());
}

INSTANTIATE_TEST_SUITE_P(Rails, PreparedTest, ::testing::Bool(), ModeOf);

}  // namespace
}  // namespace railsd::testing
