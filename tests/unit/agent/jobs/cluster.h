// Several engines in one process, stepped by hand: in-memory rails, control messages delivered in an order drawn from a
// seed (in order within a direction, as the real streams do), and a clock that moves only when told.
#ifndef RAILSD_TESTS_UNIT_AGENT_JOBS_CLUSTER_H_
#define RAILSD_TESTS_UNIT_AGENT_JOBS_CLUSTER_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "agent/engine/engine.h"
#include "tests/support/fake/fake_fabric.h"
#include "tests/unit/agent/jobs/inline_copier.h"

namespace railsd::testing {

// Shows a test every order before the transport gets it, and every event before the rail does.
class WatchedTransport final : public RailTransport, public ZoneBinder {
 public:
  explicit WatchedTransport(std::unique_ptr<RailTransport> transport)
      : transport_(std::move(transport)), binder_(transport_->Info().binder) {}
  TransportInfo Info() override {
    TransportInfo info = transport_->Info();
    if (binder_ != nullptr) info.binder = this;
    return info;
  }
  void SetPeer(const RailPeer& peer) override {
    ended.push_back(peer.ended);
    transport_->SetPeer(peer);
  }
  void RemovePeer(PeerIndex peer) override { transport_->RemovePeer(peer); }
  void OnSignal(PeerIndex peer, const std::string& bytes) override { binder_->OnSignal(peer, bytes); }
  size_t Post(absl::Span<const SendOrder> orders) override;
  void StopSends(JobTag job) override { transport_->StopSends(job); }
  void Bind(std::shared_ptr<const ReceiveZone> zone) override {
    opened = zone;
    binder_->Bind(std::move(zone));
  }
  void Unbind(ZoneRef zone, bool writers_stopped) override { binder_->Unbind(zone, writers_stopped); }
  size_t Poll(absl::Duration max_wait, absl::Span<RailEvent> out) override;
  void Wake() override { transport_->Wake(); }

  std::function<bool(SendOrder&)> tamper;     // may change the order; false: it is lost
  std::function<void(RailEvent&)> on_event;   // may change the event
  std::shared_ptr<const ReceiveZone> opened;  // the zone that was bound last
  std::vector<uint64_t> ended;                // of the peers that were set

 private:
  const std::unique_ptr<RailTransport> transport_;
  ZoneBinder* const binder_;
  bool tampered_ = false;  // the first order was shown, and not taken
};

// A rail without a thread.
class SteppedRail final : public RailPort {
 public:
  SteppedRail(RailIndex rail, std::unique_ptr<RailTransport> transport, const SchedulerOptions& scheduler,
              RailBoard* board)
      : watched(std::move(transport)), sender_(rail, scheduler, board, &watched) {}
  bool TryCommand(RailCommand command) override;
  size_t TakeEvents(absl::Span<RailEvent> out) override;
  void Flush() override {}
  const RailCounters& counters() const override { return *info_.counters; }
  TransportTraits traits() const override { return info_.traits(); }
  RailTransport& transport() { return watched; }
  // True when something happened.
  bool Step(absl::Time now);
  // Takes events from the transport and no commands, also while frozen. True when there were events. A test must not
  // poll the transport itself: the sender would never learn that its orders have ended.
  bool Receive(absl::Time now);
  absl::Time NextDeadline() const { return sender_.NextDeadline(); }
  // As if the rail had told it.
  void Tell(const RailEvent& event) { events_.push_back(event); }
  // While frozen the rail neither takes commands nor makes progress.
  bool frozen = false;
  uint64_t commands_taken = 0;  // from the engine
  uint64_t events_taken = 0;    // by the engine
  // Commands that fit before TryCommand refuses.
  size_t capacity = 64;
  WatchedTransport watched;

 private:
  const TransportInfo info_ = watched.Info();
  RailSender sender_;
  std::deque<RailCommand> commands_;
  std::deque<RailEvent> events_;
};

// A trainer's memory: a sealed memfd mapped here and in the engine.
class Buffer {
 public:
  explicit Buffer(uint64_t length_bytes);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  UniqueFd Dup() const;
  uint8_t* data() const { return data_; }
  uint64_t size() const { return length_bytes_; }

