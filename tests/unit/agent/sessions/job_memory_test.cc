// Two jobs of a session that are under way together never share bytes that one of them writes.
#include "agent/sessions/job_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "tests/support/seeds.h"
#include "tests/unit/agent/jobs/cluster.h"

namespace railsd::testing {
namespace {

// Over rails that receive frames, and over rails that write into remote memory.
class JobMemoryTest : public ::testing::TestWithParam<bool> {};

INSTANTIATE_TEST_SUITE_P(Rails, JobMemoryTest, ::testing::Bool(), ModeOf);

TEST_P(JobMemoryTest, BytesOfAJobUnderWayAreRefused) {
  Cluster cluster({.remote = GetParam(), .nodes = 2, .rails = 1});
  Exchange exchange(&cluster, "g", {{0, 100}, {200, 0}});
  Trainer& trainer = exchange.trainer(0);
  const SegmentId sent(1), received(2), alias(3);
  cluster.AddSegment(0, trainer.session, 3, *trainer.receive);
  const Submission first = exchange.For(0, 1);
  ASSERT_TRUE(trainer.Submit(first).ok());
  const auto second = [&](Range send, Range receive) {
    Submission submission = first;
    submission.job.seq = JobSeq(2);
    submission.sends = {{Rank(1), {send}}};
    submission.receives = {{Rank(1), {receive}}};
    return submission;
  };
  struct Case {
    Range send, receive;
    std::string text;
  };
  const Range elsewhere{sent, 4096, 10}, free{received, 4096, 10};
  const std::vector<Case> cases = {
      {elsewhere,
       {received, 199, 2},
       "receives: [199, 201) of segment 2 overlaps [0, 200) of the same memory, which job 1 "
       "of rank 0 receives and which has not ended"},
      {elsewhere,
       {sent, 0, 1},
       "receives: [0, 1) of segment 1 overlaps [0, 100) of the same memory, which job 1 of rank 0 "
       "sends"},
      {{received, 5, 1}, free, "sends: [5, 6) of segment"},
      {{alias, 5, 1}, free, "sends: [5, 6) of segment"},
      {elsewhere, {alias, 150, 1}, "receives: [150, 151) of segment"},
  };
  for (const Case& c : cases) {
    const absl::Status status = trainer.Submit(second(c.send, c.receive));
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(c.text));
  }
  Submission own = second(elsewhere, free);
  own.sends.push_back({Rank(0), {{alias, 10, 5}}});
  own.receives.push_back({Rank(0), {{received, 300, 5}}});
  EXPECT_THAT(std::string(trainer.Submit(own).message()), ::testing::HasSubstr("sends: [10, 15) of segment"));
  own.sends[1].ranges = {{sent, 10, 5}};
  own.receives[1].ranges = {{alias, 199, 5}};
  EXPECT_THAT(std::string(trainer.Submit(own).message()), ::testing::HasSubstr("receives: [199, 204) of segment"));
  EXPECT_TRUE(trainer.Submit(first).ok()) << "the same submission again";
  // Both may read the same bytes, and neighbours do not meet.
  ASSERT_TRUE(trainer.Submit(second({sent, 50, 100}, {received, 200, 10})).ok());
  ASSERT_TRUE(exchange.trainer(1).Submit(exchange.For(1, 1)).ok());
  cluster.Run();
  Submission third = exchange.For(0, 3);
  EXPECT_TRUE(trainer.Submit(std::move(third)).ok()) << "the first job has ended";
}

// A part that fails gives its bytes back, and so does a submission that is refused for something else.
TEST_P(JobMemoryTest, BytesAreFreeAfterFailureAndRefusal) {
  Cluster cluster({.remote = GetParam(), .nodes = 2, .rails = 1});
  Exchange exchange(&cluster, "g", {{0, 100}, {200, 0}});
  Trainer& trainer = exchange.trainer(0);
  EXPECT_EQ(trainer.Submit(exchange.For(0, 7)).code(), absl::StatusCode::kInvalidArgument) << "not its turn";
  ASSERT_TRUE(trainer.Submit(exchange.For(0, 1)).ok());
  cluster.node(0).engine->Cancel(trainer.session, {trainer.group->epoch, JobSeq(1)}, Rank(0),
                                 [](absl::Status s) { EXPECT_TRUE(s.ok()); });
  cluster.Run();
  ASSERT_TRUE(exchange.trainer(1).Submit(exchange.For(1, 1)).ok());
  cluster.Run();
  exchange.RunJob(2);
}

// Submissions that are checked and then reach the engine in an order of the test's choice.
class WaysToTheEngineTest : public JobMemoryTest {
 protected:
  Submission Part(uint64_t seq) {
    Submission submission = exchange_.For(0, seq);
    submission.session = exchange_.trainer(0).session;
    return submission;
  }
  CheckedSubmission Check(const Submission& submission) { return cluster_.node(0).engine->Check(submission); }
  absl::StatusCode Arrive(CheckedSubmission prepared) {
    absl::Status result = absl::UnknownError("no answer");
    cluster_.node(0).engine->Submit(std::move(prepared), [&](absl::Status s) { result = std::move(s); });
    return result.code();
  }

