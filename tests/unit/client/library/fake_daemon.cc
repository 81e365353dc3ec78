#include "tests/unit/client/library/fake_daemon.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "rails/v1/descriptor.pb.h"
#include "rails/v1/group.pb.h"
#include "rails/v1/job.pb.h"
#include "rails/v1/session.pb.h"
#include "tests/unit/client/library/fake_ring.h"

namespace rails::testing {
namespace {

using internal::UniqueFd;

constexpr size_t kMaxRequestBytes = 4 << 20;

void SendWithDescriptors(int socket, const std::string& packet, const std::vector<int>& fds) {
  iovec data{const_cast<char*>(packet.data()), packet.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(3 * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(part), fds.data(), fds.size() * sizeof(int));
  }
  sendmsg(socket, &message, MSG_NOSIGNAL);
}

template <typename Message>
Message Parse(const std::string& payload) {
  Message message;
  if (!message.ParseFromString(payload)) abort();
  return message;
}

}  // namespace

class FakeDaemon::Impl {
 public:
  Impl(std::string directory, uint64_t boot_id) : directory_(std::move(directory)), boot_id_(boot_id) {
    process_.Reset(eventfd(0, EFD_CLOEXEC));
    wake_.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    listener_.Reset(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string path = directory_ + "/descriptors.sock";
    unlink(path.c_str());
    std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
    if (bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) abort();
    if (listen(listener_.get(), 64) != 0) abort();
    thread_ = std::thread([this] { Serve(); });
  }
  ~Impl() { Die(); }

  void Die() {
    if (!thread_.joinable()) return;
    stop_ = true;
    Wake();
    thread_.join();
  }
  void EndProcess() { eventfd_write(process_.get(), 1); }
  void CloseSessions() {
    close_sessions_ = true;
    Wake();
  }
  void Wake() { eventfd_write(wake_.get(), 1); }

  // Answers and reports what can be, after a change.
  void Settle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    for (Job& job : jobs_) {
      v1::JobReport report;
      if (job.reported || !End(job.id, &report)) continue;
      job.reported = true;
      if (missed.contains(job.id.seq())) {
        job.ring->Miss();
      } else {
        job.ring->Report(report);
      }
    }
    if (joins_held) return;
    for (const Join& join : std::exchange(joins_, {})) {
      v1::JoinGroupResponse response;
      response.mutable_epoch()->set_boot_id(boot_id_);
      response.mutable_epoch()->set_counter(epoch);
      for (uint32_t i = 0; i < join.world_size; ++i) response.add_members(absl::StrCat("node", i));
      join.ring->Answer(join.id, join_refusal, &response);
    }
  }

  // State that the tests see.
  mutable absl::Mutex mutex;
  bool joins_held = false, segments_held = false, requests_held = false;
  std::set<uint64_t> missed;
  std::deque<Fate> fates;
  absl::Status refusal, join_refusal, segment_refusal, wait_failure;
  int wait_failures = 0;
  std::vector<v1::SubmitAllToAllRequest> submissions;
  std::vector<v1::SubmitPreparedRequest> prepared_submissions;
  std::vector<v1::PrepareAllToAllRequest> preparations;
  std::map<uint64_t, v1::PrepareAllToAllRequest> prepared;
  absl::Status prepare_refusal;
  int too_early = 0;
  std::vector<uint64_t> accepted, cancelled, joins, given_up;
  uint64_t epoch = 7, records = 0;
  std::vector<uint64_t> waits;
  std::map<uint64_t, absl::Status> finished;
  std::map<uint32_t, SharedSegment> segments;
  std::map<uint32_t, uint64_t> reservations;
  int leaves = 0, sessions_open = 0;

