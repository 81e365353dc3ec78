#include "tests/unit/client/cuda/memory_cluster.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/src/owner_process.h"
#include "tests/cuda/fake_driver/fake_driver.h"

namespace railsd::testing {
namespace memory {

using Result = absl::StatusOr<rails::JobReport>;

class MemorySegment final : public rails::Segment {
 public:
  explicit MemorySegment(uint64_t length_bytes)
      : bytes_(static_cast<std::byte*>(
                   mmap(nullptr, length_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)),
               length_bytes) {}
  ~MemorySegment() override { munmap(bytes_.data(), bytes_.size()); }
  absl::Span<std::byte> bytes() const override { return bytes_; }
  uint32_t id() const override { return 1; }

 private:
  const absl::Span<std::byte> bytes_;
};

// A dma-buf: the fabric reaches it as a network card does, the processor does not.
class DmaSegment final : public rails::Segment {
 public:
  DmaSegment(std::byte* mapping, uint64_t length_bytes) : mapping_(mapping), length_bytes_(length_bytes) {}
  ~DmaSegment() override { munmap(mapping_, length_bytes_); }
  absl::Span<std::byte> bytes() const override { return {static_cast<std::byte*>(nullptr), length_bytes_}; }
  uint32_t id() const override { return 2; }
  std::byte* mapping() const { return mapping_; }

 private:
  std::byte* const mapping_;
  const uint64_t length_bytes_;
};

std::byte* BytesOf(const rails::Range& range) {
  const auto* const dma = dynamic_cast<const DmaSegment*>(range.segment.get());
  return (dma != nullptr ? dma->mapping() : range.segment->bytes().data()) + range.offset_bytes;
}

class MemoryJob final : public rails::Job {
 public:
  explicit MemoryJob(uint64_t seq) : seq_(seq) {}

  uint64_t seq() const override { return seq_; }
  Result Wait(absl::Duration) override {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [this] { return result_.has_value(); });
    return *result_;
  }
  void OnDone(std::function<void(Result)> callback) override {
    {
      std::lock_guard lock(mutex_);
      if (!result_) {
        callback_ = std::move(callback);
        return;
      }
    }
    callback(*result_);
  }
  std::future<Result> Future() override { return {}; }
  absl::Status Cancel() override { return absl::OkStatus(); }

  void End(const Result& result) {
    std::function<void(Result)> callback;
    {
      std::lock_guard lock(mutex_);
      if (result_) return;
      result_ = result;
      callback.swap(callback_);
      ended_.notify_all();
    }
    if (callback) callback(result);
  }

 private:
  const uint64_t seq_;
  std::mutex mutex_;
  std::condition_variable ended_;
  std::optional<Result> result_;
  std::function<void(Result)> callback_;
};

uint64_t TotalOf(const rails::FlowRanges& flow) {
  uint64_t bytes = 0;
  for (const rails::Range& range : flow.ranges) bytes += range.length_bytes;
  return bytes;
}

const rails::FlowRanges* FlowOf(const std::vector<rails::FlowRanges>& flows, uint32_t rank) {
  const auto found = std::find_if(flows.begin(), flows.end(), [&](const auto& flow) { return flow.rank == rank; });
  return found == flows.end() ? nullptr : &*found;
}

// Reads or writes the bytes of a flow. Declares accesses to memory that the fake driver knows.
void Gather(const rails::FlowRanges& flow, std::string* bytes) {
  for (const rails::Range& range : flow.ranges) {
    const std::byte* const from = BytesOf(range);
    fakeHostRead(reinterpret_cast<uint64_t>(from), range.length_bytes);
    bytes->append(reinterpret_cast<const char*>(from), range.length_bytes);
  }
}
void Scatter(const std::string& bytes, const rails::FlowRanges& flow) {
  size_t done = 0;
  for (const rails::Range& range : flow.ranges) {
    const size_t length = std::min<size_t>(range.length_bytes, bytes.size() - done);
    std::byte* const to = BytesOf(range);
    if (length > 0) fakeHostWrite(reinterpret_cast<uint64_t>(to), length);
    std::memcpy(to, bytes.data() + done, length);
    done += length;
  }
}

}  // namespace memory

