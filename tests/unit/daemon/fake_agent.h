// A fake Agent, controlled by tests, for all code in daemon/ that uses the data plane.
#ifndef RAILSD_TESTS_UNIT_DAEMON_FAKE_AGENT_H_
#define RAILSD_TESTS_UNIT_DAEMON_FAKE_AGENT_H_

#include <algorithm>
#include <atomic>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "agent/agent.h"
#include "tests/unit/daemon/source_thread.h"

namespace railsd {

class FakeAgent : public Agent {
 public:
  struct PendingWait {
    JobKey job;
    absl::Duration timeout;
    Callback<absl::StatusOr<JobReport>> done;
  };
  struct PendingJoin {
    JoinRequest request;
    Callback<absl::StatusOr<GroupView>> done;
  };

  FakeAgent() {
    hello_.rails.push_back({RailIndex(0), "127.1.0.1:4000", 25'000'000});
    snapshot_.node = "n0";
  }
  PeerHello& mutable_hello() { return hello_; }

  void AddSource(EventSource* source) override { sources_.AddSource(source); }
  void RemoveSource(EventSource* source) override { sources_.RemoveSource(source); }

  const PeerHello& Hello() const override { return hello_; }

  void OpenSession(SessionInfo info, Callback<absl::StatusOr<SessionId>> done) override {
    absl::StatusOr<SessionId> answer = SessionId();
    if (!open_status.ok()) answer = open_status;
    {
      absl::MutexLock lock(&mutex_);
      if (answer.ok()) {
        answer = SessionId(next_session_++);
        sessions_.emplace(answer->value(), info);
      }
    }
    std::move(done)(answer);
  }
  void CloseSession(SessionId session, std::string reason, Callback<absl::Status> closed) override {
    {
      absl::MutexLock lock(&mutex_);
      sessions_.erase(session.value());
      close_reasons_.push_back(std::move(reason));
    }
    std::move(closed)(absl::OkStatus());
  }
  void ReserveSegment(SessionId, SegmentId id, uint64_t length_bytes, Callback<absl::Status> done) override {
    {
      absl::MutexLock lock(&mutex_);
      reserved_[id.value()] = length_bytes;
    }
    std::move(done)(absl::OkStatus());
  }
  void AddSegment(SessionId, SegmentId id, UniqueFd fd, uint64_t length_bytes, Callback<absl::Status> done) override {
    const bool valid = fd.valid();
    fd.Reset();
    {
      absl::MutexLock lock(&mutex_);
      if (valid) segments_[id.value()] = length_bytes;
    }
    std::move(done)(valid ? absl::OkStatus() : absl::InvalidArgumentError("fd"));
  }
  void RemoveSegment(SessionId, SegmentId id, Callback<absl::Status> done) override {
    absl::MutexLock lock(&mutex_);
    const bool known = segments_.erase(id.value()) != 0;
    std::move(done)(known ? absl::OkStatus() : absl::NotFoundError("segment_id: unknown"));
  }
  void Join(JoinRequest request, Callback<absl::StatusOr<GroupView>> done) override {
    absl::MutexLock lock(&mutex_);
    joins_.push_back({std::move(request), std::move(done)});
  }
  void Leave(SessionId, Epoch epoch, Rank rank, Callback<absl::Status> done) override {
    {
      absl::MutexLock lock(&mutex_);
      leaves_.emplace_back(epoch, rank);
    }
    std::move(done)(absl::OkStatus());
  }
  absl::Status Submit(Submission submission, Callback<absl::Status> done) override {
    if (!full_status.ok()) return full_status;
    {
      absl::MutexLock lock(&mutex_);
      lengths_.emplace_back(submission.lengths_bytes.begin(), submission.lengths_bytes.end());
      submission.lengths_bytes = {};  // valid during the call only
      submissions_.push_back(std::move(submission));
    }
    std::move(done)(submit_status);
    return absl::OkStatus();
  }
  absl::Status Prepare(Submission layout, Callback<absl::Status> done) override {
    if (!full_status.ok()) return full_status;
    {
      absl::MutexLock lock(&mutex_);
      layouts_.push_back(std::move(layout));
    }
    std::move(done)(submit_status);
    return absl::OkStatus();
  }
  void ReleasePrepared(SessionId session, PreparedId id, Callback<absl::Status> done) override {
    {
      absl::MutexLock lock(&mutex_);
      released_.emplace_back(session, id);
    }
    std::move(done)(submit_status);
  }
  void Wait(SessionId, JobKey job, Rank, absl::Duration timeout, Callback<absl::StatusOr<JobReport>> done) override {
    absl::MutexLock lock(&mutex_);
    waits_.push_back({job, timeout, std::move(done)});
  }
  void Cancel(SessionId, JobKey, Rank, Callback<absl::Status> done) override { std::move(done)(absl::OkStatus()); }