  uint64_t UntakenBytes() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    uint64_t bytes = 0;
    for (const Connection& connection : connections_) {
      if (connection.ring != nullptr) bytes += connection.ring->untaken_bytes();
    }
    return bytes;
  }
  void BreakRings() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    for (const Connection& connection : connections_) connection.ring->Break();
  }

 private:
  struct Connection {
    UniqueFd socket;
    std::shared_ptr<FakeRing> ring;
  };
  struct Job {
    std::shared_ptr<FakeRing> ring;
    v1::JobId id;
    bool reported = false;
  };
  struct Join {
    std::shared_ptr<FakeRing> ring;
    uint64_t id = 0;
    uint32_t world_size = 0;
  };

  // False: the job goes on.
  bool End(const v1::JobId& id, v1::JobReport* report) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    *report->mutable_job() = id;
    report->set_state(v1::JOB_STATE_RUNNING);
    const auto found = finished.find(id.seq());
    if (found == finished.end() && id.epoch().counter() == epoch) return false;
    const absl::Status end = found != finished.end() ? found->second : absl::UnavailableError("node node1 is lost");
    report->set_replayable(found == finished.end());
    report->set_state(end.ok() ? v1::JOB_STATE_DONE : v1::JOB_STATE_FAILED);
    report->set_code(static_cast<int>(end.code()));
    report->set_message(std::string(end.message()));
    report->set_bytes_sent(11);
    report->set_bytes_received(22);
    report->set_elapsed_seconds(0.5);
    report->set_to_first_chunk_seconds(0.25);
    report->set_ratio_to_bound(1.25);
    report->add_rail_tx_bytes(5);
    report->add_rail_tx_bytes(6);
    return true;
  }

  void OnRequest(const std::shared_ptr<FakeRing>& ring, ring::Kind kind, uint64_t id, const std::string& payload)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    switch (kind) {
      case ring::Kind::kSubmit:
        return OnSubmit(ring, id, payload, &submissions);
      case ring::Kind::kSubmitPrepared:
        return OnSubmit(ring, id, payload, &prepared_submissions);
      case ring::Kind::kPrepare: {
        const auto request = Parse<v1::PrepareAllToAllRequest>(payload);
        preparations.push_back(request);
        if (!prepare_refusal.ok()) return ring->Answer(id, prepare_refusal);
        if (request.epoch().counter() != epoch) return ring->Answer(id, absl::AbortedError("the group is broken"));
        const bool fresh = prepared.emplace(request.prepared_id(), request).second;
        return ring->Answer(id, fresh ? absl::OkStatus() : absl::AlreadyExistsError("prepared_id"));
      }
      case ring::Kind::kReleasePrepared: {
        const bool known = prepared.erase(Parse<v1::ReleasePreparedRequest>(payload).prepared_id()) == 1;
        return ring->Answer(id, known ? absl::OkStatus() : absl::NotFoundError("prepared_id"));
      }
      case ring::Kind::kWaitJob:
        return OnWait(ring, id, Parse<v1::WaitJobRequest>(payload));
      case ring::Kind::kCancelJob: {
        const uint64_t seq = Parse<v1::CancelJobRequest>(payload).job().seq();
        cancelled.push_back(seq);
        finished.emplace(seq, absl::CancelledError("cancelled by rank 0"));
        return ring->Answer(id, absl::OkStatus());
      }
      case ring::Kind::kJoinGroup: {
        const auto request = Parse<v1::JoinGroupRequest>(payload);
        joins.push_back(request.next_seq());
        joins_.push_back({ring, id, request.world_size()});
        return;
      }
      case ring::Kind::kLeaveGroup:
        ++leaves;
        prepared.clear();
        return ring->Answer(id, absl::OkStatus());
      case ring::Kind::kRemoveSegment: {
        const uint32_t segment = Parse<v1::RemoveSegmentRequest>(payload).segment_id();
        for (const auto& [prepared_id, ranges] : prepared) {
          too_early += ranges.sends_size() > 0 && ranges.sends(0).segment_ids(0) == segment;
        }
        const bool known = segments.erase(segment) == 1;
        return ring->Answer(id, known ? absl::OkStatus() : absl::NotFoundError("segment"));
      }
      case ring::Kind::kGiveUp:
        given_up.push_back(id);
        return;
      default:
        abort();
    }
  }

  template <typename Request>
  void OnSubmit(const std::shared_ptr<FakeRing>& ring, uint64_t id, const std::string& payload,
                std::vector<Request>* all) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    if (payload.size() > kMaxRequestBytes) {
      return ring->Answer(id, absl::ResourceExhaustedError("the request is too long"));
    }
    const auto request = Parse<Request>(payload);
    all->push_back(request);
    Fate fate = Fate::kAccept;
    if (!fates.empty()) {
      fate = fates.front();
      fates.pop_front();
    }
    if (fate == Fate::kRefuse) return ring->Answer(id, refusal);
    if (fate == Fate::kHold) return;
    if (request.job().epoch().counter() != epoch) return ring->Answer(id, absl::AbortedError("the group is broken"));
    const uint64_t seq = request.job().seq();
    jobs_.push_back({ring, request.job()});
    if (std::find(accepted.begin(), accepted.end(), seq) == accepted.end()) accepted.push_back(seq);
    if (fate == Fate::kEndAndAccept) {
      finished.emplace(seq, absl::OkStatus());
      Settle();
    }
    ring->Answer(id, absl::OkStatus());
  }

  void OnWait(const std::shared_ptr<FakeRing>& ring, uint64_t id, const v1::WaitJobRequest& request)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    waits.push_back(request.job().seq());
    if (request.timeout_milliseconds() != 0) abort();  // the ring reports ends unasked
    if (wait_failures > 0) {
      --wait_failures;
      return ring->Answer(id, wait_failure);
    }
    const bool known = std::find(accepted.begin(), accepted.end(), request.job().seq()) != accepted.end();
    v1::WaitJobResponse response;
    End(request.job(), response.mutable_report());
    ring->Answer(id, known ? absl::OkStatus() : absl::NotFoundError("no such job"), &response);
  }

  void Serve() {
    while (!stop_) {
      std::vector<pollfd> entries = {{wake_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
      {
        absl::MutexLock lock(&mutex);
        for (const Connection& connection : connections_) {
          entries.push_back({connection.socket.get(), POLLIN, 0});
          const bool taking = connection.ring != nullptr && !requests_held;
          entries.push_back({taking ? connection.ring->doorbell() : -1, POLLIN, 0});
        }
      }
      if (poll(entries.data(), entries.size(), -1) < 0) continue;
      eventfd_t ignored = 0;
      eventfd_read(wake_.get(), &ignored);
      absl::MutexLock lock(&mutex);
      if (close_sessions_.exchange(false)) {
        CloseAll();
        continue;
      }
      for (size_t i = connections_.size(); i-- > 0;) {
        bool good = entries[2 * i + 2].revents == 0 || Answer(&connections_[i]);
        if (entries[2 * i + 3].revents != 0 && !requests_held) good = Take(connections_[i].ring) && good;
        if (good) continue;
        connections_.erase(connections_.begin() + static_cast<std::ptrdiff_t>(i));
        --sessions_open;
      }
      Settle();
      if (entries[1].revents != 0) {
        connections_.push_back({UniqueFd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)), nullptr});
        ++sessions_open;
      }
    }
    absl::MutexLock lock(&mutex);
    listener_.Reset();
    CloseAll();
  }

  void CloseAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    sessions_open -= static_cast<int>(connections_.size());
    jobs_.clear();
    joins_.clear();
    connections_.clear();
  }

  bool Take(const std::shared_ptr<FakeRing>& ring) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    const uint64_t before = ring->records();
    const bool good = ring->Take([&](ring::Kind kind, uint64_t id, const std::string& payload)
                                     ABSL_NO_THREAD_SAFETY_ANALYSIS { OnRequest(ring, kind, id, payload); });
    records += ring->records() - before;
    return good;
  }

  // False when the connection is over.
  bool Answer(Connection* connection) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    char packet[65536];
    iovec data{packet, sizeof(packet)};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    const ssize_t got = recvmsg(connection->socket.get(), &message, MSG_CMSG_CLOEXEC);
    if (got <= 0) return false;
    auto attached = std::make_shared<UniqueFd>();
    if (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part), sizeof(int));
      attached->Reset(fd);
    }
    v1::DescriptorRequest request;
    if (!request.ParseFromArray(packet, static_cast<int>(got))) return false;
    v1::DescriptorResponse response;
    std::vector<int> to_send;
    if (request.has_open_session()) {
      auto* opened = response.mutable_open_session();
      opened->set_version(1);
      opened->set_token(absl::StrCat("token-", boot_id_));
      opened->set_node("fake-node");
      opened->set_boot_id(boot_id_);
      to_send = {process_.get()};
    } else if (request.has_open_ring()) {
      connection->ring = std::make_shared<FakeRing>();
      response.mutable_open_ring()->set_version(1);
      for (int i = 0; i < 3; ++i) to_send.push_back(connection->ring->client_fds()[i].get());
    } else if (segments_held) {
      return true;
    } else if (!segment_refusal.ok()) {
      response.set_code(static_cast<int>(segment_refusal.code()));
      response.set_message(std::string(segment_refusal.message()));
    } else if (request.has_reserve_segment()) {
      reservations[request.reserve_segment().segment_id()] = request.reserve_segment().length_bytes();
      response.mutable_reserve_segment();
    } else {
      segments[request.add_segment().segment_id()] = {attached, request.add_segment().length_bytes()};
      response.mutable_add_segment();
    }
    SendWithDescriptors(connection->socket.get(), response.SerializeAsString(), to_send);
    if (request.has_open_ring()) connection->ring->CloseClientFds();
    return true;
  }

  const std::string directory_;
  const uint64_t boot_id_;
  std::atomic<bool> stop_{false}, close_sessions_{false};
  UniqueFd process_, wake_, listener_;
  std::vector<Connection> connections_ ABSL_GUARDED_BY(mutex);
  std::vector<Job> jobs_ ABSL_GUARDED_BY(mutex);
  std::vector<Join> joins_ ABSL_GUARDED_BY(mutex);  // that wait for an answer
  std::thread thread_;
};

