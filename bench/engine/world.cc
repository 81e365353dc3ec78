#include "bench/engine/world.h"

#include <fcntl.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/null_sink.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <variant>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace railsd {
namespace {

constexpr uint64_t kSpeedBytesPerSecond = 50'000'000'000;
constexpr uint32_t kKept = 2;  // ended jobs that an engine keeps; after this many the state is steady
constexpr int kMaxRounds = 100'000;

void Must(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "bench_engine: %s\n", status.ToString().c_str());
  std::_Exit(1);
}

int MemoryFile(uint64_t length_bytes) {
  const int fd = ::memfd_create("bench_engine", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  const bool made =
      fd >= 0 && ::ftruncate(fd, static_cast<off_t>(length_bytes)) == 0 && ::fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0;
  Must(made ? absl::OkStatus() : absl::ErrnoToStatus(errno, "memfd"));
  return fd;
}

// Bytes of a segment: one flow to (or from) every rank of every node, the own node included.
uint64_t SegmentBytes(const Shape& shape, uint64_t flow_bytes) { return shape.nodes * shape.ranks * flow_bytes; }

}  // namespace

SteppedRail::SteppedRail(RailIndex rail, std::unique_ptr<RailTransport> transport, const SchedulerOptions& scheduler,
                         RailBoard* board, size_t queue_capacity)
    : transport_(std::move(transport)),
      info_(transport_->Info()),
      sender_(rail, scheduler, board, transport_.get()),
      sending_(queue_capacity),
      receiving_(queue_capacity),
      events_(queue_capacity) {}

bool SteppedRail::TryCommand(RailCommand command) {
  const bool receives = command.kind == RailCommand::Kind::kOpenZone || command.kind == RailCommand::Kind::kCloseZone;
  return (receives ? receiving_ : sending_).TryPush(std::move(command));
}

size_t SteppedRail::TakeEvents(absl::Span<RailEvent> out) {
  size_t taken = 0;
  while (taken < out.size() && events_.TryPop(&out[taken])) ++taken;
  return taken;
}

bool SteppedRail::Step(absl::Time now) {
  bool any = false;
  RailCommand command;
  while (receiving_.TryPop(&command) || sending_.TryPop(&command)) {
    Apply(command, now, &sender_, info_.binder);
    any = true;
  }
  any = sender_.Post(now) || any;
  RailEvent events[64];
  const size_t count = transport_->Poll(absl::ZeroDuration(), absl::MakeSpan(events));
  for (size_t i = 0; i < count; ++i) sender_.OnEvent(events[i], now);
  RailEvent report;
  while (events_.Free() > 0 && sender_.reports().Take({&report, 1}) > 0) {
    events_.TryPush(RailEvent(report));
    any = true;
  }
  return any || count > 0;
}

LaterCopier::LaterCopier() {
  tasks_.reserve(1024);
  chores_.reserve(1024);
}

bool LaterCopier::TakeResult(CopyResult* result) {
  if (first_result_ == results_.size()) return false;
  *result = std::move(results_[first_result_++]);
  return true;
}

void LaterCopier::Run(absl::AnyInvocable<void()> chore, std::optional<JobTag> job) {
  chores_.emplace_back(std::move(chore), job);
}

bool LaterCopier::Step() {
  const bool any = !tasks_.empty() || !chores_.empty();
  results_.erase(results_.begin(), results_.begin() + static_cast<std::ptrdiff_t>(std::exchange(first_result_, 0)));
  for (const CopyTask& task : tasks_) results_.push_back({task.job, task.index, absl::OkStatus()});
  for (auto& [chore, job] : chores_) {
    chore();
    if (job.has_value()) results_.push_back({*job, CopyResult::kChore, absl::OkStatus()});
  }
  tasks_.clear();
  chores_.clear();
  return any;
}

void BenchNode::Turn(absl::Time now, bool single) {
  engine->SetNow(now);
  for (Incoming& incoming : inbox) {
    if (incoming.taken.empty()) {
      engine->OnPeerMessage(incoming.from->name, incoming.from->boot, std::move(incoming.message));
    } else {
      engine->OnReadyTaken(incoming.from->name, incoming.from->boot, incoming.taken);
    }
    if (!single) continue;
    engine->Step();  // with the message
    engine->Step();  // before it sleeps
    engine->Step();
  }
  inbox.clear();
  while (engine->Step()) continue;
  engine->Step();
}

bool BenchNode::AnyEvents() const {
  return std::any_of(rails.begin(), rails.end(), [](const auto& rail) { return rail->AnyEvents(); });
}