  void OnPeerUp(PeerHello hello) override {
    Log("up " + hello.node);
    absl::MutexLock lock(&mutex_);
    data_keys_[hello.node] = hello.data_key;
  }
  // The key of the last link with `node` that was up; zero if there was none.
  DataKey DataKeyOf(const std::string& node) const {
    absl::MutexLock lock(&mutex_);
    const auto it = data_keys_.find(node);
    return it == data_keys_.end() ? DataKey{} : it->second;
  }
  void OnPeerDown(std::string node, std::string why, bool ended) override {
    Log("down " + node + ": " + why + (ended ? " (ended)" : ""));
  }
  void OnPeerForgotten(std::string node) override { Log("forgotten " + node); }
  void OnPeerSilent(std::string node, std::string why) override { Log("silent " + node + ": " + why); }
  bool OnPeerMessage(std::string node, BootId, ControlMessage message) override {
    absl::MutexLock lock(&mutex_);
    if (messages_.size() >= message_capacity.load()) return false;
    messages_.emplace_back(std::move(node), std::move(message));
    return true;
  }
  void OnReadyTaken(std::string node, BootId, std::vector<JobKey> jobs) override {
    for (const JobKey& job : jobs) Log(absl::StrCat("taken by ", node, ": ready of job ", job.seq.value()));
  }
  void Drain(absl::Duration limit, Callback<absl::Status> drained) override {
    drain_limits.push_back(limit);
    std::move(drained)(drain_status);
  }
  void Undrain(Callback<absl::Status> done) override {
    ++undrains;
    std::move(done)(absl::OkStatus());
  }
  void Retune(AgentTuning tuning, Callback<absl::Status> done) override {
    retunings.push_back(std::move(tuning));
    std::move(done)(absl::OkStatus());
  }
  std::vector<ThreadProgress> Progress() const override { return {}; }
  void DrainRail(std::string rail, bool drained, Callback<absl::Status> done) override {
    if (rail != "rail0") return std::move(done)(absl::NotFoundError("rail: n0 has no rail '" + rail + "'"));
    {
      absl::MutexLock lock(&mutex_);
      snapshot_.rails.resize(1);
      snapshot_.rails[0].name = rail;
      snapshot_.rails[0].health.drained = drained;
    }
    std::move(done)(absl::OkStatus());
  }
  void Explain(WantedJob, Callback<absl::StatusOr<JobExplanation>> done) override { std::move(done)(explanation); }
  void Snapshot(Callback<AgentSnapshot> done) override {
    AgentSnapshot copy;
    {
      absl::MutexLock lock(&mutex_);
      if (silent) return unanswered_.push_back(std::move(done));
      copy = snapshot_;
    }
    std::move(done)(std::move(copy));
  }

  absl::StatusOr<JobExplanation> explanation = absl::NotFoundError("no job");  // set before use
  std::atomic<size_t> message_capacity = ~size_t{0};
  std::atomic<bool> silent = false;  // a hanging engine: snapshots get no answer

