#include "tests/unit/agent/jobs/cluster.h"

#include <fcntl.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/null_sink.h>
#include <sys/mman.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace railsd::testing {
namespace {

constexpr int kMaxSteps = 200000;

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
  return Receive(now) || any;
}

bool SteppedRail::Receive(absl::Time now) {
  RailEvent events[16];
  const size_t n = watched.Poll(absl::ZeroDuration(), absl::MakeSpan(events));
  for (size_t i = 0; i < n; ++i) sender_.OnEvent(events[i], now);
  while (const size_t reports = sender_.reports().Take(absl::MakeSpan(events))) {
    events_.insert(events_.end(), events, events + reports);
  }
  return n > 0;
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

Cluster::Cluster(Options options)
    : remote_(options.remote),
      rail_bytes_per_s_(options.rail_bytes_per_s),
      quiet_steps_(options.quiet_steps),
      random_(options.seed) {
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
      agent.rails.push_back({absl::StrCat("rail", r), "", "", rail_bytes_per_s_});
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
          signals.rail, std::move(transport),
          SchedulerOptions{static_cast<double>(rail_bytes_per_s_), options.plan.chunk_bytes}, node->board.get()));
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
        {RailIndex(static_cast<uint32_t>(r)), nodes_[n]->rails[r]->transport().Info().address, rail_bytes_per_s_});
  }
  return hello;
}

void Cluster::FailRails(int count, std::mt19937_64& random) {
  std::vector<std::string> failed;
  for (int i = 0; i < count; ++i) {
    RunSteps(random() % 40);
    const size_t node = random() % nodes_.size(), rail = random() % nodes_[0]->rails.size();
    failed.push_back(AddressOf(node, rail));
    fabric().Fail(failed.back());
    RunSteps(random() % 10);
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

void Cluster::Cut(size_t a, size_t b, const std::string& why) {
  for (const auto& [from, to] : {std::pair(a, b), std::pair(b, a)}) {
    const std::string& peer = nodes_[to]->name;  // for the lambda: clang 14 captures no structured binding
    nodes_[from]->engine->OnPeerDown(peer, why);
    std::erase_if(nodes_[from]->outbox, [&](const auto& message) { return message.first == peer; });
  }
}

void Cluster::Meet(size_t a, size_t b) {
  for (const auto& [from, to] : {std::pair(a, b), std::pair(b, a)}) {
    const std::string& peer = nodes_[to]->name;  // for the lambda: clang 14 captures no structured binding
    nodes_[from]->engine->OnPeerDown(peer, absl::StrCat("node ", peer, " counted this node as lost"));
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

void Cluster::RunSteps(uint64_t steps) {
  Run([&] { return steps-- == 0; });
}

void Cluster::RunFor(absl::Duration duration) {
  Run();
  Advance(duration);
  Run();
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

uint64_t Cluster::ReceivedBytes() const {
  uint64_t bytes = 0;
  for (const auto& node : nodes_) {
    for (const auto& rail : node->rails) bytes += rail->counters().rx_payload_bytes.load();
  }
  return bytes;
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

}  // namespace railsd::testing
