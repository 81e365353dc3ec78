#include "tests/unit/agent/jobs/cluster.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/null_sink.h>
#include <sys/mman.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace railsd::testing {
namespace {

constexpr int kMaxSteps = 200000;
constexpr uint8_t kUntouched = 0xee;

uint8_t Pattern(uint64_t seed, uint32_t source, uint32_t destination, uint64_t offset) {
  uint64_t x = seed * 0x9e3779b97f4a7c15 + source * 0xbf58476d1ce4e5b9 + destination * 0x94d049bb133111eb + offset;
  x ^= x >> 29;
  x *= 0xff51afd7ed558ccd;
  return static_cast<uint8_t>(x >> 56);
}

}  // namespace

size_t WatchedTransport::Post(absl::Span<const SendOrder> orders) {
  size_t taken = 0;
  for (SendOrder order : orders) {
    if (tamper && !std::exchange(tampered_, true) && !tamper(order)) {
      tampered_ = false;
      ++taken;
      continue;
    }
    if (transport_->Post({&order, 1}) == 0) return taken;
    tampered_ = false;
    ++taken;
  }
  return taken;
}

size_t WatchedTransport::Poll(absl::Duration max_wait, absl::Span<RailEvent> out) {
  const size_t count = transport_->Poll(max_wait, out);
  for (size_t i = 0; on_event && i < count; ++i) on_event(out[i]);
  return count;
}

bool SteppedRail::TryCommand(RailCommand command) {
  if (commands_.size() >= capacity) return false;
  commands_.push_back(std::move(command));
  ++commands_taken;
  return true;
}

size_t SteppedRail::TakeEvents(absl::Span<RailEvent> out) {
  size_t n = 0;
  for (; n < out.size() && !events_.empty(); ++n) {
    out[n] = events_.front();
    events_.pop_front();
  }
  events_taken += n;
  return n;
}

bool SteppedRail::Step(absl::Time now) {
  if (frozen) return false;
  bool any = !commands_.empty();
  for (; !commands_.empty(); commands_.pop_front()) Apply(commands_.front(), now, &sender_, info_.binder);
  any = sender_.Post(now) || any;
  RailEvent events[16];
  const size_t n = watched.Poll(absl::ZeroDuration(), absl::MakeSpan(events));
  for (size_t i = 0; i < n; ++i) sender_.OnEvent(events[i], now);
  while (const size_t reports = sender_.reports().Take(absl::MakeSpan(events))) {
    events_.insert(events_.end(), events, events + reports);
  }
  return any || n > 0;
}

