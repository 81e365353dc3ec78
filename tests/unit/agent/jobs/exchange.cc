// Trainers, and the exchanges that they make over a cluster.
#include <algorithm>
#include <utility>

#include "tests/unit/agent/jobs/cluster.h"

namespace railsd::testing {
namespace {

constexpr uint8_t kUntouched = 0xee;

uint8_t Pattern(uint64_t seed, uint32_t source, uint32_t destination, uint64_t offset) {
  uint64_t x = seed * 0x9e3779b97f4a7c15 + source * 0xbf58476d1ce4e5b9 + destination * 0x94d049bb133111eb + offset;
  x ^= x >> 29;
  x *= 0xff51afd7ed558ccd;
  return static_cast<uint8_t>(x >> 56);
}

// With buffers that hold what any rank sends or receives.
ExchangeOptions Fitting(const Lengths& lengths, ExchangeOptions options) {
  for (size_t rank = 0; rank < lengths.size(); ++rank) {
    uint64_t sent = 0, received = 0;
    for (size_t peer = 0; peer < lengths.size(); ++peer) {
      sent += lengths[rank][peer];
      received += lengths[peer][rank];
    }
    options.buffer_bytes = std::max({options.buffer_bytes, sent, received});
  }
  return options;
}

}  // namespace

void Trainer::Join(const std::string& name, uint32_t world_size, absl::Duration timeout) {
  group = absl::UnknownError("joining");
  cluster->node(node).engine->Join({session, name, "secret", world_size, rank, timeout, recovery, next_seq},
                                   [this](absl::StatusOr<GroupView> view) { group = std::move(view); });
}

absl::Status Trainer::Submit(Submission submission) {
  absl::Status result = absl::UnknownError("no answer");
  submission.session = session;
  Engine& engine = *cluster->node(node).engine;
  engine.Submit(engine.Check(submission), [&](absl::Status s) { result = std::move(s); });
  return result;
}

std::shared_ptr<absl::StatusOr<JobReport>> Trainer::Wait(uint64_t seq) {
  auto result = std::make_shared<absl::StatusOr<JobReport>>(absl::UnknownError("not terminal"));
  cluster->node(node).engine->Wait(session, {group->epoch, JobSeq(seq)}, rank, absl::Hours(24),
                                   [result](absl::StatusOr<JobReport> report) { *result = std::move(report); });
  return result;
}

void Trainer::Cancel(uint64_t seq) {
  cluster->node(node).engine->Cancel(session, {group->epoch, JobSeq(seq)}, rank,
                                     [](absl::Status s) { EXPECT_TRUE(s.ok()) << s; });
}

void Trainer::Leave() {
  cluster->node(node).engine->Leave(session, group->epoch, rank, [](absl::Status s) { EXPECT_TRUE(s.ok()) << s; });
}

Exchange::Exchange(Cluster* cluster, uint32_t world, std::string name, const ExchangeOptions& options)
    : cluster_(cluster), name_(std::move(name)), more_(world) {
  for (uint32_t r = 0; r < world; ++r) {
    Trainer& trainer = trainers_.emplace_back();
    trainer.cluster = cluster;
    trainer.node = r % cluster->size();
    trainer.rank = Rank(r);
    trainer.session = cluster->OpenSession(trainer.node, options.tenant);
    trainer.recovery = options.recovery;
    trainer.send = std::make_unique<Buffer>(options.buffer_bytes);
    trainer.receive = std::make_unique<Buffer>(options.buffer_bytes);
    cluster->AddSegment(trainer.node, trainer.session, 1, *trainer.send);
    cluster->AddSegment(trainer.node, trainer.session, 2, *trainer.receive);
  }
  if (options.join) JoinAll();
}

Exchange::Exchange(Cluster* cluster, const std::string& name, const Lengths& lengths, ExchangeOptions options)
    : Exchange(cluster, static_cast<uint32_t>(lengths.size()), name, Fitting(lengths, std::move(options))) {
  SetLengths(lengths, 1);
}

void Exchange::JoinAll() {
  for (Trainer& trainer : trainers_) trainer.Join(name_, world());
  cluster_->Run();
  for (Trainer& trainer : trainers_) ASSERT_TRUE(trainer.group.ok()) << trainer.group.status();
}

void Exchange::ReceiveApart(size_t jobs) {
  for (Trainer& trainer : trainers_) {
    std::vector<std::unique_ptr<Buffer>>& more = more_[trainer.rank.value()];
    while (more.size() + 1 < jobs) {
      more.push_back(std::make_unique<Buffer>(trainer.receive->size()));
      cluster_->AddSegment(trainer.node, trainer.session, static_cast<uint32_t>(2 + more.size()), *more.back());
    }
  }
}

void Exchange::SetLengths(Lengths lengths, uint64_t seed) {
  lengths_ = std::move(lengths);
  seed_ = seed;
  for (uint32_t s = 0; s < world(); ++s) {
    uint8_t* at = trainers_[s].send->data();
    for (uint32_t d = 0; d < world(); ++d) {
      for (uint64_t i = 0; i < lengths_[s][d]; ++i) *at++ = Pattern(seed, s, d, i);
    }
    ASSERT_LE(at, trainers_[s].send->data() + trainers_[s].send->size());
    std::fill_n(trainers_[s].receive->data(), trainers_[s].receive->size(), kUntouched);
    for (const auto& buffer : more_[s]) std::fill_n(buffer->data(), buffer->size(), kUntouched);
  }
}

std::vector<FlowRanges> Exchange::Ranges(uint32_t rank, SegmentId segment, bool sends, size_t pieces) const {
  std::vector<FlowRanges> flows;
  uint64_t offset = 0;
  for (uint32_t peer = 0; peer < world(); ++peer) {
    const uint64_t length = sends ? lengths_[rank][peer] : lengths_[peer][rank];
    if (peer == rank && length == 0) continue;
    FlowRanges flow{Rank(peer), {}};
    // The two ends cut the flow differently.
    const uint64_t step = std::max<uint64_t>(1, length / (sends ? pieces : pieces + 1));
    for (uint64_t done = 0; done < length;) {
      const uint64_t piece = std::min(step, length - done);
      flow.ranges.push_back({segment, offset + done, piece});
      done += piece;
    }
    offset += length;
    flows.push_back(std::move(flow));
  }
  return flows;
}

Submission Exchange::For(uint32_t rank, uint64_t seq, size_t pieces) const {
  Submission submission;
  submission.job = {trainers_[rank].group->epoch, JobSeq(seq)};
  submission.rank = Rank(rank);
  submission.tag = seq;
  const auto place = static_cast<uint32_t>((seq - 1) % (more_[rank].size() + 1));
  submission.sends = Ranges(rank, SegmentId(1), true, pieces);
  submission.receives = Ranges(rank, SegmentId(2 + place), false, pieces);
  return submission;
}

void Exchange::SubmitAll(uint64_t seq, size_t pieces) {
  for (Trainer& trainer : trainers_) {
    const absl::Status s = trainer.Submit(For(trainer.rank.value(), seq, pieces));
    ASSERT_TRUE(s.ok()) << s;
    waits_[{seq, trainer.rank.value()}] = trainer.Wait(seq);
  }
}

void Exchange::RunJob(uint64_t seq, size_t pieces) {
  SubmitAll(seq, pieces);
  ExpectCompletes(seq);
}

void Exchange::ExpectCompletes(uint64_t seq) {
  cluster_->Run();
  ExpectDone(seq);
  ExpectBytes();
}

void Exchange::ExpectDone(uint64_t seq) {
  for (Trainer& trainer : trainers_) {
    const auto& report = *waits_.at({seq, trainer.rank.value()});
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_EQ(report->state, JobState::kDone) << report->status;
    EXPECT_EQ(report->bytes_sent, report->bytes_to_send);
    EXPECT_EQ(report->bytes_received, report->bytes_to_receive);
  }
}

JobReport Exchange::Report(uint32_t rank, uint64_t seq) {
  const absl::StatusOr<JobReport> report = *trainers_[rank].Wait(seq);
  EXPECT_TRUE(report.ok()) << "rank " << rank << ": " << report.status();
  return report.value_or(JobReport());
}

void Exchange::ExpectFailed(uint64_t seq, const std::string& why) {
  for (uint32_t rank = 0; rank < world(); ++rank) {
    const JobReport report = Report(rank, seq);
    EXPECT_EQ(report.state, JobState::kFailed);
    EXPECT_THAT(std::string(report.status.message()), ::testing::HasSubstr(why));
  }
  cluster_->ExpectNothingOpen();
}

void Exchange::ExpectFailed(uint64_t seq, absl::StatusCode code, const ::testing::Matcher<std::string>& why,
                            const std::vector<uint32_t>& ranks) {
  for (uint32_t rank = 0; rank < world(); ++rank) {
    if (!ranks.empty() && std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) continue;
    const JobReport report = Report(rank, seq);
    EXPECT_EQ(report.state, JobState::kFailed) << "rank " << rank;
    EXPECT_EQ(report.status.code(), code) << report.status;
    EXPECT_THAT(std::string(report.status.message()), why) << "rank " << rank;
  }
}

void Exchange::ExpectBytes() const {
  for (uint32_t d = 0; d < world(); ++d) {
    ExpectBytesIn(*trainers_[d].receive, d);
    for (const auto& buffer : more_[d]) ExpectBytesIn(*buffer, d);
  }
}

void Exchange::ExpectBytesIn(const Buffer& buffer, uint32_t destination) const {
  const uint8_t* at = buffer.data();
  const uint8_t* end = at + buffer.size();
  for (uint32_t s = 0; s < world(); ++s) {
    for (uint64_t i = 0; i < lengths_[s][destination]; ++i, ++at) {
      ASSERT_EQ(*at, Pattern(seed_, s, destination, i)) << "from " << s << " to " << destination << " at " << i;
    }
  }
  ASSERT_EQ(std::find_if(at, end, [](uint8_t b) { return b != kUntouched; }), end) << "rank " << destination;
}

void Exchange::ExpectBytesBetween(const std::vector<uint32_t>& ranks, uint32_t destination) const {
  const uint8_t* at = trainers_[destination].receive->data();
  for (uint32_t s = 0; s < world(); ++s) {
    const bool checked = std::find(ranks.begin(), ranks.end(), s) != ranks.end();
    for (uint64_t i = 0; i < lengths_[s][destination]; ++i, ++at) {
      const uint8_t right = Pattern(seed_, s, destination, i);
      if (!checked && *at == kUntouched) continue;
      ASSERT_EQ(*at, right) << "from " << s << " to " << destination << " at " << i;
    }
  }
}

Lengths Exchange::RandomLengths(uint32_t world, uint64_t limit, std::mt19937_64& random) {
  Lengths lengths = AllLengths(world, 0);
  for (uint32_t s = 0; s < world; ++s) {
    for (uint32_t d = 0; d < world; ++d) {
      if (s == d || random() % 4 == 0) continue;
      lengths[s][d] = random() % 8 == 0 ? 1 : random() % limit;
    }
    if (s % 2 == 0) lengths[s][s] = limit / (s + 2);  // to itself
  }
  return lengths;
}

}  // namespace railsd::testing
