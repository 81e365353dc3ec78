// Groups that go on without a node, and jobs that end while their streams are built.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <random>
#include <string>

#include "tests/support/seeds.h"
#include "tests/unit/agent/jobs/cluster.h"

namespace railsd::testing {
namespace {

using ::testing::UnorderedElementsAre;

constexpr Recovery kDegrade{RecoveryPolicy::kDegrade, absl::ZeroDuration()};

// n2 has given n0 up a moment before n0 has given up n2; the link is lost at both ends. No node has lost n1.
TEST(LeftOutTest, ADegradedGroupGoesOnThoughTheOtherEndOfTheLinkWasLostFirst) {
  int failed = 0;
  for (const uint64_t seed : Seeds(20)) {
    Cluster cluster({.nodes = 3, .rails = 2, .seed = seed, .plan = {.chunk_bytes = 64 << 10}});
    Exchange exchange(&cluster, 3, "g", {.buffer_bytes = 6 << 20, .recovery = kDegrade});
    exchange.SetLengths(AllLengths(3, 2'000'000), seed);
    exchange.SubmitAll(1);
    cluster.Run([&] { return cluster.HasReceived(2, 0); });
    cluster.Lose(2, 0, "a cut cable");
    // Its rails' threads are receiving in this very moment, and take the engine's command after that.
    for (auto& rail : cluster.node(2).rails) rail->Receive(cluster.now());
    for (auto& rail : cluster.node(2).rails) rail->frozen = true;
    cluster.RunSteps(6);
    for (auto& rail : cluster.node(2).rails) rail->frozen = false;
    cluster.node(0).engine->OnPeerDown("n2", "a cut cable");
    cluster.RunFor(absl::Seconds(6));
    for (uint32_t r : {0u, 1u, 2u}) {
      const auto report = *exchange.trainer(r).Wait(1);
      const bool done = report.ok() && report->state == JobState::kDone;
      if (!done && failed++ == 0) {
        ADD_FAILURE() << "seed " << seed << " rank " << r << ": " << (report.ok() ? report->status : report.status());
      }
    }
    if (failed == 0) cluster.ExpectNothingOpen();
  }
  EXPECT_EQ(failed, 0);
}

// R9
TEST(LeftOutTest, EveryLostRankIsNamed) {
  Cluster cluster({.nodes = 3, .rails = 1});
  Exchange exchange(&cluster, "g", AllLengths(3, 0), {.recovery = kDegrade});
  for (size_t n : {1u, 2u}) {
    for (auto& rail : cluster.node(n).rails) rail->frozen = true;
    cluster.node(0).engine->OnPeerDown(cluster.node(n).name, "silent");
  }
  cluster.Run();
  ASSERT_TRUE(exchange.trainer(0).Submit(exchange.For(0, 1)).ok());
  cluster.Run();
  const JobReport report = exchange.Report(0, 1);
  EXPECT_THAT(report.lost_ranks, UnorderedElementsAre(Rank(1), Rank(2)));
}

// Groups go on without a node while rails fail.
TEST(LeftOutTest, DegradeUnderFailingRails) {
  int failed = 0, unended = 0;
  for (const uint64_t seed : Seeds(40)) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const bool remote = seed % 3 != 0, weak = seed % 3 == 1;
    Cluster cluster({.remote = remote,
                     .nodes = 4,
                     .rails = 2,
                     .seed = seed,
                     .plan = {.chunk_bytes = 16 << 10},
                     .zone_room = seed % 2 == 0 ? 4u : 1024u,
                     .weak_zones = weak});
    Exchange exchange(&cluster, 8, "g", {.buffer_bytes = 2 << 20, .recovery = kDegrade});
    exchange.ReceiveApart(3);
    exchange.SetLengths(Exchange::RandomLengths(8, 100'000, random), seed);
    for (size_t i = 0; i < 8; ++i) cluster.fabric().SetStepBytes(cluster.AddressOf(i / 2, i % 2), 8 << 10);
    for (uint64_t seq = 1; seq <= 3; ++seq) exchange.SubmitAll(seq, 2);
    cluster.RunSteps(random() % 60);
    for (uint64_t i = random() % 4; i > 0; --i) {
      const std::string address = cluster.AddressOf(random() % 4, random() % 2);
      cluster.fabric().Fail(address);
      cluster.RunSteps(random() % 12);
      cluster.fabric().Heal(address);
      cluster.RunSteps(random() % 12);
    }
    const size_t a = random() % 4, b = (a + 1 + random() % 3) % 4;
    cluster.fabric().Fail(cluster.AddressOf(a, 0));
    cluster.RunSteps(random() % 10);
    cluster.Cut(a, b);
    cluster.RunSteps(random() % 10);
    cluster.fabric().Heal(cluster.AddressOf(a, 0));
    cluster.Run();
    for (int i = 0; i < 10; ++i) {
      cluster.Advance(absl::Milliseconds(60));
      cluster.Run();
    }
    for (uint32_t r = 0; r < 8; ++r) {
      for (uint64_t seq = 1; seq <= 3; ++seq) {
        const auto report = *exchange.trainer(r).Wait(seq);
        if (!report.ok()) {
          if (unended++ == 0) {
            const auto e = cluster.node(r % 4).engine->Explain({.tenant = "", .group = "", .seq = JobSeq(seq)});
            ADD_FAILURE() << "not ended: rank " << r << " job " << seq << " " << report.status() << " remote " << remote
                          << " weak " << weak << " lost " << a << "-" << b << " waits "
                          << (e.ok() ? e->waits_for : e.status().ToString());
          }
        } else if (report->state != JobState::kDone && failed++ == 0) {
          ADD_FAILURE() << "rank " << r << " job " << seq << " " << report->status << " remote " << remote << " weak "
                        << weak << " lost " << a << "-" << b;
        }
      }
    }
    if (unended == 0 && failed == 0) cluster.ExpectNothingOpen();
  }
}

// The streams of a large job are built elsewhere, so the engine goes on.
TEST(LeftOutTest, ThingsThatHappenWhileStreamsAreBuilt) {
  for (const uint64_t seed : Seeds(24)) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    Cluster cluster({.remote = seed % 2 == 0, .nodes = 3, .rails = 2, .seed = seed, .plan = {.chunk_bytes = 16 << 10}});
    Exchange exchange(&cluster, "g", AllLengths(6, 20'000), {.recovery = seed % 3 == 0 ? kDegrade : Recovery{}});
    for (size_t n = 0; n < 3; ++n) cluster.node(n).copier.held = random() % 3 != 0;
    for (uint32_t r = 0; r < 6; ++r) ASSERT_TRUE(exchange.trainer(r).Submit(exchange.For(r, 1, 400)).ok());
    cluster.RunSteps(random() % 30);
    const uint32_t rank = random() % 6;
    switch (random() % 4) {
      case 0:
        exchange.trainer(rank).Cancel(1);
        break;
      case 1:
        cluster.node(rank % 3).engine->CloseSession(exchange.trainer(rank).session, "killed", [](absl::Status) {});
        break;
      case 2: {
        const size_t a = rank % 3, b = (a + 1) % 3;
        cluster.Cut(a, b);
        break;
      }
      default:
        cluster.fabric().Break(cluster.AddressOf(0, 0), PeerIndex(0), ECONNRESET);
    }
    cluster.RunSteps(random() % 30);
    for (size_t n = 0; n < 3; ++n) cluster.node(n).copier.held = false;
    cluster.RunFor(absl::Seconds(2));
    for (size_t n = 0; n < 3; ++n) {
      EXPECT_TRUE(cluster.node(n).engine->Idle()) << "node " << n;
    }
    cluster.ExpectNothingOpen();
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace railsd::testing