FakeDaemon::FakeDaemon(std::string socket_dir, uint64_t boot_id)
    : impl_(std::make_unique<Impl>(std::move(socket_dir), boot_id)) {}
FakeDaemon::~FakeDaemon() = default;

void FakeDaemon::Die() { impl_->Die(); }
void FakeDaemon::CloseSessions() { impl_->CloseSessions(); }
void FakeDaemon::EndProcess() { impl_->EndProcess(); }

void FakeDaemon::PlanSubmissions(std::vector<Fate> fates, absl::Status refusal) {
  absl::MutexLock lock(&impl_->mutex);
  impl_->fates.assign(fates.begin(), fates.end());
  impl_->refusal = std::move(refusal);
}
void FakeDaemon::FailWaits(int count, absl::Status status) {
  absl::MutexLock lock(&impl_->mutex);
  impl_->wait_failures = count;
  impl_->wait_failure = std::move(status);
}
void FakeDaemon::MissEnd(uint64_t seq) {
  absl::MutexLock lock(&impl_->mutex);
  impl_->missed.insert(seq);
}
void FakeDaemon::RefuseJoins(absl::Status status) {
  absl::MutexLock lock(&impl_->mutex);
  impl_->join_refusal = std::move(status);
}
void FakeDaemon::HoldJoins(bool hold) {
  absl::MutexLock lock(&impl_->mutex);
  impl_->joins_held = hold;
  impl_->Settle();
}
void FakeDaemon::RefuseSegments(absl::Status status) {
  absl::MutexLock lock(&impl_->mutex);
  impl_->segment_refusal = std::move(status);
}
void FakeDaemon::HoldSegments(bool hold) {
  absl::MutexLock lock(&impl_->mutex);
  impl_->segments_held = hold;
}
void FakeDaemon::HoldRequests(bool hold) {
  absl::MutexLock lock(&impl_->mutex);
  impl_->requests_held = hold;
  impl_->Wake();
}
void FakeDaemon::BreakRings() {
  absl::MutexLock lock(&impl_->mutex);
  impl_->BreakRings();
}
uint64_t FakeDaemon::untaken_bytes() const {
  absl::MutexLock lock(&impl_->mutex);
  return impl_->UntakenBytes();
}
void FakeDaemon::FinishJob(uint64_t seq, absl::Status status) {
  absl::MutexLock lock(&impl_->mutex);
  impl_->finished[seq] = std::move(status);
  impl_->Settle();
}

