// Bytes, and counts of bytes, wherever the ranks of a group are.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>

#include "absl/strings/str_cat.h"
#include "tests/support/seeds.h"
#include "tests/unit/agent/jobs/cluster.h"

namespace railsd::testing {
namespace {

// Joins all ranks, each on a node drawn at random; every node has one. Returns the node of each.
std::vector<size_t> PlaceAnywhere(Cluster* cluster, Exchange* exchange, std::mt19937_64& random) {
  std::vector<size_t> place(exchange->world());
  for (size_t r = 0; r < place.size(); ++r) place[r] = r < cluster->size() ? r : random() % cluster->size();
  std::shuffle(place.begin(), place.end(), random);
  for (uint32_t r = 0; r < place.size(); ++r) {
    Trainer& trainer = exchange->trainer(r);
    trainer.node = place[r];
    trainer.session = cluster->OpenSession(trainer.node, "t");
    cluster->AddSegment(trainer.node, trainer.session, 1, *trainer.send);
    cluster->AddSegment(trainer.node, trainer.session, 2, *trainer.receive);
  }
  exchange->JoinAll();
  return place;
}

// Ranks in any order on nodes, some nodes with many and some with few; flows submitted in any order, empty ones and
// ones left out, small jobs and such that are built elsewhere, all policies, rails that fail.
TEST(PlacementTest, BytesAreRightWhereverRanksAre) {
  for (const uint64_t seed : Seeds(60)) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const Policy policy = kAllPolicies[random() % std::size(kAllPolicies)];
    const size_t nodes = 1 + random() % 4, rails = 1 + random() % 3;
    const uint32_t world = static_cast<uint32_t>(nodes + random() % 8);
    Cluster cluster({.remote = seed % 2 == 0,
                     .nodes = nodes,
                     .rails = rails,
                     .seed = seed,
                     .plan = {.policy = policy, .chunk_bytes = 16 << 10},
                     .zone_room = random() % 3 == 0 ? 1u : 1024u});
    Exchange exchange(&cluster, world, "g", {.buffer_bytes = 5 << 18, .join = false});
    PlaceAnywhere(&cluster, &exchange, random);
    for (uint64_t seq = 1; seq <= 3; ++seq) {
      exchange.SetLengths(Exchange::RandomLengths(world, 100'000, random), seed * 10 + seq);
      const size_t pieces = random() % 2 == 0 ? 1 + random() % 3 : 700;
      std::vector<std::shared_ptr<absl::StatusOr<JobReport>>> reports;
      std::vector<uint32_t> order(world);
      std::iota(order.begin(), order.end(), 0);
      std::shuffle(order.begin(), order.end(), random);
      for (uint32_t r : order) {
        Submission submission = exchange.For(r, seq, pieces);
        for (auto* flows : {&submission.sends, &submission.receives}) {
          std::erase_if(*flows, [&](const FlowRanges& f) { return f.ranges.empty() && random() % 2 == 0; });
          std::shuffle(flows->begin(), flows->end(), random);
        }
        ASSERT_TRUE(exchange.trainer(r).Submit(submission).ok());
        reports.push_back(exchange.trainer(r).Wait(seq));
        if (random() % 2 == 0) cluster.Run([n = random() % 20]() mutable { return n-- == 0; });
      }
      if (random() % 2 == 0 && nodes > 1) cluster.FailRails(2, random);
      cluster.RunFor(absl::Seconds(2));
      for (const auto& report : reports) {
        ASSERT_TRUE(report->ok()) << report->status();
        ASSERT_EQ((*report)->state, JobState::kDone) << (*report)->status;
        ASSERT_EQ((*report)->bytes_sent, (*report)->bytes_to_send);
        ASSERT_EQ((*report)->bytes_received, (*report)->bytes_to_receive);
      }
      exchange.ExpectBytes();
      cluster.ExpectNothingOpen();
      if (HasFailure()) return;
    }
  }
}

// Reports of a cancelled job say of each rank what is in its memory (framed rails, nothing local).
TEST(PlacementTest, PartialBytesOfFailedJobsAreOfTheRightRanks) {
  uint64_t partial = 0;
  for (const uint64_t seed : Seeds(60)) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const size_t nodes = 2 + random() % 2;
    const uint32_t world = static_cast<uint32_t>(nodes + random() % 6);
    Cluster cluster({.nodes = nodes, .rails = 2, .seed = seed, .plan = {.chunk_bytes = 16 << 10}});
    Exchange exchange(&cluster, world, "g", {.buffer_bytes = 8 << 20, .join = false});
    const std::vector<size_t> place = PlaceAnywhere(&cluster, &exchange, random);
    auto lengths = Exchange::RandomLengths(world, 800'000, random);
    for (uint32_t a = 0; a < world; ++a) {
      for (uint32_t b = 0; b < world; ++b) lengths[a][b] = place[a] == place[b] ? 0 : lengths[a][b];
    }
    exchange.SetLengths(lengths, seed);
    const size_t pieces = random() % 2 == 0 ? 2 : 900;
    for (uint32_t r = 0; r < world; ++r) ASSERT_TRUE(exchange.trainer(r).Submit(exchange.For(r, 1, pieces)).ok());
    uint64_t to_carry = 0;
    for (const auto& row : lengths) to_carry = std::accumulate(row.begin(), row.end(), to_carry);
    const uint64_t enough = to_carry * (random() % 100) / 100;  // then the job is cancelled
    cluster.Run([&] { return to_carry > 0 && cluster.ReceivedBytes() >= enough; });
    if (random() % 3 == 0) cluster.FailRails(1, random);
    cluster.node(place[0]).engine->Cancel(exchange.trainer(0).session, {exchange.trainer(0).group->epoch, JobSeq(1)},
                                          Rank(0), [](absl::Status) {});
    cluster.RunFor(absl::Seconds(3));
    for (uint32_t r = 0; r < world; ++r) {
      const JobReport report = exchange.Report(r, 1);
      uint64_t total = 0;
      for (uint32_t s = 0; s < world; ++s) total += lengths[s][r];
      const uint8_t* const at = exchange.trainer(r).receive->data();
      const uint8_t untouched = at[exchange.trainer(r).receive->size() - 1];
      const uint64_t written = total - static_cast<uint64_t>(std::count(at, at + total, untouched));
      partial += report.bytes_received > 0 && report.bytes_received < total;
      EXPECT_LE(report.bytes_received, report.bytes_to_receive);
      EXPECT_LE(report.bytes_sent, report.bytes_to_send);
      EXPECT_NEAR(static_cast<double>(report.bytes_received), static_cast<double>(written),
                  static_cast<double>(total) / 50 + 40'000)
          << "rank " << r << " of " << total;
    }
    cluster.ExpectNothingOpen();
    if (HasFailure()) return;
  }
  EXPECT_TRUE(partial > 0 || SeedOr(0) != 0) << "no job was cancelled in the middle";
}

// Two rails of 100 MB/s carry 140 bytes in the 0.7 us that it takes to hand a rail its share.
TEST(PlacementTest, ShortExchangesGoOverOneRailInTurn) {
  Cluster cluster({.nodes = 2, .rails = 2, .plan = {.min_chunk_bytes = 1}});
  Exchange exchange(&cluster, 2, "g");
  uint64_t seq = 0;
  std::vector<BytesByRail> carried;
  for (const uint64_t bytes : {130, 130, 130, 130, 142}) {
    exchange.SetLengths({{0, bytes}, {0, 0}}, ++seq);
    exchange.RunJob(seq);
    carried.push_back((*exchange.trainer(0).Wait(seq))->rail_tx_bytes);
  }
  EXPECT_EQ(carried, (std::vector<BytesByRail>{{0, 130}, {130, 0}, {0, 130}, {130, 0}, {71, 71}}));
}

// Nodes that send to one at the same time choose different rails, also in their first job.
TEST(PlacementTest, ShortExchangesToOneNodeComeOverAllItsRails) {
  const std::pair<uint32_t, std::vector<uint64_t>> cases[] = {{3, {130, 130}}, {4, {130, 260}}};
  for (const uint64_t seed : Seeds(10)) {
    for (const auto& [nodes, received] : cases) {
      Cluster cluster({.nodes = nodes, .rails = 2, .seed = seed, .plan = {.min_chunk_bytes = 1}});
      Exchange exchange(&cluster, nodes, "g");
      for (const uint64_t seq : {1, 2, 3}) {
        exchange.SetLengths(AllLengths(nodes, 130), seq);
        exchange.RunJob(seq);
        for (uint32_t r = 0; r < nodes; ++r) {
          EXPECT_THAT((*exchange.trainer(r).Wait(seq))->rail_rx_bytes, ::testing::UnorderedElementsAreArray(received))
              << r;
        }
      }
    }
  }
}

// Rails of 100 MB/s at this end; READY says the speeds of the other end.
TEST(PlacementTest, PlansFollowTheSlowerEndAndUseNoRailThatReadyLacks) {
  const std::pair<BytesByRail, BytesByRail> cases[] = {{{100'000'000, 50'000'000}, {2000, 1000}},
                                                       {{900'000'000, 200'000'000}, {1500, 1500}},
                                                       {{0, 100'000'000}, {0, 3000}},
                                                       {{100'000'000}, {3000, 0}}};
  for (const auto& [told, planned] : cases) {
    Cluster cluster({.nodes = 2, .rails = 2, .plan = {.min_chunk_bytes = 1}});
    Exchange exchange(&cluster, "g", {{0, 3000}, {0, 0}});
    cluster.Hold(1, 0);
    exchange.SubmitAll(1);
    cluster.Run();
    ASSERT_EQ(Outgoing<Ready>(cluster, 1).size(), 1u);
    Outgoing<Ready>(cluster, 1)[0]->rails.bytes_per_s = told;
    cluster.Release(1, 0);
    cluster.Run();
    const auto report = exchange.trainer(0).Wait(1);
    ASSERT_TRUE(report->ok()) << report->status();
    EXPECT_EQ((*report)->state, JobState::kDone) << (*report)->status;
    EXPECT_EQ((*report)->rail_planned_bytes, planned);
  }
}

TEST(PlacementTest, ReadySaysWhichPartOfTheBytesToItsNodeComesFromTheReceiver) {
  Cluster cluster({.nodes = 4, .rails = 2});
  Exchange exchange(&cluster, "g", {{0, 0, 0, 10}, {30'000, 0, 0, 0}, {90'000, 50'000, 0, 0}, {0, 0, 0, 0}});
  for (size_t to : {1u, 2u, 3u}) cluster.Hold(0, to);
  exchange.SubmitAll(1);
  cluster.Run();
  std::vector<uint32_t> inflows;
  for (const Ready* ready : Outgoing<Ready>(cluster, 0)) inflows.push_back(ready->inflow_ppm);
  EXPECT_THAT(inflows, ::testing::UnorderedElementsAre(250'000, 750'000, 1));
  std::set<uint32_t> used;
  for (auto& rail : cluster.node(1).rails) {
    rail->watched.tamper = [&](SendOrder& order) {
      used.insert(order.stream->inflow_ppm);
      return true;
    };
  }
  for (size_t to : {1u, 2u, 3u}) cluster.Release(0, to);
  cluster.Run();
  exchange.ExpectDone(1);
  EXPECT_THAT(used, ::testing::ElementsAre(250'000)) << "by the rails of the receiver";
}

// Rank 1 may send nearly all that rank 0 gets, though rank 0 has room for as much from everyone.
TEST(PlacementTest, CapacitiesTellNoInflow) {
  constexpr uint64_t kSlot = 100'000;
  Cluster cluster({.nodes = 3, .rails = 1});
  Exchange exchange(&cluster, 3, "g", {.buffer_bytes = 3 * kSlot});
  exchange.SetLengths(AllLengths(3, 100), 1);
  cluster.Hold(0, 1);
  for (uint32_t r = 0; r < 3; ++r) {
    Submission submission = exchange.For(r, 1);
    submission.capacities = true;
    for (FlowRanges& flow : submission.receives) flow.ranges = {{SegmentId(2), flow.peer.value() * kSlot, kSlot}};
    ASSERT_TRUE(exchange.trainer(r).Submit(submission).ok());
  }
  cluster.Run();
  ASSERT_EQ(Outgoing<Ready>(cluster, 0).size(), 1u);
  EXPECT_EQ(Outgoing<Ready>(cluster, 0)[0]->inflow_ppm, 0u);
}

TEST(PlacementTest, NothingIsExpectedOfNodesThatTheGroupHasLost) {
  Cluster cluster({.nodes = 4, .rails = 1});
  Exchange exchange(&cluster, 4, "g",
                    {.buffer_bytes = 2 << 20, .recovery = {RecoveryPolicy::kDegrade, absl::ZeroDuration()}});
  for (size_t lost : {2u, 3u}) {
    for (auto& rail : cluster.node(lost).rails) rail->frozen = true;
    for (size_t n : {0u, 1u}) cluster.node(n).engine->OnPeerDown(cluster.node(lost).name, "silent");
  }
  cluster.Run();
  exchange.SetLengths(AllLengths(4, 100'000), 1);
  cluster.Hold(0, 1);
  for (uint32_t r : {0u, 1u}) ASSERT_TRUE(exchange.trainer(r).Submit(exchange.For(r, 1)).ok());
  cluster.Run();
  ASSERT_EQ(Outgoing<Ready>(cluster, 0).size(), 1u);
  EXPECT_EQ(Outgoing<Ready>(cluster, 0)[0]->inflow_ppm, 1'000'000u);
}

// READY's grant over TCP with a rail but without keys. The parser of the wire refuses it (peer_conversion.cc).
TEST(PlacementTest, KeysInAGrantOverTcpAreRefused) {
  Cluster cluster({.nodes = 2, .rails = 2});
  Exchange exchange(&cluster, "g", {{0, 1000}, {0, 0}});
  cluster.Hold(1, 0);
  exchange.SubmitAll(1);
  cluster.Run();
  ASSERT_EQ(Outgoing<Ready>(cluster, 1).size(), 1u);
  ASSERT_TRUE(Outgoing<Ready>(cluster, 1)[0]->grant.has_value());
  Outgoing<Ready>(cluster, 1)[0]->grant->keys.push_back({{RailIndex(1), 1}, {}});
  cluster.Release(1, 0);
  cluster.Run();
  exchange.ExpectFailed(1, "rails over TCP need such rails at both ends");
}

}  // namespace
}  // namespace railsd::testing