  Cluster cluster_{{.remote = GetParam(), .nodes = 2, .rails = 1}};
  Exchange exchange_{&cluster_, "g", {{0, 100}, {200, 0}}};
};

INSTANTIATE_TEST_SUITE_P(Rails, WaysToTheEngineTest, ::testing::Bool(), ModeOf);

// A call that its client has given up may hang on its way while others with the same bytes come and go.
TEST_P(WaysToTheEngineTest, SubmissionsThatAreNotAcceptedAreInNobodysWay) {
  CheckedSubmission hanging = Check(Part(1));
  Submission empty = Part(1);
  empty.sends.clear();
  empty.receives.clear();
  EXPECT_EQ(Arrive(Check(empty)), absl::StatusCode::kOk);
  EXPECT_EQ(Arrive(Check(Part(2))), absl::StatusCode::kOk) << "with the bytes of the one that hangs";
  EXPECT_EQ(Arrive(std::move(hanging)), absl::StatusCode::kAlreadyExists) << "its number is taken by other content";
}

TEST_P(WaysToTheEngineTest, TheFirstOfTwoToBeAcceptedIsInTheOthersWay) {
  CheckedSubmission before = Check(Part(2)), first = Check(Part(1)), after = Check(Part(2));
  EXPECT_EQ(Arrive(std::move(first)), absl::StatusCode::kOk);
  EXPECT_EQ(Arrive(std::move(before)), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Arrive(std::move(after)), absl::StatusCode::kFailedPrecondition);
}

TEST_P(WaysToTheEngineTest, ACallMadeAgainIsTheJobThatWasAccepted) {
  CheckedSubmission late = Check(Part(1));
  Submission bad = Part(1);
  bad.sends[0].ranges[0].length_bytes = ~uint64_t{0};
  EXPECT_EQ(Arrive(Check(bad)), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Arrive(Check(Part(1))), absl::StatusCode::kOk);
  EXPECT_EQ(Arrive(std::move(late)), absl::StatusCode::kOk);
}

// A rank that leaves, or whose session ends, while rails may still touch its job's memory.
TEST_P(WaysToTheEngineTest, AJobUnderWayIsNotCalledRefused) {
  for (const bool leave : {true, false}) {
    Cluster cluster({.remote = GetParam(), .nodes = 2, .rails = 1});
    Exchange exchange(&cluster, "g", {{0, 4'000'000}, {4'000'000, 0}});
    Trainer& trainer = exchange.trainer(0);
    Engine& engine = *cluster.node(0).engine;
    const auto submit = [&] {
      Submission submission = exchange.For(0, 1);
      submission.session = trainer.session;
      absl::Status answer = absl::UnknownError("no answer");
      engine.Submit(engine.Check(submission), [&](absl::Status s) { answer = std::move(s); });
      return answer;
    };
    ASSERT_TRUE(submit().ok());
    ASSERT_TRUE(exchange.trainer(1).Submit(exchange.For(1, 1)).ok());
    cluster.Run([&] { return cluster.HasReceived(0, 0) && engine.Snapshot(0).rails[0].in_flight_bytes > 0; });
    cluster.node(0).rails[0]->frozen = true;
    if (GetParam()) cluster.node(1).rails[0]->frozen = true;
    if (leave) {
      engine.Leave(trainer.session, trainer.group->epoch, Rank(0), [](absl::Status) {});
    } else {
      engine.CloseSession(trainer.session, "test", [](absl::Status) {});
    }
    ASSERT_EQ(engine.Snapshot(0).active_jobs.size(), 1u);
    EXPECT_TRUE(submit().ok()) << (leave ? "left" : "closed");
  }
}

TEST(ExtentTest, OverlapIsFoundAsByHand) {
  std::mt19937_64 random = SeededRandom();
  const auto draw = [&] {
    std::vector<Extent> extents;
    const size_t count = random() % 3 == 0 ? random() % 200 : random() % 4;
    for (size_t i = 0; i < count; ++i) {
      const uint64_t begin = random() % 5000;
      extents.push_back({{1, random() % 2}, begin, begin + 1 + random() % 4});
    }
    std::sort(extents.begin(), extents.end());
    JoinExtents(&extents);
    return extents;
  };
  for (int round = 0; round < 2000; ++round) {
    const std::vector<Extent> a = draw(), b = draw();
    bool overlap = false;
    for (const Extent& x : a) {
      for (const Extent& y : b) overlap |= x.file == y.file && x.begin < y.end && y.begin < x.end;
    }
    const auto found = FirstOverlap(a, b);
    ASSERT_EQ(found.has_value(), overlap) << "round " << round;
    if (!found) continue;
    const auto& [x, y] = *found;
    EXPECT_TRUE(x.file == y.file && x.begin < y.end && y.begin < x.end);
    EXPECT_TRUE(std::count(a.begin(), a.end(), x) == 1 && std::count(b.begin(), b.end(), y) == 1);
  }
}

// Nobody can read the pages that lie inside a list.
class Unreadable {
 public:
  explicit Unreadable(const std::vector<Extent>& list) {
    const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
    begin_ = (reinterpret_cast<uintptr_t>(list.data()) + page - 1) / page * page;
    length_ = reinterpret_cast<uintptr_t>(list.data() + list.size()) / page * page - begin_;
    EXPECT_EQ(::mprotect(reinterpret_cast<void*>(begin_), length_, PROT_NONE), 0);
  }
  ~Unreadable() { ::mprotect(reinterpret_cast<void*>(begin_), length_, PROT_READ | PROT_WRITE); }