void FakeDaemon::EndEpoch() {
  absl::MutexLock lock(&impl_->mutex);
  ++impl_->epoch;
  impl_->Settle();
}

void FakeDaemon::RefusePreparations(absl::Status status) {
  absl::MutexLock lock(&impl_->mutex);
  impl_->prepare_refusal = std::move(status);
}
std::vector<uint64_t> FakeDaemon::prepared() const {
  absl::MutexLock lock(&impl_->mutex);
  std::vector<uint64_t> ids;
  for (const auto& [id, ranges] : impl_->prepared) ids.push_back(id);
  return ids;
}

#define RAILS_FAKE_GETTER(type, name)    \
  type FakeDaemon::name() const {        \
    absl::MutexLock lock(&impl_->mutex); \
    return impl_->name;                  \
  }
RAILS_FAKE_GETTER(std::vector<v1::SubmitAllToAllRequest>, submissions)
RAILS_FAKE_GETTER(std::vector<v1::SubmitPreparedRequest>, prepared_submissions)
RAILS_FAKE_GETTER(std::vector<v1::PrepareAllToAllRequest>, preparations)
RAILS_FAKE_GETTER(int, too_early)
RAILS_FAKE_GETTER(std::vector<uint64_t>, accepted)
RAILS_FAKE_GETTER(std::vector<uint64_t>, joins)
RAILS_FAKE_GETTER(std::vector<uint64_t>, waits)
RAILS_FAKE_GETTER(std::vector<uint64_t>, cancelled)
RAILS_FAKE_GETTER(std::vector<uint64_t>, given_up)
using SegmentMap = std::map<uint32_t, FakeDaemon::SharedSegment>;
RAILS_FAKE_GETTER(SegmentMap, segments)
using ReservationMap = std::map<uint32_t, uint64_t>;
RAILS_FAKE_GETTER(ReservationMap, reservations)
RAILS_FAKE_GETTER(int, leaves)
RAILS_FAKE_GETTER(int, sessions_open)
RAILS_FAKE_GETTER(uint64_t, records)
#undef RAILS_FAKE_GETTER

}  // namespace rails::testing