World::World(const Shape& shape)
    : shape_(shape),
      flow_bytes_(shape.exchange_bytes / shape.ranks / shape.partners),
      segment_bytes_(SegmentBytes(shape, flow_bytes_)) {
  std::vector<FakeFabric> fabrics(shape_.rails);
  for (size_t n = 0; n < shape_.nodes; ++n) AddNode(&fabrics);
  for (auto& node : nodes_) {
    for (auto& peer : nodes_) {
      if (peer != node) node->engine->OnPeerUp(HelloOf(*peer, node == nodes_.front() || peer == nodes_.front()));
    }
  }
  const auto run = [](absl::FunctionRef<void()> turn) { turn(); };
  RunAll(run);
  const int send_fd = MemoryFile(segment_bytes_), receive_fd = MemoryFile(segment_bytes_);
  for (uint32_t r = 0; r < shape_.nodes * shape_.ranks; ++r) AddTrainer(r, send_fd, receive_fd);
  ::close(send_fd);
  ::close(receive_fd);
  RunAll(run);
  for (const Trainer& trainer : trainers_) {
    if (!trainer.joined) Must(absl::InternalError(absl::StrCat("rank ", trainer.rank.value(), " has not joined")));
  }
}

void World::AddNode(std::vector<FakeFabric>* fabrics) {
  auto node = std::make_unique<BenchNode>();
  const size_t n = nodes_.size();
  node->name = absl::StrCat(n);
  node->boot = BootId(1000 + n);
  node->outbox.reserve(n == 0 ? 1 << 14 : 0);  // the outbox of node 0 must not allocate while a job is counted
  AgentOptions options;
  options.node = node->name;
  options.boot = node->boot;
  options.plan.chunk_bytes = shape_.chunk_bytes;
  options.eager_bytes = shape_.eager_bytes;
  options.finished_jobs_kept = options.explained_jobs = kKept;
  options.log = std::make_shared<spdlog::logger>("bench_engine", std::make_shared<spdlog::sinks::null_sink_mt>());
  node->board = std::make_unique<RailBoard>(shape_.rails);
  std::vector<RailPort*> ports;
  for (uint32_t r = 0; r < shape_.rails; ++r) {
    options.rails.push_back({absl::StrCat("rail", r), "", "", kSpeedBytesPerSecond});
    FakeTransportOptions fake;
    fake.rail = RailIndex(r);
    fake.node = node->name;
    fake.boot = node->boot;
    fake.zones = &node->zones;
    node->rails.push_back(std::make_unique<SteppedRail>(
        fake.rail, (*fabrics)[r].Create(fake), SchedulerOptions{double{kSpeedBytesPerSecond}, shape_.chunk_bytes},
        node->board.get(), n == 0 ? 4096 : 256));
    ports.push_back(node->rails.back().get());
  }
  node->engine = std::make_unique<Engine>(std::move(options), std::move(ports), &node->zones, node->board.get(),
                                          node.get(), nullptr, &node->copier);
  node->engine->SetNow(now_);
  nodes_.push_back(std::move(node));
}

PeerHello World::HelloOf(const BenchNode& node, bool with_rails) const {
  PeerHello hello;
  hello.node = node.name;
  hello.boot = node.boot;
  for (uint32_t r = 0; with_rails && r < node.rails.size(); ++r) {
    hello.rails.push_back({RailIndex(r), node.rails[r]->address(), kSpeedBytesPerSecond});
  }
  return hello;
}

void World::AddTrainer(uint32_t rank, int send_fd, int receive_fd) {
  Trainer& trainer = trainers_.emplace_back();
  trainer.node = nodes_[rank / shape_.ranks].get();
  trainer.rank = Rank(rank);
  Engine& engine = *trainer.node->engine;
  engine.OpenSession({.pid = 1, .uid = 1, .gid = 1, .tenant = "t"}, [&](absl::StatusOr<SessionId> session) {
    Must(session.status());
    trainer.session = *session;
  });
  for (const auto& [number, fd] : {std::pair(1, send_fd), std::pair(2, receive_fd)}) {
    const SegmentId id(static_cast<uint32_t>(number));
    Must(engine.BeginMapping(trainer.session, id, segment_bytes_));
    engine.AddSegment(trainer.session, id, Segment::Map(id, UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 0)), segment_bytes_),
                      Must);
  }
  const uint32_t world_size = static_cast<uint32_t>(shape_.nodes) * shape_.ranks;
  engine.Join({trainer.session, "group", "secret", world_size, trainer.rank, absl::Minutes(1)},
              [&trainer](absl::StatusOr<GroupView> view) {
                Must(view.status());
                trainer.epoch = view->epoch;
                trainer.joined = true;
              });
  for (auto& node : nodes_) Deliver(*node);
}

