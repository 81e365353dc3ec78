// Exchanges that ride in READY, in jobs that are cancelled or lose a node at any moment.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "tests/support/seeds.h"
#include "tests/unit/agent/jobs/cluster.h"

namespace railsd::testing {
namespace {

constexpr uint64_t kThreshold = 4096;
constexpr uint8_t kEndedByte = 0x55;

// Whether a rank's job has ended, and that nothing is written to its memory afterwards.
class EndWatch {
 public:
  EndWatch(Exchange* exchange, uint64_t seq) : exchange_(*exchange) {
    for (uint32_t r = 0; r < exchange_.world(); ++r) reports_.push_back(exchange_.trainer(r).Wait(seq));
    ended_.resize(reports_.size());
  }
  // After each step.
  void Look() {
    for (uint32_t r = 0; r < reports_.size(); ++r) {
      if (ended_[r] || !reports_[r]->ok()) continue;
      ended_[r] = true;
      if ((*reports_[r])->state == JobState::kFailed) std::memset(Memory(r).data(), kEndedByte, Memory(r).size());
    }
  }
  void ExpectEnded() {
    for (uint32_t r = 0; r < reports_.size(); ++r) {
      SCOPED_TRACE(r);
      ASSERT_TRUE(reports_[r]->ok()) << reports_[r]->status();
      const JobReport& report = **reports_[r];
      ASSERT_TRUE(ended_[r]);
      EXPECT_LE(report.bytes_sent, report.bytes_to_send);
      EXPECT_LE(report.bytes_received, report.bytes_to_receive);
      if (report.state == JobState::kDone) {
        EXPECT_EQ(report.bytes_sent, report.bytes_to_send);
        EXPECT_EQ(report.bytes_received, report.bytes_to_receive);
        std::vector<uint32_t> others;
        for (uint32_t other = 0; other < exchange_.world(); ++other) others.push_back(other);
        exchange_.ExpectBytesBetween(others, r);
      } else {
        const uint8_t* const at = Memory(r).data();
        EXPECT_TRUE(std::all_of(at, at + Memory(r).size(), [](uint8_t b) { return b == kEndedByte; }));
      }
    }
  }

 private:
  Buffer& Memory(uint32_t rank) { return *exchange_.trainer(rank).receive; }
  Exchange& exchange_;
  std::vector<std::shared_ptr<absl::StatusOr<JobReport>>> reports_;
  std::vector<bool> ended_;
};

class EagerAbortTest : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Rails, EagerAbortTest, ::testing::Bool(), ModeOf);

TEST_P(EagerAbortTest, NothingIsWrittenOnceAJobHasEnded) {
  uint64_t failed = 0;
  for (const uint64_t seed : Seeds(60)) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    Cluster cluster({.remote = GetParam(),
                     .nodes = 3,
                     .rails = 2,
                     .seed = seed,
                     .zone_room = static_cast<uint32_t>(1 + random() % 8),
                     .eager_bytes_of = {0, kThreshold, kThreshold / 4}});
    Exchange exchange(&cluster, 6, "g");
    for (uint64_t seq = 1; seq <= 2; ++seq) {
      exchange.SetLengths(Exchange::RandomLengths(6, kThreshold, random), seed);
      exchange.SubmitAll(seq, 1 + random() % 3);
      EndWatch watch(&exchange, seq);
      int left = static_cast<int>(random() % 60);
      cluster.Run([&] {
        watch.Look();
        return --left < 0;
      });
      const uint32_t rank = static_cast<uint32_t>(random() % 6);
      Trainer& trainer = exchange.trainer(rank);
      const bool cancel = random() % 2 == 0;
      if (cancel) {
        cluster.node(trainer.node)
            .engine->Cancel(trainer.session, {trainer.group->epoch, JobSeq(seq)}, Rank(rank), [](absl::Status) {});
      } else if (seq == 2) {
        const size_t a = random() % 3, b = (a + 1) % 3;
        cluster.node(a).engine->OnPeerDown(cluster.node(b).name, "a cut cable");
        cluster.node(b).engine->OnPeerDown(cluster.node(a).name, "a cut cable");
        cluster.Hold(a, b);
        cluster.Hold(b, a);
      }
      watch.Look();
      for (int i = 0; i < 8; ++i) {
        cluster.Run([&] {
          watch.Look();
          return false;
        });
        watch.Look();
        cluster.Advance(absl::Seconds(1));
      }
      watch.Look();
      watch.ExpectEnded();
      cluster.ExpectNothingOpen();
      if (HasFailure()) return;
      const bool broken = cluster.node(0).engine->Snapshot(0).groups.at(0).broken;
      failed += broken;
      if (broken) break;
    }
  }
  EXPECT_GT(failed, 0u);
}

}  // namespace
}  // namespace railsd::testing
