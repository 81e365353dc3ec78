// A cluster in one process for counting what a job costs the engine of node 0: every node has a real engine, real rail
// senders and transports in memory, and one thread steps them all in a fixed order. Between node 0 and every other node
// the ranks exchange bytes as in an all-to-all; the other nodes exchange only READY with each other. Node 0 does the
// same work as if they exchanged bytes, and the world stays small enough for 128 nodes under callgrind.
#ifndef RAILSD_BENCH_ENGINE_WORLD_H_
#define RAILSD_BENCH_ENGINE_WORLD_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "agent/base/spsc_ring.h"
#include "agent/engine/engine.h"
#include "agent/rails/rail_sender.h"
#include "tests/support/fake/fake_fabric.h"

namespace railsd {

struct Shape {
  size_t nodes = 2;
  size_t rails = 8;
  uint32_t ranks = 8;     // of each node
  uint32_t partners = 8;  // ranks of each other node that a rank sends to
  uint64_t exchange_bytes = 128 << 10;
  uint64_t chunk_bytes = 16 << 10;
  uint64_t eager_bytes = 0;
  bool single = false;  // the engine takes one turn for each message, as if messages arrived one by one
};

// A rail without a thread, with the queues that real rails have.
class SteppedRail final : public RailPort {
 public:
  SteppedRail(RailIndex rail, std::unique_ptr<RailTransport> transport, const SchedulerOptions& scheduler,
              RailBoard* board, size_t queue_capacity);
  bool TryCommand(RailCommand command) override;
  size_t TakeEvents(absl::Span<RailEvent> out) override;
  void Flush() override {}
  const RailCounters& counters() const override { return *info_.counters; }
  TransportTraits traits() const override { return info_.traits(); }
  const std::string& address() const { return info_.address; }
  bool AnyEvents() const { return events_.Depth() > 0; }
  // True when something happened.
  bool Step(absl::Time now);

 private:
  const std::unique_ptr<RailTransport> transport_;
  const TransportInfo info_;
  RailSender sender_;
  SpscRing<RailCommand> sending_, receiving_;
  SpscRing<RailEvent> events_;
};

// Stands in for the threads that do copies and chores in a daemon: keeps both until Step().
class LaterCopier final : public Copier {
 public:
  LaterCopier();
  void Submit(CopyTask task) override { tasks_.push_back(std::move(task)); }
  bool TakeResult(CopyResult* result) override;
  size_t depth() const override { return tasks_.size(); }
  void Run(absl::AnyInvocable<void()> chore, std::optional<JobTag> job) override;
  // Runs the chores and reports all copies as done. Copies no bytes, because only the engine's work counts. True when
  // something happened.
  bool Step();

 private:
  std::vector<CopyTask> tasks_;
  std::vector<std::pair<absl::AnyInvocable<void()>, std::optional<JobTag>>> chores_;
  std::vector<CopyResult> results_;
  size_t first_result_ = 0;
};

struct BenchNode final : public ControlLink {
  struct Incoming {
    BenchNode* from = nullptr;
    ControlMessage message;
    std::vector<JobKey> taken = {};  // if not empty: no message, but the link's report that `from` has these READYs
  };
  // Both stand in for the link, and bench_engine.py does not count them: neither calls the other.
  void Send(const std::string& node, ControlMessage message) override { outbox.emplace_back(node, std::move(message)); }
  absl::Status SendIfItFits(const std::string& node, ControlMessage&& message) override {
    outbox.emplace_back(node, std::move(message));
    return absl::OkStatus();
  }
  void SetPatience(const std::string&, absl::Duration) override {}
  // A turn of the engine's thread, with what it does before it sleeps (AgentImpl::Run).
  void Turn(absl::Time now, bool single);
  bool AnyEvents() const;

  std::string name;
  BootId boot;
  ZoneTable zones;
  std::unique_ptr<RailBoard> board;
  LaterCopier copier;
  std::vector<std::pair<std::string, ControlMessage>> outbox;
  std::vector<Incoming> inbox;
  std::unique_ptr<Engine> engine;
  std::vector<std::unique_ptr<SteppedRail>> rails;  // destroyed before the engine, which owns the data that they read
};

// Messages about jobs between node 0 and the others.
struct Messages {
  uint64_t out = 0, in = 0;
  uint64_t ready = 0, late_grant = 0, tally = 0, other = 0;  // in both directions
};

class World {
 public:
  explicit World(const Shape& shape);
  // Runs one job from its submissions to the end of every rank's wait, and until nothing is left to do. `count` wraps
  // every turn of the engine of node 0.
  void RunJob(absl::FunctionRef<void(absl::FunctionRef<void()>)> count);
  const Messages& messages() const { return messages_; }
  uint64_t turns() const { return turns_; }  // of the engine of node 0 while jobs ran
  // Chunks that node 0 has sent and received.
  uint64_t Chunks() const;
  // Flows that node 0 sends to other nodes in a job. It receives as many.
  uint64_t flows() const { return (shape_.nodes - 1) * shape_.ranks * shape_.partners; }

 private:
  struct Trainer {
    BenchNode* node;
    Rank rank;
    SessionId session;
    Epoch epoch;
    bool joined = false;
    absl::StatusOr<JobReport> report = absl::UnknownError("no report");
  };
  // `fabrics`: one for each rail, because each transport of a fabric searches all transports of that fabric.
  void AddNode(std::vector<FakeFabric>* fabrics);
  void AddTrainer(uint32_t rank, int send_fd, int receive_fd);
  PeerHello HelloOf(const BenchNode& node, bool with_rails) const;
  Submission SubmissionOf(const Trainer& trainer) const;
  // Steps the rails until none has anything to do, so that longer exchanges do not give the engines more turns. True
  // when something happened.
  bool StepRails();
  // Steps all nodes until nothing happens any more.
  void RunAll(absl::FunctionRef<void(absl::FunctionRef<void()>)> count);
  void Deliver(BenchNode& from);

  const Shape shape_;
  const uint64_t flow_bytes_, segment_bytes_;
  absl::Time now_ = absl::UnixEpoch() + absl::Seconds(1);
  std::vector<std::unique_ptr<BenchNode>> nodes_;
  std::deque<Trainer> trainers_;  // by rank; rank r on node r / ranks
  uint64_t seq_ = 0;
  Messages messages_;
  uint64_t turns_ = 0;
};

}  // namespace railsd

#endif  // RAILSD_BENCH_ENGINE_WORLD_H_