  // Accessors for tests.
  void SetSnapshot(AgentSnapshot snapshot) {
    absl::MutexLock lock(&mutex_);
    snapshot_ = std::move(snapshot);
  }
  size_t session_count() const {
    absl::MutexLock lock(&mutex_);
    return sessions_.size();
  }
  size_t reservation_count() const {
    absl::MutexLock lock(&mutex_);
    return reserved_.size();
  }
  size_t segment_count() const {
    absl::MutexLock lock(&mutex_);
    return segments_.size();
  }
  std::vector<std::string> close_reasons() const {
    absl::MutexLock lock(&mutex_);
    return close_reasons_;
  }
  std::vector<std::pair<Epoch, Rank>> leaves() const {
    absl::MutexLock lock(&mutex_);
    return leaves_;
  }
  std::vector<Submission> submissions() const {
    absl::MutexLock lock(&mutex_);
    return submissions_;
  }
  // By submission.
  std::vector<std::vector<uint64_t>> lengths() const {
    absl::MutexLock lock(&mutex_);
    return lengths_;
  }
  std::vector<Submission> layouts() const {
    absl::MutexLock lock(&mutex_);
    return layouts_;
  }
  std::vector<std::pair<SessionId, PreparedId>> released() const {
    absl::MutexLock lock(&mutex_);
    return released_;
  }
  size_t pending_joins() const {
    absl::MutexLock lock(&mutex_);
    return joins_.size();
  }
  size_t pending_waits() const {
    absl::MutexLock lock(&mutex_);
    return waits_.size();
  }
  PendingJoin TakeJoin() {
    absl::MutexLock lock(&mutex_);
    PendingJoin join = std::move(joins_.front());
    joins_.erase(joins_.begin());
    return join;
  }
  PendingWait TakeWait() {
    absl::MutexLock lock(&mutex_);
    PendingWait wait = std::move(waits_.front());
    waits_.erase(waits_.begin());
    return wait;
  }
  std::vector<std::string> events() const {
    absl::MutexLock lock(&mutex_);
    return events_;
  }
  std::vector<std::pair<std::string, ControlMessage>> messages() const {
    absl::MutexLock lock(&mutex_);
    return messages_;
  }
  size_t message_count() const {
    absl::MutexLock lock(&mutex_);
    return messages_.size();
  }
  bool Saw(const std::string& prefix) const {
    absl::MutexLock lock(&mutex_);
    return std::any_of(events_.begin(), events_.end(),
                       [&](const std::string& e) { return e.compare(0, prefix.size(), prefix) == 0; });
  }

  absl::Status open_status, submit_status, full_status, drain_status;  // set before use
  std::vector<absl::Duration> drain_limits;
  std::vector<AgentTuning> retunings;
  int undrains = 0;

 private:
  void Log(std::string event) {
    absl::MutexLock lock(&mutex_);
    events_.push_back(std::move(event));
  }

  PeerHello hello_;
  mutable absl::Mutex mutex_;
  std::map<std::string, DataKey> data_keys_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_session_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<uint64_t, SessionInfo> sessions_ ABSL_GUARDED_BY(mutex_);
  std::map<uint32_t, uint64_t> segments_, reserved_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> close_reasons_ ABSL_GUARDED_BY(mutex_);
  std::vector<PendingJoin> joins_ ABSL_GUARDED_BY(mutex_);
  std::vector<PendingWait> waits_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::pair<Epoch, Rank>> leaves_ ABSL_GUARDED_BY(mutex_);
  std::vector<Submission> submissions_ ABSL_GUARDED_BY(mutex_), layouts_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::vector<uint64_t>> lengths_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::pair<SessionId, PreparedId>> released_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> events_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::pair<std::string, ControlMessage>> messages_ ABSL_GUARDED_BY(mutex_);
  std::vector<Callback<AgentSnapshot>> unanswered_ ABSL_GUARDED_BY(mutex_);
  AgentSnapshot snapshot_ ABSL_GUARDED_BY(mutex_);
  SourceThread sources_;
};

}  // namespace railsd

#endif  // RAILSD_TESTS_UNIT_DAEMON_FAKE_AGENT_H_