using memory::DmaSegment, memory::MemoryJob, memory::MemorySegment;

class MemoryFabric {
 public:
  MemoryFabric(uint32_t world_size, uint64_t seed, uint32_t nodes)
      : world_size_(world_size), nodes_(nodes), random_(seed), members_(world_size), thread_([this] { Run(); }) {}
  ~MemoryFabric() {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
      changed_.notify_all();
    }
    thread_.join();
  }

  uint32_t world_size() const { return world_size_; }
  std::vector<std::string> nodes() const {
    std::vector<std::string> names;
    for (uint32_t rank = 0; rank < world_size_; ++rank) names.push_back(absl::StrCat("n", rank % nodes_));
    return names;
  }

  void Join(uint32_t rank) {
    std::unique_lock lock(mutex_);
    members_[rank].joined = true;
    changed_.notify_all();
    changed_.wait(lock, [this] {
      return std::all_of(members_.begin(), members_.end(), [](const Member& member) { return member.joined; });
    });
  }

  absl::StatusOr<std::shared_ptr<rails::Job>> Submit(uint32_t rank, const rails::AllToAllv& exchange) {
    std::unique_lock lock(mutex_);
    stalled_ += stalls_;
    changed_.wait(lock, [this] { return !stalls_ || !over_.ok(); });
    if (!over_.ok()) return absl::FailedPreconditionError(over_.message());
    if (members_[rank].last_seq - ended_ >= max_jobs_) return absl::ResourceExhaustedError("limits.max_jobs_per_group");
    const uint64_t seq = ++members_[rank].last_seq;
    Pending& pending = pending_[seq];
    pending.parts.resize(world_size_);
    auto job = std::make_shared<MemoryJob>(seq);
    pending.parts[rank] = {exchange, job};
    if (++pending.submitted == world_size_) ++jobs_;
    changed_.notify_all();
    return job;
  }

  void Leave(uint32_t rank) {
    std::map<uint64_t, Pending> lost;
    const absl::Status why = absl::UnavailableError(absl::StrCat("rank ", rank, " has left"));
    {
      std::lock_guard lock(mutex_);
      if (!over_.ok()) return;
      over_ = why;
      lost.swap(pending_);
      changed_.notify_all();
    }
    for (auto& [seq, pending] : lost) End(pending, why);
  }

  void FailJob(uint64_t seq, absl::Status status) {
    std::lock_guard lock(mutex_);
    failures_[seq] = std::move(status);
  }
  void set_tcp(bool tcp) { tcp_ = tcp; }
  void set_max_jobs(uint64_t max_jobs) {
    std::lock_guard lock(mutex_);
    max_jobs_ = max_jobs;
  }
  void IgnoreVotes() { ignores_votes_ = true; }
  bool tcp() const { return tcp_; }
  // Before jobs are submitted.
  void Tamper(uint64_t seq, uint32_t from, std::function<void(std::string*)> change) {
    tampered_seq_ = seq;
    tampered_from_ = from;
    tamper_ = std::move(change);
  }
  void Hold(bool held) {
    std::lock_guard lock(mutex_);
    held_ = held;
    changed_.notify_all();
  }
  uint64_t jobs() const {
    std::lock_guard lock(mutex_);
    return jobs_;
  }
  void StallSubmissions() {
    std::lock_guard lock(mutex_);
    stalls_ = true;
  }
  uint32_t stalled() const {
    std::lock_guard lock(mutex_);
    return stalled_;
  }

 private:
  struct Member {
    bool joined = false;
    uint64_t last_seq = 0;
  };
  struct Part {
    rails::AllToAllv exchange;
    std::shared_ptr<MemoryJob> job;
  };
  struct Pending {
    std::vector<Part> parts;  // by rank
    uint32_t submitted = 0;
  };

  static void End(Pending& pending, const absl::Status& why) {
    for (Part& part : pending.parts) {
      if (part.job == nullptr) continue;
      rails::JobReport report;
      report.terminal = true;
      report.status = why;
      part.job->End(report);
    }
  }

  // The number of a job that can be carried out; 0: there is none.
  uint64_t Choose() {
    std::vector<uint64_t> ready;
    for (const auto& [seq, pending] : pending_) {
      if (pending.submitted == world_size_ && !held_) ready.push_back(seq);
    }
    if (ready.empty()) return 0;
    return ready[random_() % ready.size()];
  }

  void Run() {
    std::unique_lock lock(mutex_);
    while (!stopping_) {
      const uint64_t seq = Choose();
      if (seq == 0) {
        changed_.wait(lock);
        continue;
      }
      auto taken = pending_.extract(seq);
      const auto failure = failures_.find(seq);
      const absl::Status planned = failure == failures_.end() ? absl::OkStatus() : failure->second;
      lock.unlock();
      const absl::Status status = planned.ok() ? Carry(taken.mapped(), seq) : planned;
      if (!status.ok()) End(taken.mapped(), status);
      lock.lock();
      ++ended_;
    }
  }

  absl::Status Carry(Pending& job, uint64_t seq) {
    std::vector<rails::JobReport> reports(world_size_);
    uint64_t highest_vote = 0;
    const rails::AllToAllv& first = job.parts[0].exchange;
    for (Part& part : job.parts) {
      highest_vote = std::max(highest_vote, part.exchange.vote);
      if (part.exchange.tag != first.tag) {
        return absl::InvalidArgumentError(absl::StrCat("tags ", part.exchange.tag, " and ", first.tag, " differ"));
      }
      if (part.exchange.capacities != first.capacities) return absl::InvalidArgumentError("capacities differ");
    }
    for (uint32_t from = 0; from < world_size_; ++from) {
      for (uint32_t to = 0; to < world_size_; ++to) {
        if (absl::Status status = CarryFlow(job, seq, from, to, &reports); !status.ok()) return status;
      }
    }
    for (uint32_t rank = 0; rank < world_size_; ++rank) {
      reports[rank].terminal = true;
      reports[rank].highest_vote = ignores_votes_ ? 0 : highest_vote;
      job.parts[rank].job->End(reports[rank]);
    }
    return absl::OkStatus();
  }

  absl::Status CarryFlow(Pending& job, uint64_t seq, uint32_t from, uint32_t to,
                         std::vector<rails::JobReport>* reports) {
    const rails::FlowRanges* const source = memory::FlowOf(job.parts[from].exchange.sends, to);
    const rails::FlowRanges* const target = memory::FlowOf(job.parts[to].exchange.receives, from);
    const uint64_t sent = source == nullptr ? 0 : memory::TotalOf(*source),
                   room = target == nullptr ? 0 : memory::TotalOf(*target);
    const bool capacities = job.parts[0].exchange.capacities;
    if (capacities ? sent > room : sent != room) {
      return absl::InvalidArgumentError(
          absl::StrCat("rank ", from, " sends ", sent, " bytes to rank ", to, ", which expects ", room));
    }
    rails::JobReport& report = (*reports)[to];
    if (capacities) {
      report.received_by_rank.resize(world_size_);
      report.received_by_rank[from] = sent;
    }
    (*reports)[from].bytes_sent += sent;
    report.bytes_received += sent;
    if (sent == 0) return absl::OkStatus();
    std::string bytes;
    memory::Gather(*source, &bytes);
    if (seq == tampered_seq_ && from == tampered_from_) tamper_(&bytes);
    memory::Scatter(bytes, *target);
    return absl::OkStatus();
  }

  const uint32_t world_size_, nodes_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::mt19937_64 random_;
  std::vector<Member> members_;
  std::map<uint64_t, Pending> pending_;
  std::map<uint64_t, absl::Status> failures_;
  absl::Status over_;
  bool held_ = false, stopping_ = false, stalls_ = false;
  uint32_t stalled_ = 0;
  std::atomic<bool> tcp_ = false, ignores_votes_ = false;
  uint64_t tampered_seq_ = 0;
  uint32_t tampered_from_ = 0;
  std::function<void(std::string*)> tamper_;
  uint64_t ended_ = 0, max_jobs_ = UINT64_MAX;
  uint64_t jobs_ = 0;
  std::thread thread_;
};