 private:
  uint64_t length_bytes_;
  UniqueFd fd_;
  uint8_t* data_;
};

struct Node final : public ControlLink {
  void Send(const std::string& node, ControlMessage message) override { outbox.emplace_back(node, std::move(message)); }
  absl::Status SendIfItFits(const std::string& node, ControlMessage&& message) override {
    absl::Status fits = does_not_fit ? does_not_fit(message) : absl::OkStatus();
    if (fits.ok()) Send(node, std::move(message));
    return fits;
  }
  void SetPatience(const std::string& node, absl::Duration limit) override { patience[node] = limit; }
  // The link's answer to a message that is too long for its receiver; null: all fit.
  std::function<absl::Status(const ControlMessage&)> does_not_fit;
  std::string name;
  BootId boot;
  std::map<std::string, absl::Duration> patience;
  std::shared_ptr<LimitCounters> refused;
  struct Signals final : SignalSink {
    void Send(PeerIndex peer, std::string bytes) override { node->engine->SendSignal(rail, peer, std::move(bytes)); }
    Node* node = nullptr;
    RailIndex rail;
  };
  std::deque<Signals> signals;
  ZoneTable zones;
  std::unique_ptr<RailBoard> board;
  InlineCopier copier;
  std::deque<std::pair<std::string, ControlMessage>> outbox;
  std::unique_ptr<Engine> engine;
  std::vector<std::unique_ptr<SteppedRail>> rails;  // end before the engine, which owns what they read
};

// Names a test's rails by its parameter, whether they write into remote memory.
inline std::string ModeOf(const ::testing::TestParamInfo<bool>& info) { return info.param ? "Remote" : "Framed"; }

class Cluster {
 public:
  struct Options {
    bool remote = false;  // rails bind zones, and peers write into them
    size_t nodes = 2;
    size_t rails = 2;
    uint64_t rail_bytes_per_s = 100'000'000;
    uint64_t seed = 1;
    AgentLimits limits = {};
    PlanOptions plan = {};
    bool connect = true;
    uint32_t zone_room = 1024;
    bool weak_zones = false;
    uint32_t explained_jobs = 16;
    uint64_t eager_bytes = 0;
    std::vector<uint64_t> eager_bytes_of = {};  // by node; instead of `eager_bytes`
    int quiet_steps = 100;                      // so many in a row in which nothing happens mean that nothing is left
    // Puts something around a rail's transport; null: nothing.
    std::function<std::unique_ptr<RailTransport>(size_t node, size_t rail, std::unique_ptr<RailTransport>)> wrap = {};
    std::shared_ptr<spdlog::logger> log = nullptr;  // of all nodes; null: nothing is logged
  };
  explicit Cluster(Options options);

  Node& node(size_t n) { return *nodes_[n]; }
  size_t size() const { return nodes_.size(); }
  // Runs until nothing happens any more (the clock stands still) or `done` says so. Fails the test after too many
  // steps.
  void Run(const std::function<bool()>& done = nullptr);
  void RunSteps(uint64_t steps);
  // Runs on after the clock has moved by so much.
  void RunFor(absl::Duration duration);
  absl::Time now() const { return now_; }
  void Advance(absl::Duration duration) { now_ += duration; }
  void Connect(size_t a, size_t b);  // both directions
  // Lets so many rails fail, one after the other, while the jobs go on; some heal on the way, all at the end. Runs
  // until nothing happens any more.
  void FailRails(int count, std::mt19937_64& random);
  // Node `a` has lost `b`, which does not know of it yet: no message between them arrives any more.
  void Lose(size_t a, size_t b, const std::string& why);
  // They meet again, after both have lost the other; what was under way between them is dropped, as the real streams
  // do.
  void Meet(size_t a, size_t b);
  // Both lose the other, and what was under way from either is dropped; no message is held.
  void Cut(size_t a, size_t b, const std::string& why = "a cut cable");
  PeerHello HelloOf(size_t n) const;
  // Messages from `from` to `to` wait until released.
  void Hold(size_t from, size_t to) { held_[{nodes_[from]->name, nodes_[to]->name}] = true; }
  void Release(size_t from, size_t to) { held_.erase({nodes_[from]->name, nodes_[to]->name}); }

  SessionId OpenSession(size_t n, const std::string& tenant = "t");
  // Returns the engine's mapping.
  std::shared_ptr<const Segment> AddSegment(size_t n, SessionId session, uint32_t id, const Buffer& buffer);
  // Bytes have come to node `n` over the rail.
  bool HasReceived(size_t n, size_t rail) const;
  // Bytes that have come over all framed rails.
  uint64_t ReceivedBytes() const;
  FakeFabric& fabric() { return fabric_; }
  std::string AddressOf(size_t n, size_t rail) { return nodes_[n]->rails[rail]->transport().Info().address; }
  // No key, zone, queued or posted byte is left anywhere.
  void ExpectNothingOpen();