Buffer::Buffer(uint64_t length_bytes)
    : length_bytes_(length_bytes), fd_(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
  EXPECT_EQ(::ftruncate(fd_.get(), static_cast<off_t>(length_bytes)), 0);
  EXPECT_EQ(::fcntl(fd_.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  void* data = ::mmap(nullptr, length_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
  EXPECT_NE(data, MAP_FAILED);
  data_ = static_cast<uint8_t*>(data);
}

Buffer::~Buffer() { ::munmap(data_, length_bytes_); }

UniqueFd Buffer::Dup() const { return UniqueFd(::fcntl(fd_.get(), F_DUPFD_CLOEXEC, 0)); }

Cluster::Cluster(Options options) : remote_(options.remote), quiet_steps_(options.quiet_steps), random_(options.seed) {
  for (size_t n = 0; n < options.nodes; ++n) {
    auto node = std::make_unique<Node>();
    node->name = absl::StrCat("n", n);
    node->boot = BootId(1000 + n);
    AgentOptions agent;
    agent.node = node->name;
    agent.boot = node->boot;
    agent.limits = options.limits;
    node->refused = agent.refused;
    agent.plan = options.plan;
    agent.explained_jobs = options.explained_jobs;
    agent.eager_bytes = n < options.eager_bytes_of.size() ? options.eager_bytes_of[n] : options.eager_bytes;
    agent.log = options.log;
    if (agent.log == nullptr) {
      agent.log = std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::null_sink_mt>());
    }
    std::vector<RailPort*> ports;
    node->board = std::make_unique<RailBoard>(options.rails);
    for (size_t r = 0; r < options.rails; ++r) {
      agent.rails.push_back({absl::StrCat("rail", r), "", "", 100'000'000});
      Node::Signals& signals = node->signals.emplace_back();
      signals.node = node.get();
      signals.rail = RailIndex(static_cast<uint32_t>(r));
      FakeTransportOptions fake;
      fake.rail = signals.rail;
      fake.node = node->name;
      fake.boot = node->boot;
      fake.zones = &node->zones;
      if (remote_) fake.traits = {.binds_zones = true, .zone_room = options.zone_room, .max_rounds = 15};
      fake.weak_zones = options.weak_zones;
      fake.signals = remote_ ? &signals : nullptr;
      std::unique_ptr<RailTransport> transport = fabric_.Create(fake);
      if (options.wrap) transport = options.wrap(n, r, std::move(transport));
      node->rails.push_back(std::make_unique<SteppedRail>(
          signals.rail, std::move(transport), SchedulerOptions{100e6, options.plan.chunk_bytes}, node->board.get()));
      ports.push_back(node->rails.back().get());
    }
    node->engine =
        std::make_unique<Engine>(agent, ports, &node->zones, node->board.get(), node.get(), nullptr, &node->copier);
    node->engine->SetNow(now_);
    nodes_.push_back(std::move(node));
  }
  for (size_t a = 0; a < options.nodes && options.connect; ++a) {
    for (size_t b = a + 1; b < options.nodes; ++b) Connect(a, b);
  }
  Run();
}

PeerHello Cluster::HelloOf(size_t n) const {
  PeerHello hello;
  hello.node = nodes_[n]->name;
  hello.boot = nodes_[n]->boot;
  hello.data_key.fill(7);
  for (size_t r = 0; r < nodes_[n]->rails.size(); ++r) {
    hello.rails.push_back(
        {RailIndex(static_cast<uint32_t>(r)), nodes_[n]->rails[r]->transport().Info().address, 100'000'000});
  }
  return hello;
}

void Cluster::FailRails(int count, std::mt19937_64& random) {
  std::vector<std::string> failed;
  const auto run = [&](uint64_t steps) { Run([&] { return steps-- == 0; }); };
  for (int i = 0; i < count; ++i) {
    run(random() % 40);
    const size_t node = random() % nodes_.size(), rail = random() % nodes_[0]->rails.size();
    failed.push_back(AddressOf(node, rail));
    fabric().Fail(failed.back());
    run(random() % 10);
    if (random() % 2 == 0) fabric().Heal(failed[random() % failed.size()]);
  }
  for (const std::string& address : failed) fabric().Heal(address);
  Run();
}

void Cluster::Connect(size_t a, size_t b) {
  nodes_[a]->engine->OnPeerUp(HelloOf(b));
  nodes_[b]->engine->OnPeerUp(HelloOf(a));
}

void Cluster::Lose(size_t a, size_t b, const std::string& why) {
  nodes_[a]->engine->OnPeerDown(nodes_[b]->name, why);
  Hold(a, b);
  Hold(b, a);
}

void Cluster::Meet(size_t a, size_t b) {
  for (const auto& [from, to] : {std::pair(a, b), std::pair(b, a)}) {
    const std::string& peer = nodes_[to]->name;  // for the lambda: clang 14 captures no structured binding
    nodes_[from]->engine->OnPeerDown(peer, absl::StrCat("node ", peer, " had lost this node"));
    std::erase_if(nodes_[from]->outbox, [&](const auto& message) { return message.first == peer; });
    const std::string& name = nodes_[from]->name;
    std::erase_if(receipts_, [&](const Receipt& receipt) { return receipt.from == name && receipt.to == peer; });
    Release(from, to);
  }
  Connect(a, b);
}

bool Cluster::DeliverOne() {
  std::vector<std::pair<Node*, size_t>> choices;  // the first message of each direction
  for (auto& node : nodes_) {
    std::map<std::string, bool> seen;
    for (size_t i = 0; i < node->outbox.size(); ++i) {
      const std::string& to = node->outbox[i].first;
      if (std::exchange(seen[to], true) || held_.contains({node->name, to})) continue;
      choices.emplace_back(node.get(), i);
    }
  }
  if (choices.empty()) return false;
  auto [from, index] = choices[random_() % choices.size()];
  auto [to, message] = std::move(from->outbox[index]);
  from->outbox.erase(from->outbox.begin() + static_cast<std::ptrdiff_t>(index));
  for (auto& node : nodes_) {
    if (node->name != to) continue;
    node->engine->SetNow(now_);
    const auto* const ready = std::get_if<Ready>(&message);
    if (ready != nullptr && !ready->eager.empty()) receipts_.push_back({from->name, to, node->boot, ready->job});
    node->engine->OnPeerMessage(from->name, from->boot, std::move(message));
  }
  return true;
}

bool Cluster::AcknowledgeOne() {
  std::vector<size_t> choices;
  for (size_t i = 0; i < receipts_.size(); ++i) {
    if (!held_.contains({receipts_[i].to, receipts_[i].from})) choices.push_back(i);
  }
  if (choices.empty()) return false;
  const size_t chosen = choices[random_() % choices.size()];
  const Receipt receipt = receipts_[chosen];
  receipts_.erase(receipts_.begin() + static_cast<std::ptrdiff_t>(chosen));
  for (auto& node : nodes_) {
    if (node->name != receipt.from) continue;
    node->engine->SetNow(now_);
    node->engine->OnReadyTaken(receipt.to, receipt.boot, {receipt.job});
  }
  return true;
}

bool Cluster::StepOnce() {
  bool any = random_() % 2 == 0 && DeliverOne();
  if (!receipts_.empty() && random_() % 2 == 0) any = AcknowledgeOne() || any;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    Node& node = *nodes_[(i + random_()) % nodes_.size()];
    node.engine->SetNow(now_);
    any = node.engine->Step() || any;
    for (auto& rail : node.rails) any = (random_() % 4 != 0 && rail->Step(now_)) || any;
  }
  return any;
}

void Cluster::Run(const std::function<bool()>& done) {
  int quiet = 0;
  for (int step = 0; step < kMaxSteps; ++step) {
    if (done && done()) return;
    quiet = StepOnce() ? 0 : quiet + 1;
    // A step leaves some things out at random.
    if (quiet > quiet_steps_) return;
  }
  ADD_FAILURE() << "still busy after " << kMaxSteps << " steps";
}

SessionId Cluster::OpenSession(size_t n, const std::string& tenant) {
  SessionId id;
  nodes_[n]->engine->OpenSession({.pid = 1, .uid = 1, .gid = 1, .tenant = tenant}, [&](absl::StatusOr<SessionId> s) {
    ASSERT_TRUE(s.ok()) << s.status();
    id = *s;
  });
  return id;
}

bool Cluster::HasReceived(size_t n, size_t rail) const {
  if (!remote_) return nodes_[n]->rails[rail]->counters().rx_payload_bytes.load() > 0;
  return std::any_of(nodes_.begin(), nodes_.end(), [&](const auto& node) {
    return node != nodes_[n] && node->rails[rail]->counters().tx_payload_bytes.load() > 0;
  });
}

void Cluster::ExpectNothingOpen() {
  for (size_t n = 0; n < nodes_.size(); ++n) {
    const AgentSnapshot snapshot = nodes_[n]->engine->Snapshot(0);
    EXPECT_TRUE(snapshot.active_jobs.empty());
    EXPECT_EQ(snapshot.counters.open_zones, 0u);
    for (size_t r = 0; r < nodes_[n]->rails.size(); ++r) {
      EXPECT_EQ(snapshot.rails[r].queued_bytes + snapshot.rails[r].in_flight_bytes, 0u);
      EXPECT_EQ(nodes_[n]->rails[r]->counters().posted_bytes.load(), 0u);
      EXPECT_EQ(fabric_.OpenKeys(AddressOf(n, r)), 0u) << nodes_[n]->name << " rail " << r;
    }
  }
}

std::shared_ptr<const Segment> Cluster::AddSegment(size_t n, SessionId session, uint32_t id, const Buffer& buffer) {
  auto segment = Segment::Map(SegmentId(id), buffer.Dup(), buffer.size()).value();
  std::vector<std::shared_ptr<MemoryRegistrar>> registrars;
  for (auto& rail : nodes_[n]->rails) registrars.push_back(rail->transport().Info().registrar);
  const absl::Status registered = segment->Register(registrars);
  EXPECT_TRUE(registered.ok()) << registered;
  const absl::Status reserved = nodes_[n]->engine->BeginMapping(session, SegmentId(id), buffer.size());
  EXPECT_TRUE(reserved.ok()) << reserved;
  nodes_[n]->engine->AddSegment(session, SegmentId(id), segment, [](absl::Status s) { EXPECT_TRUE(s.ok()) << s; });
  return segment;
}

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

Exchange::Exchange(Cluster* cluster, uint32_t world, std::string name, uint64_t buffer_bytes, const std::string& tenant)
    : cluster_(cluster), name_(std::move(name)), more_(world) {
  for (uint32_t r = 0; r < world; ++r) {
    Trainer& trainer = trainers_.emplace_back();
    trainer.cluster = cluster;
    trainer.node = r % cluster->size();
    trainer.rank = Rank(r);
    trainer.session = cluster->OpenSession(trainer.node, tenant);
    trainer.send = std::make_unique<Buffer>(buffer_bytes);
    trainer.receive = std::make_unique<Buffer>(buffer_bytes);
    cluster->AddSegment(trainer.node, trainer.session, 1, *trainer.send);
    cluster->AddSegment(trainer.node, trainer.session, 2, *trainer.receive);
  }
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

void Exchange::SetLengths(std::vector<std::vector<uint64_t>> lengths, uint64_t seed) {
  lengths_ = std::move(lengths);
  seed_ = seed;
  for (uint32_t s = 0; s < world(); ++s) {
    uint8_t* at = trainers_[s].send->data();
    for (uint32_t d = 0; d < world(); ++d) {
      if (s == d) continue;
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
    if (peer == rank) continue;
    const uint64_t length = sends ? lengths_[rank][peer] : lengths_[peer][rank];
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

void Exchange::ExpectDone(uint64_t seq) {
  for (Trainer& trainer : trainers_) {
    const auto& report = *waits_.at({seq, trainer.rank.value()});
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_EQ(report->state, JobState::kDone) << report->status;
    EXPECT_EQ(report->bytes_sent, report->bytes_to_send);
    EXPECT_EQ(report->bytes_received, report->bytes_to_receive);
  }
}

void Exchange::ExpectFailed(uint64_t seq, const std::string& why) {
  for (Trainer& trainer : trainers_) {
    const auto report = *trainer.Wait(seq);
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_EQ(report->state, JobState::kFailed);
    EXPECT_THAT(std::string(report->status.message()), ::testing::HasSubstr(why));
  }
  cluster_->ExpectNothingOpen();
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
    for (uint64_t i = 0; s != destination && i < lengths_[s][destination]; ++i, ++at) {
      ASSERT_EQ(*at, Pattern(seed_, s, destination, i)) << "from " << s << " to " << destination << " at " << i;
    }
  }
  ASSERT_EQ(std::find_if(at, end, [](uint8_t b) { return b != kUntouched; }), end) << "rank " << destination;
}

void Exchange::ExpectBytesBetween(const std::vector<uint32_t>& ranks, uint32_t destination) const {
  const uint8_t* at = trainers_[destination].receive->data();
  for (uint32_t s = 0; s < world(); ++s) {
    if (s == destination) continue;
    const bool checked = std::find(ranks.begin(), ranks.end(), s) != ranks.end();
    for (uint64_t i = 0; i < lengths_[s][destination]; ++i, ++at) {
      const uint8_t right = Pattern(seed_, s, destination, i);
      if (!checked && *at == kUntouched) continue;
      ASSERT_EQ(*at, right) << "from " << s << " to " << destination << " at " << i;
    }
  }
}

std::vector<std::vector<uint64_t>> Exchange::RandomLengths(uint32_t world, uint64_t limit, std::mt19937_64& random) {
  std::vector<std::vector<uint64_t>> lengths(world, std::vector<uint64_t>(world, 0));
  for (uint32_t s = 0; s < world; ++s) {
    for (uint32_t d = 0; d < world; ++d) {
      if (s == d || random() % 4 == 0) continue;
      lengths[s][d] = random() % 8 == 0 ? 1 : random() % limit;
    }
  }
  return lengths;
}

}  // namespace railsd::testing