namespace {

class MemoryGroup final : public rails::Group {
 public:
  MemoryGroup(std::shared_ptr<MemoryFabric> fabric, uint32_t rank)
      : fabric_(std::move(fabric)), rank_(rank), members_(fabric_->nodes()) {}
  ~MemoryGroup() override {
    if (owner_.IsThis()) fabric_->Leave(rank_);  // in a forked child nobody may ever unlock the fabric
  }
  uint32_t rank() const override { return rank_; }
  uint32_t world_size() const override { return fabric_->world_size(); }
  const std::vector<std::string>& members() const override { return members_; }
  absl::StatusOr<std::shared_ptr<rails::Job>> Submit(const rails::AllToAllv& exchange, absl::Duration) override {
    return fabric_->Submit(rank_, exchange);
  }
  absl::StatusOr<std::shared_ptr<rails::Prepared>> Prepare(const rails::AllToAllv&, absl::Duration) override {
    return absl::UnimplementedError("no prepared exchanges here");
  }
  absl::StatusOr<std::shared_ptr<rails::Job>> Submit(const std::shared_ptr<rails::Prepared>&, const rails::Lengths&,
                                                     absl::Duration) override {
    return absl::UnimplementedError("no prepared exchanges here");
  }
  absl::Status Leave() override {
    fabric_->Leave(rank_);
    return absl::OkStatus();
  }