 private:
  // The link of `to` acknowledges a READY with eager bytes.
  struct Receipt {
    std::string from, to;  // of READY
    BootId boot;           // of `to`
    JobKey job;
  };
  bool StepOnce();
  bool DeliverOne();
  bool AcknowledgeOne();
  const bool remote_;
  const uint64_t rail_bytes_per_s_;
  const int quiet_steps_;
  FakeFabric fabric_;
  std::mt19937_64 random_;
  absl::Time now_ = absl::UnixEpoch();
  std::vector<std::unique_ptr<Node>> nodes_;
  std::map<std::pair<std::string, std::string>, bool> held_;
  std::deque<Receipt> receipts_;
};

// The messages of one kind that wait to leave node `from`.
template <typename Message>
std::vector<Message*> Outgoing(Cluster& cluster, size_t from) {
  std::vector<Message*> found;
  for (auto& [to, message] : cluster.node(from).outbox) {
    if (auto* wanted = std::get_if<Message>(&message)) found.push_back(wanted);
  }
  return found;
}

// One rank as a trainer would drive it.
struct Trainer {
  Cluster* cluster;
  size_t node;
  Rank rank;
  SessionId session;
  std::unique_ptr<Buffer> send, receive;
  absl::StatusOr<GroupView> group = absl::UnknownError("not joined");
  Recovery recovery = {};
  JobSeq next_seq{1};

  void Join(const std::string& name, uint32_t world_size, absl::Duration timeout = absl::Seconds(60));
  absl::Status Submit(Submission submission);
  // Null until terminal.
  std::shared_ptr<absl::StatusOr<JobReport>> Wait(uint64_t seq);
  // The engine takes it; what becomes of the job and the group shows later.
  void Cancel(uint64_t seq);
  void Leave();
};

// By [source][destination].
using Lengths = std::vector<std::vector<uint64_t>>;

// The same length from each rank to each other one.
inline Lengths AllLengths(uint32_t world, uint64_t bytes) {
  Lengths lengths(world, std::vector<uint64_t>(world, bytes));
  for (uint32_t rank = 0; rank < world; ++rank) lengths[rank][rank] = 0;
  return lengths;
}

struct ExchangeOptions {
  uint64_t buffer_bytes = 1 << 20;
  std::string tenant = "t";
  Recovery recovery = {};
  bool join = true;
};

// An all-to-all over `world` ranks, rank r on node r % nodes, with its own matrix of lengths and checked contents.
class Exchange {
 public:
  Exchange(Cluster* cluster, uint32_t world, std::string name, const ExchangeOptions& options = {});
  // Sets the lengths, too; they fit into the buffers.
  Exchange(Cluster* cluster, const std::string& name, const Lengths& lengths, ExchangeOptions options = {});
  void JoinAll();  // where `join` was false, or once more
  // Lets that many jobs in a row be under way together: each receives into buffers of its own. Call before
  // SetLengths().
  void ReceiveApart(size_t jobs);
  // Fills the send buffers and clears the receive buffers.
  void SetLengths(Lengths lengths, uint64_t seed);
  // `pieces`: ranges per flow.
  Submission For(uint32_t rank, uint64_t seq, size_t pieces = 1) const;
  void SubmitAll(uint64_t seq, size_t pieces = 1);
  // Runs until nothing happens any more; then the job is done at every rank, and every byte is right.
  void ExpectCompletes(uint64_t seq);
  // Submits it at every rank, and the same.
  void RunJob(uint64_t seq, size_t pieces = 1);
  void ExpectDone(uint64_t seq);
  // At every rank, for a reason that contains `why`; and the cluster holds nothing of it any more.
  void ExpectFailed(uint64_t seq, const std::string& why);
  // At these ranks; if none are named, at all.
  void ExpectFailed(uint64_t seq, absl::StatusCode code, const ::testing::Matcher<std::string>& why,
                    const std::vector<uint32_t>& ranks = {});
  // The report that the rank gets of its job, which has ended.
  JobReport Report(uint32_t rank, uint64_t seq);
  // Every received byte is right and every other byte of the receive buffers is untouched.
  void ExpectBytes() const;
  // Bytes that rank `destination` has from `ranks` are right; bytes from others are not looked at.
  void ExpectBytesBetween(const std::vector<uint32_t>& ranks, uint32_t destination) const;
  Trainer& trainer(uint32_t rank) { return trainers_[rank]; }
  uint32_t world() const { return static_cast<uint32_t>(trainers_.size()); }
  static Lengths RandomLengths(uint32_t world, uint64_t limit, std::mt19937_64& random);

 private:
  std::vector<FlowRanges> Ranges(uint32_t rank, SegmentId segment, bool sends, size_t pieces) const;
  void ExpectBytesIn(const Buffer& buffer, uint32_t destination) const;
  Cluster* cluster_;
  std::string name_;
  std::deque<Trainer> trainers_;
  std::vector<std::vector<std::unique_ptr<Buffer>>> more_;  // by rank; for every job but the first of ReceiveApart()
  Lengths lengths_;
  uint64_t seed_ = 0;
  std::map<std::pair<uint64_t, uint32_t>, std::shared_ptr<absl::StatusOr<JobReport>>> waits_;
};

}  // namespace railsd::testing

#endif  // RAILSD_TESTS_UNIT_AGENT_JOBS_CLUSTER_H_
