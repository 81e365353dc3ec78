#include "tests/unit/agent/jobs/fault_world.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <numeric>

#include "absl/strings/str_cat.h"

namespace railsd::testing {
namespace {

constexpr absl::Duration kJobTime = absl::Seconds(10);
constexpr uint8_t kUntouched = 0xee;
// A trainer fills its buffers with these once they are its own again. A late read would send the one, a late write
// would overwrite the other.
constexpr uint8_t kScribble = 0x5a, kPoison = 0xa5;

}  // namespace

FaultWorld::FaultWorld(const FaultWorldOptions& options) : options_(options), random_(options.seed) {
  Cluster::Options shape{.remote = options.remote,
                         .nodes = options.nodes,
                         .rails = options.rails,
                         .seed = options.seed,
                         .plan = {.chunk_bytes = 16 << 10},
                         .weak_zones = options.weak_zones};
  faulty_.resize(options.nodes * options.rails);
  shape.wrap = [&](size_t node, size_t rail, std::unique_ptr<RailTransport> inner) {
    const std::string address = inner->Info().address;
    auto faulty = std::make_unique<FaultyTransport>(std::move(inner), options_.seed * 64 + node * options_.rails + rail,
                                                    FaultRates{}, [this, address](PeerIndex peer) {
                                                      if (cluster_ != nullptr)
                                                        cluster_->fabric().Break(address, peer, ECONNRESET);
                                                    });
    faulty_[node * options_.rails + rail] = faulty.get();
    return faulty;
  };
  cluster_ = std::make_unique<Cluster>(shape);
  for (size_t g = 0; g < options.groups; ++g) MakeTeam(g);
  cluster_->Run();
  for (Team& team : teams_) {
    for (Member& member : team.members) EXPECT_TRUE(member.group.ok()) << member.group.status();
  }
  for (FaultyTransport* faulty : faulty_) faulty->SetRates(options.rates);
}

void FaultWorld::MakeTeam(size_t number) {
  Team& team = teams_.emplace_back();
  team.name = absl::StrCat("team", number);
  const auto world = static_cast<uint32_t>(2 + random_() % (2 * options_.nodes - 1));
  for (size_t job = 0; job < options_.jobs; ++job) {
    team.lengths.push_back(Exchange::RandomLengths(world, options_.flow_bytes, random_));
  }
  for (uint32_t r = 0; r < world; ++r) {
    Member& member = team.members.emplace_back();
    member.node = (number + r) % options_.nodes;
    member.session = cluster_->OpenSession(member.node);
    for (size_t job = 0; job < options_.jobs; ++job) {
      Part& part = member.parts.emplace_back();
      uint64_t out = 0, in = 0;
      for (uint32_t other = 0; other < world; ++other) {
        out += team.lengths[job][r][other];
        in += team.lengths[job][other][r];
      }
      part.send = std::make_unique<Buffer>(out + 64);
      part.receive = std::make_unique<Buffer>(in + 64);
      uint8_t* at = part.send->data();
      for (uint32_t d = 0; d < world; ++d) {
        for (uint64_t i = 0; i < team.lengths[job][r][d]; ++i) *at++ = Pattern(team, r, d, job, i);
      }
      std::fill_n(part.receive->data(), part.receive->size(), kUntouched);
      cluster_->AddSegment(member.node, member.session, static_cast<uint32_t>(2 * job + 1), *part.send);
      cluster_->AddSegment(member.node, member.session, static_cast<uint32_t>(2 * job + 2), *part.receive);
    }
    cluster_->node(member.node)
        .engine->Join({member.session, team.name, "secret", world, Rank(r), absl::Seconds(60)},
                      [&member](absl::StatusOr<GroupView> view) { member.group = std::move(view); });
  }
}

uint8_t FaultWorld::Pattern(const Team& team, uint32_t source, uint32_t destination, size_t job, uint64_t at) const {
  uint64_t x = options_.seed * 0x9e3779b97f4a7c15 + source * 0xbf58476d1ce4e5b9 + destination * 0x94d049bb133111eb +
               job * 0xd6e8feb86659fd93 + team.name.back() * 0xa0761d6478bd642f + at;
  x ^= x >> 29;
  x *= 0xff51afd7ed558ccd;
  return static_cast<uint8_t>(x >> 56);
}

std::vector<FlowRanges> FaultWorld::Flows(const Team& team, uint32_t rank, size_t job, bool sends) {
  std::vector<FlowRanges> flows;
  uint64_t offset = 0;
  for (uint32_t peer = 0; peer < team.members.size(); ++peer) {
    const uint64_t length = sends ? team.lengths[job][rank][peer] : team.lengths[job][peer][rank];
    if (peer == rank && length == 0) continue;
    FlowRanges flow{Rank(peer), {}};
    const uint64_t step = std::max<uint64_t>(1, length / (1 + random_() % 3));
    for (uint64_t done = 0; done < length;) {
      const uint64_t piece = std::min(step, length - done);
      flow.ranges.push_back({SegmentId(static_cast<uint32_t>(2 * job + (sends ? 1 : 2))), offset + done, piece});
      done += piece;
    }
    offset += length;
    flows.push_back(std::move(flow));
  }
  return flows;
}

void FaultWorld::SubmitNext(Team& team, uint32_t rank) {
  Member& member = team.members[rank];
  if (member.dead || member.submitted == options_.jobs) return;
  const size_t job = member.submitted++;
  Submission submission;
  submission.session = member.session;
  submission.job = {member.group->epoch, JobSeq(job + 1)};
  submission.rank = Rank(rank);
  submission.tag = job;
  submission.urgent = (job + rank) % 3 == 0;
  submission.sends = Flows(team, rank, job, true);
  submission.receives = Flows(team, rank, job, false);
  submission.timeout = options_.deadlines && random_() % 4 == 0 ? absl::Milliseconds(1 + random_() % 200) : kJobTime;
  const JobKey key = submission.job;
  Engine& engine = *cluster_->node(member.node).engine;
  absl::Status answer = absl::UnknownError("no answer");
  engine.Submit(engine.Check(submission), [&](absl::Status s) { answer = std::move(s); });
  Part& part = member.parts[job];
  if (!answer.ok()) {
    EXPECT_EQ(answer.code(), absl::StatusCode::kFailedPrecondition) << answer;
    EXPECT_NE(answer.message().find("is broken: "), std::string::npos) << answer;
    member.submitted = options_.jobs;  // so are those that follow
    all_crossed_once_ = false;
    return GiveBack(part);
  }
  part.accepted = true;
  engine.Wait(
      member.session, key, Rank(rank), absl::Hours(24),
      [this, &team, rank, job](const absl::StatusOr<JobReport>& report) { OnTerminal(team, rank, job, report); });
}

void FaultWorld::OnTerminal(Team& team, uint32_t rank, size_t job, const absl::StatusOr<JobReport>& report) {
  Part& part = team.members[rank].parts[job];
  ASSERT_TRUE(report.ok()) << report.status();
  ASSERT_FALSE(part.report.has_value()) << "told twice";
  part.report = *report;
  if (report->state == JobState::kDone) {
    ++done_;
    EXPECT_EQ(report->bytes_sent, report->bytes_to_send);
    EXPECT_EQ(report->bytes_received, report->bytes_to_receive);
    ExpectBytes(team, rank, job);
  } else {
    EXPECT_EQ(report->state, JobState::kFailed);
    ++failed_[report->status.code()];
    all_crossed_once_ = false;
  }
  GiveBack(part);
}

void FaultWorld::ExpectBytes(const Team& team, uint32_t rank, size_t job) const {
  const Buffer& buffer = *team.members[rank].parts[job].receive;
  const uint8_t* at = buffer.data();
  for (uint32_t s = 0; s < team.members.size(); ++s) {
    for (uint64_t i = 0; i < team.lengths[job][s][rank]; ++i, ++at) {
      ASSERT_EQ(*at, Pattern(team, s, rank, job, i))
          << team.name << " job " << job << " from " << s << " to " << rank << " at " << i;
    }
  }
  const uint8_t* end = buffer.data() + buffer.size();
  ASSERT_EQ(std::find_if(at, end, [](uint8_t b) { return b != kUntouched; }), end) << team.name << " rank " << rank;
}

void FaultWorld::GiveBack(Part& part) {
  if (std::exchange(part.given_back, true)) return;
  std::fill_n(part.send->data(), part.send->size(), kScribble);
  std::fill_n(part.receive->data(), part.receive->size(), kPoison);
}

void FaultWorld::Kill(Member& member) {
  if (std::exchange(member.dead, true)) return;
  cluster_->node(member.node)
      .engine->CloseSession(member.session, "pid 42 was killed", [&member, this](absl::Status s) {
        EXPECT_TRUE(s.ok()) << s;
        member.closed = true;
        for (Part& part : member.parts) GiveBack(part);  // nothing of the session is used any more
      });
}

void FaultWorld::Steps(uint64_t count) {
  cluster_->Run([&count] { return count-- == 0; });
}

void FaultWorld::Happen() {
  const size_t node = random_() % options_.nodes, rail = random_() % options_.rails;
  Team& team = teams_[random_() % teams_.size()];
  const auto rank = static_cast<uint32_t>(random_() % team.members.size());
  Member& member = team.members[rank];
  const uint32_t what = random_() % 16;
  if (what < 8) return SubmitNext(team, rank);
  if (what == 8 && options_.cancels && member.submitted > 0 && !member.dead) {
    const JobKey key{member.group->epoch, JobSeq(1 + random_() % member.submitted)};
    return cluster_->node(member.node).engine->Cancel(member.session, key, Rank(rank), [](const absl::Status&) {});
  }
  if (what == 9 && options_.deaths && random_() % 4 == 0) return Kill(member);
  if (what == 10) return cluster_->Advance(absl::Milliseconds(random_() % 200));
  Act(what, node, rail);
}

void FaultWorld::Act(uint32_t what, size_t node, size_t rail) {
  if (what == 11 && options_.drains) {
    cluster_->node(node).engine->DrainRail(absl::StrCat(rail), random_() % 2 == 0, [](const absl::Status&) {});
  }
  if (what == 12 && options_.dead_rails) {
    cluster_->fabric().Fail(*failed_rails_.insert(cluster_->AddressOf(node, rail)).first);
  }
  if (what == 13 && !failed_rails_.empty()) {
    cluster_->fabric().Heal(*failed_rails_.begin());
    failed_rails_.erase(failed_rails_.begin());
  }
  if (what == 14 && options_.lost_peers && random_() % 4 == 0) {
    const size_t other = (node + 1) % options_.nodes;
    const std::pair pair(std::min(node, other), std::max(node, other));
    if (lost_.insert(pair).second) cluster_->Lose(node, other, "silent for 5 s");
  }
  if (what == 15) MendPeers();
}

void FaultWorld::MendPeers() {
  for (const auto& [a, b] : lost_) cluster_->Meet(a, b);
  lost_.clear();
}

void FaultWorld::Live() {
  for (size_t i = 0; i < options_.moments; ++i) {
    Steps(random_() % 30);
    Happen();
  }
  for (Team& team : teams_) {
    for (uint32_t rank = 0; rank < team.members.size(); ++rank) {
      for (size_t job = 0; job < options_.jobs; ++job) SubmitNext(team, rank);
    }
  }
  Steps(50);
}

void FaultWorld::Settle() {
  for (FaultyTransport* faulty : faulty_) faulty->SetRates({});
  for (const std::string& address : failed_rails_) cluster_->fabric().Heal(address);
  // Two nodes may have no rail in common that neither has drained.
  for (size_t i = 0; !options_.keeps_drained && i < options_.nodes * options_.rails; ++i) {
    cluster_->node(i / options_.rails)
        .engine->DrainRail(absl::StrCat(i % options_.rails), false, [](const absl::Status&) {});
  }
  MendPeers();
  // The time of a job, and then what its end may wait for: a word of the other side.
  const auto enough = kJobTime + absl::Seconds(10);
  for (absl::Duration passed; passed < enough; passed += absl::Seconds(1)) {
    cluster_->Run();
    cluster_->Advance(absl::Seconds(1));
  }
  cluster_->Run();
  for (const Team& team : teams_) {
    for (uint32_t r = 0; r < team.members.size(); ++r) {
      for (size_t job = 0; job < options_.jobs; ++job) {
        const Part& part = team.members[r].parts[job];
        EXPECT_TRUE(!part.accepted || part.report.has_value())
            << team.name << " rank " << r << " job " << job << " never ends";
      }
    }
  }
}

void FaultWorld::ExpectAllDone() {
  EXPECT_TRUE(failed_.empty());
  for (Team& team : teams_) {
    for (const Member& member : team.members) {
      for (const Part& part : member.parts) {
        ASSERT_TRUE(part.report.has_value()) << team.name;
        EXPECT_EQ(part.report->state, JobState::kDone) << part.report->status;
      }
    }
    for (size_t job = 0; job < options_.jobs; ++job) CheckRails(team, job);
  }
}

uint64_t FaultWorld::BytesOf(const Team& team, size_t job, size_t from_node) const {
  uint64_t bytes = 0;
  for (uint32_t s = 0; s < team.members.size(); ++s) {
    for (uint32_t d = 0; d < team.members.size(); ++d) {
      const bool leaves = team.members[s].node == from_node && team.members[d].node != from_node;
      bytes += leaves ? team.lengths[job][s][d] : 0;
    }
  }
  return bytes;
}

// The rails of each node report as many bytes of the job as its flows have.
void FaultWorld::CheckRails(Team& team, size_t job) {
  for (size_t node = 0; node < options_.nodes; ++node) {
    uint64_t most = 0;
    bool any = false;
    for (uint32_t r = 0; r < team.members.size(); ++r) {
      Member& member = team.members[r];
      if (member.node != node) continue;
      any = true;
      const auto& tx = member.parts[job].report->rail_tx_bytes;
      most = std::max(most, std::accumulate(tx.begin(), tx.end(), uint64_t{0}));  // the last one saw all
    }
    if (!any) continue;
    EXPECT_EQ(most, BytesOf(team, job, node)) << team.name << " job " << job << " node " << node;
  }
}

void FaultWorld::Check(const std::set<absl::StatusCode>& codes) {
  for (Team& team : teams_) {
    for (Member& member : team.members) {
      for (const Part& part : member.parts) {
        if (!part.report.has_value() || part.report->status.ok()) continue;
        EXPECT_TRUE(codes.contains(part.report->status.code())) << part.report->status;
      }
      Kill(member);
    }
  }
  cluster_->Run();
  cluster_->Advance(absl::Seconds(10));
  cluster_->Run();
  // A fence of a flow that is over, whose completion is lost, keeps its job on record (but no memory) until its
  // connection ends.
  for (size_t i = 0; i < faulty_.size() && counts().lost_sends > 0; ++i) {
    const std::string address = cluster_->AddressOf(i / options_.rails, i % options_.rails);
    cluster_->fabric().Fail(address);
    cluster_->fabric().Heal(address);
  }
  cluster_->Run();
  cluster_->ExpectNothingOpen();
  uint64_t expected = 0, received = 0;
  for (const Team& team : teams_) {
    for (const Member& member : team.members) {
      EXPECT_TRUE(member.closed) << "a session on n" << member.node << " is never given up";
      for (const Part& part : member.parts) {
        for (const auto& [buffer, value] : {std::pair(&part.send, kScribble), std::pair(&part.receive, kPoison)}) {
          const uint8_t* begin = (*buffer)->data();
          const uint8_t* end = begin + (*buffer)->size();
          EXPECT_EQ(std::find_if(begin, end, [v = value](uint8_t b) { return b != v; }), end)
              << team.name << ": written after it was given back";
        }
      }
    }
    for (size_t job = 0; job < options_.jobs; ++job) {
      for (size_t node = 0; node < options_.nodes; ++node) expected += BytesOf(team, job, node);
    }
  }
  for (size_t node = 0; node < options_.nodes; ++node) {
    const AgentSnapshot snapshot = cluster_->node(node).engine->Snapshot(0);
    EXPECT_TRUE(snapshot.sessions.empty());
    for (const GroupView& group : snapshot.groups) {
      ADD_FAILURE() << "group " << group.name << " is left on n" << node << " (broken: " << group.why << ", next "
                    << group.next_seq.value() << ")";
    }
    for (size_t rail = 0; rail < options_.rails; ++rail) {
      EXPECT_EQ(faulty_[node * options_.rails + rail]->held(), 0u);
      received += cluster_->node(node).rails[rail]->counters().rx_payload_bytes.load();
    }
  }
  // A rail that fails leaves bytes in doubt, which are sent again.
  if (options_.remote || !all_crossed_once_) return;
  EXPECT_GE(received, expected);
  if (counts().broken + counts().failed_posts == 0) {
    EXPECT_EQ(received, expected) << "each byte crosses once";
  }
}

FaultCounts FaultWorld::counts() const {
  FaultCounts sum;
  for (const FaultyTransport* faulty : faulty_) sum += faulty->counts();
  return sum;
}

}  // namespace railsd::testing