 private:
  const rails::internal::OwnerProcess owner_{};
  const std::shared_ptr<MemoryFabric> fabric_;
  const uint32_t rank_;
  const std::vector<std::string> members_;
};

class MemoryClient final : public rails::Client {
 public:
  explicit MemoryClient(std::shared_ptr<MemoryFabric> fabric) : fabric_(std::move(fabric)) {}
  absl::StatusOr<std::shared_ptr<rails::Segment>> CreateSegment(uint64_t length_bytes, rails::SegmentOptions) override {
    return std::make_shared<MemorySegment>(length_bytes);
  }
  absl::StatusOr<std::shared_ptr<rails::Segment>> ImportSegment(int fd, uint64_t length_bytes,
                                                                absl::Duration) override {
    if (fabric_->tcp()) return absl::UnimplementedError("rail 0 is over TCP");
    void* const mapping = mmap(nullptr, length_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapping == MAP_FAILED) return absl::ErrnoToStatus(errno, "mmap");
    return std::make_shared<DmaSegment>(static_cast<std::byte*>(mapping), length_bytes);
  }
  absl::StatusOr<std::unique_ptr<rails::Group>> JoinGroup(rails::GroupOptions options) override {
    fabric_->Join(options.rank);
    return std::make_unique<MemoryGroup>(fabric_, options.rank);
  }
  bool Connected() const override { return true; }
  absl::Status Reconnect() override { return absl::OkStatus(); }
  const std::string& node() const override { return node_; }

 private:
  const std::shared_ptr<MemoryFabric> fabric_;
  const std::string node_ = "here";
};

}  // namespace

MemoryCluster::MemoryCluster(uint32_t world_size, uint64_t seed, uint32_t nodes)
    : fabric_(std::make_shared<MemoryFabric>(world_size, seed, nodes)) {}
MemoryCluster::~MemoryCluster() = default;
std::unique_ptr<rails::Client> MemoryCluster::MakeClient() { return std::make_unique<MemoryClient>(fabric_); }
void MemoryCluster::FailJob(uint64_t seq, absl::Status status) { fabric_->FailJob(seq, std::move(status)); }
void MemoryCluster::LimitJobs(uint32_t count) { fabric_->set_max_jobs(count); }
void MemoryCluster::Tamper(uint64_t seq, uint32_t from, std::function<void(std::string*)> change) {
  fabric_->Tamper(seq, from, std::move(change));
}
void MemoryCluster::IgnoreVotes() { fabric_->IgnoreVotes(); }
void MemoryCluster::UseTcp() { fabric_->set_tcp(true); }
void MemoryCluster::Hold(bool held) { fabric_->Hold(held); }
uint64_t MemoryCluster::jobs() const { return fabric_->jobs(); }
void MemoryCluster::StallSubmissions() { fabric_->StallSubmissions(); }
uint32_t MemoryCluster::stalled() const { return fabric_->stalled(); }

}  // namespace railsd::testing