 private:
  uintptr_t begin_ = 0, length_ = 0;
};

// The engine's thread makes claims of prepared exchanges, and has no time to compare long lists.
TEST(ClaimedMemoryTest, ListsOfPreparedExchangesAreComparedOnceHoweverManyOthersCome) {
  const auto claimed = std::make_shared<ClaimedMemory>();
  const auto list = [&](uint64_t begin, uint64_t step, bool prepared) {
    std::vector<Extent> writes;
    for (uint64_t i = 0; i < 1100; ++i) writes.push_back({{1, 1}, begin + i * step, begin + i * step + 1});
    return std::make_shared<const UsedMemory>(std::vector<Extent>(), std::move(writes), prepared, claimed->known());
  };
  const auto claim = [&](uint64_t seq, const std::shared_ptr<const UsedMemory>& uses) {
    return MemoryClaim(claimed, {{{BootId(1), 1}, JobSeq(seq)}, Rank(0), uses});
  };
  const auto even = list(0, 10, true), odd = list(5, 10, true), other = list(9995, 10, true);
  claimed->Learn(*odd, {{even}});
  claimed->Learn(*other, {{even, odd}});
  const auto plain = list(7, 10, false);
  claimed->Learn(*plain, {{even, odd, other}});
  const MemoryClaim under_way = claim(1, plain);
  for (uint64_t i = 0; i < 2000; ++i) {
    const auto passing = list(20'000 + i, 3, i % 2 == 0);
    claimed->Learn(*passing, {{even, odd, other}});
    claim(100 + i, passing);
  }
  const Unreadable even_list(even->writes), odd_list(odd->writes), other_list(other->writes), plain_list(plain->writes);
  EXPECT_FALSE(under_way.Accept().has_value());
  const MemoryClaim first = claim(2, even), second = claim(3, odd), third = claim(4, other);
  EXPECT_FALSE(first.Accept().has_value());
  EXPECT_FALSE(second.Accept().has_value());
  const std::optional<MemoryConflict> conflict = third.Accept();
  ASSERT_TRUE(conflict.has_value());
  EXPECT_EQ(conflict->job.seq, JobSeq(3));
  EXPECT_EQ(conflict->overlap.extent.begin, 9995u);
}

TEST(ClaimedMemoryTest, IsQuickUntilItsPartsUseManyRanges) {
  const auto claimed = std::make_shared<ClaimedMemory>();
  const auto claim = [&](uint64_t seq, uint64_t length) {
    std::vector<Extent> writes;
    for (uint64_t i = 0; i < length; ++i) writes.push_back({{1, 1}, seq + 100 * i, seq + 100 * i + 1});
    auto uses = std::make_shared<const UsedMemory>(std::vector<Extent>(), std::move(writes), false, claimed->known());
    return MemoryClaim(claimed, {{{BootId(1), 1}, JobSeq(seq)}, Rank(0), std::move(uses)});
  };
  std::vector<MemoryClaim> claims;
  for (uint64_t seq = 1; seq <= 3; ++seq) claims.push_back(claim(seq, 100'000));
  for (uint64_t seq = 4; seq <= 19; ++seq) claims.push_back(claim(seq, 64));
  EXPECT_TRUE(claimed->IsQuick());
  claims.push_back(claim(20, 1));
  EXPECT_FALSE(claimed->IsQuick());
  claims.erase(claims.begin());
  EXPECT_TRUE(claimed->IsQuick());
}

}  // namespace
}  // namespace railsd::testing