void World::Deliver(BenchNode& from) {
  for (auto& [to, message] : from.outbox) {
    size_t n = 0;
    if (!absl::SimpleAtoi(to, &n)) std::abort();
    if (from.name == "0" || n == 0) {
      ++(n == 0 ? messages_.in : messages_.out);
      ++(std::holds_alternative<Ready>(message)       ? messages_.ready
         : std::holds_alternative<LateGrant>(message) ? messages_.late_grant
         : std::holds_alternative<Tally>(message)     ? messages_.tally
                                                      : messages_.other);
    }
    const auto* const ready = std::get_if<Ready>(&message);
    if (ready != nullptr && !ready->eager.empty()) from.inbox.push_back({nodes_[n].get(), {}, {ready->job}});
    nodes_[n]->inbox.push_back({&from, std::move(message)});
  }
  from.outbox.clear();
}

bool World::StepRails() {
  bool any = false;
  for (bool progress = true; progress;) {
    progress = false;
    for (auto& node : nodes_) {
      for (auto& rail : node->rails) progress = rail->Step(now_) || progress;
    }
    any = any || progress;
  }
  return any;
}

void World::RunAll(absl::FunctionRef<void(absl::FunctionRef<void()>)> count) {
  for (int round = 0; round < kMaxRounds; ++round) {
    StepRails();
    bool any = false;
    for (auto& node : nodes_) {
      const bool results = node->copier.Step();
      if (!results && node->inbox.empty() && !node->AnyEvents()) continue;  // its engine would sleep on
      any = true;
      const auto turn = [&] { node->Turn(now_, shape_.single); };
      if (node == nodes_.front()) {
        count(turn);
        ++turns_;
      } else {
        turn();
      }
    }
    if (!any && !StepRails()) return;
    for (auto& node : nodes_) Deliver(*node);
  }
  Must(absl::InternalError("the cluster does not come to rest"));
}

Submission World::SubmissionOf(const Trainer& trainer) const {
  Submission submission;
  submission.session = trainer.session;
  submission.job = {trainer.epoch, JobSeq(seq_)};
  submission.rank = trainer.rank;
  submission.tag = seq_;
  const uint32_t own_node = trainer.rank.value() / shape_.ranks, own_place = trainer.rank.value() % shape_.ranks;
  for (uint32_t r = 0; r < trainers_.size(); ++r) {
    const uint32_t node = r / shape_.ranks, place = r % shape_.ranks;
    if (r == trainer.rank.value() || (node != 0 && own_node != 0)) continue;
    const uint64_t at = r * flow_bytes_;
    // Every rank of the same node is a partner.
    const auto partner = [&](uint32_t source, uint32_t destination) {
      return node == own_node || (destination + shape_.ranks - source) % shape_.ranks < shape_.partners;
    };
    if (partner(own_place, place)) submission.sends.push_back({Rank(r), {{SegmentId(1), at, flow_bytes_}}});
    if (partner(place, own_place)) submission.receives.push_back({Rank(r), {{SegmentId(2), at, flow_bytes_}}});
  }
  return submission;
}

void World::RunJob(absl::FunctionRef<void(absl::FunctionRef<void()>)> count) {
  now_ += absl::Milliseconds(1);
  ++seq_;
  // The trainers of node 0 come first: all READYs reach it while it waits for them.
  for (Trainer& trainer : trainers_) {
    trainer.report = absl::UnknownError("no report");
    Engine& engine = *trainer.node->engine;
    CheckedSubmission checked = engine.Check(SubmissionOf(trainer));
    const auto call = [&] {
      engine.SetNow(now_);
      engine.Submit(std::move(checked), Must);
      engine.Wait(trainer.session, {trainer.epoch, JobSeq(seq_)}, trainer.rank, absl::Minutes(1),
                  [&trainer](absl::StatusOr<JobReport> report) { trainer.report = std::move(report); });
    };
    if (trainer.node == nodes_.front().get()) {
      count(call);
    } else {
      call();
    }
  }
  for (auto& node : nodes_) Deliver(*node);
  RunAll(count);
  for (const Trainer& trainer : trainers_) {
    Must(trainer.report.status());
    Must(trainer.report->status);
    const bool whole = trainer.report->bytes_received == trainer.report->bytes_to_receive;
    if (trainer.report->state != JobState::kDone || !whole) Must(absl::InternalError("a rank is not done"));
  }
}

uint64_t World::Chunks() const {
  uint64_t chunks = 0;
  for (const auto& rail : nodes_[0]->rails)
    chunks += rail->counters().tx_chunks.load() + rail->counters().rx_chunks.load();
  return chunks;
}

}  // namespace railsd
