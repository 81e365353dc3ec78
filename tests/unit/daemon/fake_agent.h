// A fake Agent, controlled by tests, for all code in daemon/ that uses the data plane.
#ifndef RAILSD_TESTS_UNIT_DAEMON_FAKE_AGENT_H_
#define RAILSD_TESTS_UNIT_DAEMON_FAKE_AGENT_H_

#include <algorithm>
#include <atomic>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "agent/agent.h"
#include "tests/unit/daemon/source_thread.h"

namespace railsd {

// Values that threads have added, in order.
template <typename T>
class Recorded {
 public:
  void Add(T value) {
    absl::MutexLock lock(&mutex_);
    all_.push_back(std::move(value));
  }
  std::vector<T> operator()() const {
    absl::MutexLock lock(&mutex_);
    return all_;
  }
  size_t size() const {
    absl::MutexLock lock(&mutex_);
    return all_.size();
  }
  T Take() {
    absl::MutexLock lock(&mutex_);
    T first = std::move(all_.front());
    all_.erase(all_.begin());
    return first;
  }

 private:
  mutable absl::Mutex mutex_;
  std::vector<T> all_ ABSL_GUARDED_BY(mutex_);
};

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

  void OpenSession(SessionInfo, Callback<absl::StatusOr<SessionId>> done) override {
    if (!open_status.ok()) return std::move(done)(open_status);
    ++session_count;
    std::move(done)(SessionId(next_session_++));
  }
  void CloseSession(SessionId, std::string reason, Callback<absl::Status> closed) override {
    --session_count;
    close_reasons.Add(std::move(reason));
    std::move(closed)(absl::OkStatus());
  }
  void ReserveSegment(SessionId, SegmentId id, uint64_t length_bytes, Callback<absl::Status> done) override {
    reservations.Add({id, length_bytes});
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
    joins.Add({std::move(request), std::move(done)});
  }
  void Leave(SessionId, Epoch epoch, Rank rank, Callback<absl::Status> done) override {
    leaves.Add({epoch, rank});
    std::move(done)(absl::OkStatus());
  }
  bool IsQuickToCheck(SessionId) const override { return quick_to_check; }
  absl::Status Submit(Submission submission, Callback<absl::Status> done) override {
    if (!full_status.ok()) return full_status;
    lengths.Add({submission.lengths_bytes.begin(), submission.lengths_bytes.end()});
    submission.lengths_bytes = {};  // valid during the call only
    submissions.Add(std::move(submission));
    submitted_by_source = sources_.id() == std::this_thread::get_id();
    std::move(done)(submit_status);
    return absl::OkStatus();
  }
  absl::Status Prepare(Submission layout, Callback<absl::Status> done) override {
    if (!full_status.ok()) return full_status;
    layouts.Add(std::move(layout));
    std::move(done)(submit_status);
    return absl::OkStatus();
  }
  void ReleasePrepared(SessionId session, PreparedId id, Callback<absl::Status> done) override {
    released.Add({session, id});
    std::move(done)(submit_status);
  }
  void Wait(SessionId, JobKey job, Rank, absl::Duration timeout, Callback<absl::StatusOr<JobReport>> done) override {
    waits.Add({job, timeout, std::move(done)});
  }
  void Cancel(SessionId, JobKey, Rank, Callback<absl::Status> done) override { std::move(done)(absl::OkStatus()); }

  void OnPeerUp(PeerHello hello) override {
    events.Add("up " + hello.node);
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
    events.Add("down " + node + ": " + why + (ended ? " (ended)" : ""));
  }
  void OnPeerForgotten(std::string node) override { events.Add("forgotten " + node); }
  void OnPeerSilent(std::string node, std::string why) override { events.Add("silent " + node + ": " + why); }
  bool OnPeerMessage(std::string node, BootId, ControlMessage message) override {
    if (messages.size() >= message_capacity.load()) return false;
    messages.Add({std::move(node), std::move(message)});
    return true;
  }
  void OnReadyTaken(std::string node, BootId, std::vector<JobKey> jobs) override {
    for (const JobKey& job : jobs) events.Add(absl::StrCat("taken by ", node, ": ready of job ", job.seq.value()));
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

  std::atomic<size_t> session_count = 0;
  Recorded<std::string> close_reasons, events;
  Recorded<std::pair<SegmentId, uint64_t>> reservations;
  Recorded<PendingJoin> joins;  // without an answer
  Recorded<PendingWait> waits;
  Recorded<std::pair<Epoch, Rank>> leaves;
  Recorded<Submission> submissions, layouts;
  Recorded<std::vector<uint64_t>> lengths;  // by submission
  Recorded<std::pair<SessionId, PreparedId>> released;
  Recorded<std::pair<std::string, ControlMessage>> messages;
  absl::StatusOr<JobExplanation> explanation = absl::NotFoundError("no job");  // set before use
  std::atomic<bool> quick_to_check = true;
  std::atomic<bool> submitted_by_source = false;  // the thread that polls sources made the latest submission
  std::atomic<size_t> message_capacity = ~size_t{0};
  std::atomic<bool> silent = false;  // a hanging engine: snapshots get no answer

  // Accessors for tests.
  void SetSnapshot(AgentSnapshot snapshot) {
    absl::MutexLock lock(&mutex_);
    snapshot_ = std::move(snapshot);
  }
  size_t segment_count() const {
    absl::MutexLock lock(&mutex_);
    return segments_.size();
  }
  bool Saw(const std::string& prefix) const {
    const std::vector<std::string> all = events();
    return std::any_of(all.begin(), all.end(),
                       [&](const std::string& e) { return e.compare(0, prefix.size(), prefix) == 0; });
  }

  absl::Status open_status, submit_status, full_status, drain_status;  // set before use
  std::vector<absl::Duration> drain_limits;
  std::vector<AgentTuning> retunings;
  int undrains = 0;

 private:
  PeerHello hello_;
  mutable absl::Mutex mutex_;
  std::map<std::string, DataKey> data_keys_ ABSL_GUARDED_BY(mutex_);
  std::atomic<uint64_t> next_session_ = 1;
  std::map<uint32_t, uint64_t> segments_ ABSL_GUARDED_BY(mutex_);
  std::vector<Callback<AgentSnapshot>> unanswered_ ABSL_GUARDED_BY(mutex_);
  AgentSnapshot snapshot_ ABSL_GUARDED_BY(mutex_);
  SourceThread sources_;
};

}  // namespace railsd

#endif  // RAILSD_TESTS_UNIT_DAEMON_FAKE_AGENT_H_
