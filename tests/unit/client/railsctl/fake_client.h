// A daemon that is no process: ranks in threads of this one exchange by copying, with faults on request.
#ifndef RAILS_TESTS_FAKE_CLIENT_H_
#define RAILS_TESTS_FAKE_CLIENT_H_

#include <condition_variable>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "rails/client.h"

namespace rails::ctl {

class FakeCluster {
 public:
  // Seen with the mutex held, after the bytes of a job have been copied.
  std::function<void(uint64_t seq, std::map<uint32_t, AllToAllv>& parts)> after_copy;
  // Status of a rank's job; OK by default.
  std::function<absl::Status(uint64_t seq, uint32_t rank)> outcome;
  absl::Status connect_status;
  // Left out of the exchange: the segment of the receiver keeps what it had.
  bool lose_bytes = false;

  absl::StatusOr<std::unique_ptr<Client>> Connect(const ClientOptions& options);

  std::mutex mutex;
  std::condition_variable changed;
  std::set<uint32_t> joined;
  std::map<uint64_t, std::map<uint32_t, AllToAllv>> submitted;  // by sequence number and rank
  std::set<uint64_t> finished;

  void Submit(uint64_t seq, uint32_t rank, uint32_t world_size, const AllToAllv& part) {
    std::lock_guard lock(mutex);
    submitted[seq][rank] = part;
    if (submitted[seq].size() < world_size) return;
    if (!lose_bytes) Copy(submitted[seq]);
    if (after_copy) after_copy(seq, submitted[seq]);
    finished.insert(seq);
    changed.notify_all();
  }

 private:
  static std::vector<std::byte> Gather(const FlowRanges& flow) {
    std::vector<std::byte> bytes;
    for (const Range& range : flow.ranges) {
      const std::byte* begin = range.segment->bytes().data() + range.offset_bytes;
      bytes.insert(bytes.end(), begin, begin + range.length_bytes);
    }
    return bytes;
  }

  static void Copy(std::map<uint32_t, AllToAllv>& parts) {
    for (auto& [source, part] : parts) {
      for (const FlowRanges& flow : part.sends) {
        const std::vector<std::byte> bytes = Gather(flow);
        for (const FlowRanges& receive : parts.at(flow.rank).receives) {
          if (receive.rank != source) continue;
          size_t done = 0;
          for (const Range& range : receive.ranges) {
            std::memcpy(range.segment->bytes().data() + range.offset_bytes, bytes.data() + done, range.length_bytes);
            done += range.length_bytes;
          }
        }
      }
    }
  }
};

class FakeSegment final : public Segment {
 public:
  explicit FakeSegment(uint64_t length) : memory_(length) {}
  absl::Span<std::byte> bytes() const override { return absl::MakeSpan(memory_); }
  uint32_t id() const override { return 1; }

 private:
  mutable std::vector<std::byte> memory_;
};

class FakeJob final : public Job {
 public:
  FakeJob(FakeCluster* cluster, uint64_t seq, uint32_t rank) : cluster_(*cluster), seq_(seq), rank_(rank) {}
  uint64_t seq() const override { return seq_; }
  absl::StatusOr<JobReport> Wait(absl::Duration timeout) override {
    std::unique_lock lock(cluster_.mutex);
    JobReport report;
    report.terminal = cluster_.changed.wait_for(lock, absl::ToChronoNanoseconds(timeout),
                                                [this] { return cluster_.finished.count(seq_) > 0; });
    if (cluster_.outcome) report.status = cluster_.outcome(seq_, rank_);
    report.rail_tx_bytes = {seq_, 0};
    report.rail_rx_bytes = {0, seq_};
    return report;
  }
  void OnDone(std::function<void(absl::StatusOr<JobReport>)>) override {}
  std::future<absl::StatusOr<JobReport>> Future() override { return {}; }
  absl::Status Cancel() override { return absl::OkStatus(); }

 private:
  FakeCluster& cluster_;
  const uint64_t seq_;
  const uint32_t rank_;
};

class FakeGroup final : public Group {
 public:
  FakeGroup(FakeCluster* cluster, GroupOptions options) : cluster_(*cluster), options_(std::move(options)) {}
  uint32_t rank() const override { return options_.rank; }
  uint32_t world_size() const override { return options_.world_size; }
  const std::vector<std::string>& members() const override { return members_; }
  absl::StatusOr<std::shared_ptr<Job>> Submit(const AllToAllv& exchange, absl::Duration) override {
    cluster_.Submit(++seq_, options_.rank, options_.world_size, exchange);
    return std::make_shared<FakeJob>(&cluster_, seq_, options_.rank);
  }
  absl::StatusOr<std::shared_ptr<Prepared>> Prepare(const AllToAllv&, absl::Duration) override {
    return absl::UnimplementedError("not needed");
  }
  absl::StatusOr<std::shared_ptr<Job>> Submit(const std::shared_ptr<Prepared>&, const Lengths&,
                                              absl::Duration) override {
    return absl::UnimplementedError("not needed");
  }
  absl::Status Leave() override { return absl::OkStatus(); }

 private:
  FakeCluster& cluster_;
  const GroupOptions options_;
  std::vector<std::string> members_;
  uint64_t seq_ = 0;
};

class FakeClient final : public Client {
 public:
  FakeClient(FakeCluster* cluster, std::string node) : cluster_(*cluster), node_(std::move(node)) {}
  absl::StatusOr<std::shared_ptr<Segment>> CreateSegment(uint64_t length, SegmentOptions) override {
    return std::make_shared<FakeSegment>(length);
  }
  absl::StatusOr<std::shared_ptr<Segment>> ImportSegment(int, uint64_t, absl::Duration) override {
    return absl::UnimplementedError("not needed");
  }
  absl::StatusOr<std::unique_ptr<Group>> JoinGroup(GroupOptions options) override {
    std::unique_lock lock(cluster_.mutex);
    cluster_.joined.insert(options.rank);
    cluster_.changed.notify_all();
    cluster_.changed.wait(lock, [&] { return cluster_.joined.size() == options.world_size; });
    return std::make_unique<FakeGroup>(&cluster_, std::move(options));
  }
  bool Connected() const override { return true; }
  absl::Status Reconnect() override { return absl::OkStatus(); }
  const std::string& node() const override { return node_; }

 private:
  FakeCluster& cluster_;
  const std::string node_;
};

inline absl::StatusOr<std::unique_ptr<Client>> FakeCluster::Connect(const ClientOptions& options) {
  if (!connect_status.ok()) return connect_status;
  return std::make_unique<FakeClient>(this, options.socket_dir);
}

}  // namespace rails::ctl

#endif  // RAILS_TESTS_FAKE_CLIENT_H_
