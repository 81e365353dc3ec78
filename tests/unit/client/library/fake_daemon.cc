#include "tests/unit/client/library/fake_daemon.h"

#include <grpcpp/grpcpp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "client/src/deadline.h"
#include "rails/v1/descriptor.pb.h"
#include "rails/v1/group.grpc.pb.h"
#include "rails/v1/job.grpc.pb.h"
#include "rails/v1/session.grpc.pb.h"

namespace rails::testing {
namespace {

using internal::UniqueFd;

grpc::Status ToGrpc(const absl::Status& status) {
  return {static_cast<grpc::StatusCode>(status.code()), std::string(status.message())};
}

void SendWithDescriptor(int socket, const std::string& packet, int fd) {
  iovec data{const_cast<char*>(packet.data()), packet.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(part), &fd, sizeof(int));
  }
  sendmsg(socket, &message, MSG_NOSIGNAL);
}

}  // namespace

class FakeDaemon::Impl final : public v1::SessionService::Service,
                               public v1::GroupService::Service,
                               public v1::JobService::Service {
 public:
  Impl(std::string directory, uint64_t boot_id) : directory_(std::move(directory)), boot_id_(boot_id) {
    process_.Reset(eventfd(0, EFD_CLOEXEC));
    stop_.Reset(eventfd(0, EFD_CLOEXEC));
    listener_.Reset(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string path = directory_ + "/descriptors.sock";
    unlink(path.c_str());
    std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
    if (bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) abort();
    if (listen(listener_.get(), 64) != 0) abort();
    grpc::ServerBuilder builder;
    builder.AddListeningPort(absl::StrCat("unix:", directory_, "/client.sock"), grpc::InsecureServerCredentials());
    builder.RegisterService(static_cast<v1::SessionService::Service*>(this));
    builder.RegisterService(static_cast<v1::GroupService::Service*>(this));
    builder.RegisterService(static_cast<v1::JobService::Service*>(this));
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) abort();
    thread_ = std::thread([this] { ServeDescriptors(); });
  }
  ~Impl() override { Die(); }

  void Die() {
    if (!thread_.joinable()) return;
    eventfd_write(stop_.get(), 1);
    thread_.join();
    {
      absl::MutexLock lock(&mutex);
      dying = true;
    }
    server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
  }
  void EndProcess() { eventfd_write(process_.get(), 1); }
  void CloseSessions() {
    close_sessions_ = true;
    eventfd_write(stop_.get(), 1);
  }

  // State that the tests see.
  mutable absl::Mutex mutex;
  bool dying = false, telling = false, joins_held = false, segments_held = false;
  std::set<uint64_t> missed, told;
  std::deque<Fate> fates;
  absl::Status refusal, join_refusal, segment_refusal, wait_failure;
  int early_answers = 0, wait_failures = 0;
  std::vector<v1::SubmitAllToAllRequest> submissions;
  std::vector<uint64_t> accepted, cancelled, joins;
  uint64_t epoch = 7;
  std::vector<WaitCall> waits;
  std::map<uint64_t, absl::Status> finished;
  std::map<uint32_t, SharedSegment> segments;
  std::map<uint32_t, uint64_t> reservations;
  int leaves = 0, sessions_open = 0, calls_without_token = 0;
  void ForgetTokens() { tokens_.clear(); }

 private:
  bool KnowsCaller(grpc::ServerContext* context) {
    absl::MutexLock lock(&mutex);
    const auto found = context->client_metadata().find("rails-session-token");
    if (found != context->client_metadata().end() &&
        tokens_.contains(std::string(found->second.data(), found->second.size()))) {
      return true;
    }
    ++calls_without_token;
    return false;
  }
  static grpc::Status Unknown() { return {grpc::UNAUTHENTICATED, "no such session"}; }

  grpc::Status GetSession(grpc::ServerContext* context, const v1::GetSessionRequest*,
                          v1::GetSessionResponse* response) override {
    if (!KnowsCaller(context)) return Unknown();
    response->set_node("fake-node");
    response->set_boot_id(boot_id_);
    return grpc::Status::OK;
  }

  grpc::Status RemoveSegment(grpc::ServerContext* context, const v1::RemoveSegmentRequest* request,
                             v1::RemoveSegmentResponse*) override {
    if (!KnowsCaller(context)) return Unknown();
    absl::MutexLock lock(&mutex);
    return segments.erase(request->segment_id()) == 1 ? grpc::Status::OK : grpc::Status(grpc::NOT_FOUND, "segment");
  }

  grpc::Status JoinGroup(grpc::ServerContext* context, const v1::JoinGroupRequest* request,
                         v1::JoinGroupResponse* response) override {
    if (!KnowsCaller(context)) return Unknown();
    absl::MutexLock lock(&mutex);
    joins.push_back(request->next_seq());
    while (joins_held && !dying && !context->IsCancelled()) {
      mutex.AwaitWithTimeout(absl::Condition(
                                 +[](bool* held) { return !*held; }, &joins_held),
                             absl::Milliseconds(2));
    }
    if (!join_refusal.ok()) return ToGrpc(join_refusal);
    response->mutable_epoch()->set_boot_id(boot_id_);
    response->mutable_epoch()->set_counter(epoch);
    for (uint32_t i = 0; i < request->world_size(); ++i) response->add_members(absl::StrCat("node", i));
    return grpc::Status::OK;
  }

  grpc::Status LeaveGroup(grpc::ServerContext*, const v1::LeaveGroupRequest*, v1::LeaveGroupResponse*) override {
    absl::MutexLock lock(&mutex);
    ++leaves;
    return grpc::Status::OK;
  }

  grpc::Status SubmitAllToAll(grpc::ServerContext* context, const v1::SubmitAllToAllRequest* request,
                              v1::SubmitAllToAllResponse*) override {
    if (!KnowsCaller(context)) return Unknown();
    absl::MutexLock lock(&mutex);
    submissions.push_back(*request);
    Fate fate = Fate::kAccept;
    if (!fates.empty()) {
      fate = fates.front();
      fates.pop_front();
    }
    if (fate == Fate::kRefuse || fate == Fate::kRefuseAttempt) {
      context->AddTrailingMetadata("rails-refused", fate == Fate::kRefuse ? "job" : "attempt");
      return ToGrpc(refusal);
    }
    while (fate == Fate::kHold && !dying && !context->IsCancelled()) {
      mutex.AwaitWithTimeout(absl::Condition(&dying), absl::Milliseconds(2));
    }
    if (fate == Fate::kHold) return grpc::Status::CANCELLED;
    if (fate == Fate::kLoseTheRequest) return {grpc::UNAVAILABLE, "connection reset"};
    const bool taken = std::find(accepted.begin(), accepted.end(), request->job().seq()) != accepted.end();
    if (request->question() && !taken) {
      context->AddTrailingMetadata("rails-refused", "job");
      return {grpc::NOT_FOUND, "has not been accepted"};
    }
    if (request->job().epoch().counter() != epoch) {
      context->AddTrailingMetadata("rails-refused", "job");
      return {grpc::ABORTED, "the group is broken"};
    }
    if (!taken) accepted.push_back(request->job().seq());
    if (fate == Fate::kEndAndAccept) {
      finished.emplace(request->job().seq(), absl::OkStatus());
      const auto is_told = [this, request] { return told.contains(request->job().seq()) || dying; };
      mutex.AwaitWithTimeout(absl::Condition(&is_told), absl::Minutes(1));
    }
    if (fate == Fate::kAcceptAndRefuse) return ToGrpc(refusal);
    const bool lost = fate == Fate::kAcceptAndLoseTheAnswer;
    return lost ? grpc::Status(grpc::UNAVAILABLE, "connection reset") : grpc::Status::OK;
  }

  grpc::Status WaitJob(grpc::ServerContext* context, const v1::WaitJobRequest* request,
                       v1::WaitJobResponse* response) override {
    if (!KnowsCaller(context)) return Unknown();
    const uint64_t seq = request->job().seq();
    const auto deadline = internal::Deadline::After(absl::Milliseconds(request->timeout_milliseconds()));
    absl::MutexLock lock(&mutex);
    waits.push_back({request->timeout_milliseconds(),
                     context->deadline() < std::chrono::system_clock::now() + std::chrono::hours(1)});
    if (wait_failures > 0) {
      --wait_failures;
      return ToGrpc(wait_failure);
    }
    if (std::find(accepted.begin(), accepted.end(), seq) == accepted.end()) return {grpc::NOT_FOUND, "no such job"};
    *response->mutable_report()->mutable_job() = request->job();
    response->mutable_report()->set_state(v1::JOB_STATE_RUNNING);
    if (early_answers > 0) {
      --early_answers;
      return grpc::Status::OK;
    }
    while (!finished.contains(seq) && !dying && !context->IsCancelled() && !deadline.passed()) {
      if (request->job().epoch().counter() != epoch) break;
      const auto ready = [this, seq] { return finished.contains(seq) || dying; };
      mutex.AwaitWithTimeout(absl::Condition(&ready), absl::Milliseconds(20));
    }
    if (dying) return {grpc::UNAVAILABLE, "the daemon stops"};
    if (!finished.contains(seq) && request->job().epoch().counter() != epoch) {
      Fill(absl::UnavailableError("node node1 is lost"), response->mutable_report());
      response->mutable_report()->set_replayable(true);
      return grpc::Status::OK;
    }
    if (const auto found = finished.find(seq); found != finished.end()) Fill(found->second, response->mutable_report());
    return grpc::Status::OK;
  }

  static void Fill(const absl::Status& end, v1::JobReport* report) {
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
  }

  grpc::Status WatchJobs(grpc::ServerContext* context, const v1::WatchJobsRequest*,
                         grpc::ServerWriter<v1::WatchJobsResponse>* writer) override {
    if (!KnowsCaller(context)) return Unknown();
    std::set<uint64_t> known;
    absl::MutexLock lock(&mutex);
    if (!telling) return {grpc::UNIMPLEMENTED, "no ends are told"};
    for (const auto& [seq, end] : finished) known.insert(seq);
    told.insert(known.begin(), known.end());
    writer->SendInitialMetadata();
    v1::WatchJobsResponse message;
    while (telling && !dying && !context->IsCancelled()) {
      for (const v1::SubmitAllToAllRequest& submission : submissions) {
        const auto end = finished.find(submission.job().seq());
        if (end == finished.end() || !known.insert(end->first).second) continue;
        if (missed.contains(end->first)) {
          message.set_missed(message.missed() + 1);
          continue;
        }
        *message.mutable_report()->mutable_job() = submission.job();
        Fill(end->second, message.mutable_report());
        writer->Write(message);
        told.insert(end->first);
        message.Clear();
      }
      mutex.AwaitWithTimeout(absl::Condition(
                                 +[](bool* telling) { return !*telling; }, &telling),
                             absl::Milliseconds(2));
    }
    return {grpc::UNAVAILABLE, "no more ends are told"};
  }

  grpc::Status CancelJob(grpc::ServerContext* context, const v1::CancelJobRequest* request,
                         v1::CancelJobResponse*) override {
    if (!KnowsCaller(context)) return Unknown();
    absl::MutexLock lock(&mutex);
    cancelled.push_back(request->job().seq());
    finished.emplace(request->job().seq(), absl::CancelledError("cancelled by rank 0"));
    return grpc::Status::OK;
  }

  void ServeDescriptors() {
    std::vector<UniqueFd> connections;
    for (;;) {
      std::vector<pollfd> entries = {{stop_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
      for (const UniqueFd& connection : connections) entries.push_back({connection.get(), POLLIN, 0});
      if (poll(entries.data(), entries.size(), -1) < 0) continue;
      if (entries[0].revents != 0) {
        if (!close_sessions_.exchange(false)) break;
        eventfd_t ignored = 0;
        eventfd_read(stop_.get(), &ignored);
        connections.clear();
        Count(-static_cast<int>(entries.size() - 2));
        continue;
      }
      for (size_t i = connections.size(); i-- > 0;) {
        if (entries[i + 2].revents == 0 || Answer(connections[i].get())) continue;
        connections.erase(connections.begin() + static_cast<std::ptrdiff_t>(i));
        Count(-1);
      }
      if (entries[1].revents != 0) {
        connections.emplace_back(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
        Count(1);
      }
    }
    listener_.Reset();
    Count(-static_cast<int>(connections.size()));
  }

  void Count(int change) {
    absl::MutexLock lock(&mutex);
    sessions_open += change;
  }

  // False when the connection is over.
  bool Answer(int connection) {
    char packet[65536];
    iovec data{packet, sizeof(packet)};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    const ssize_t got = recvmsg(connection, &message, MSG_CMSG_CLOEXEC);
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
    int to_send = -1;
    absl::MutexLock lock(&mutex);
    if (request.has_open_session()) {
      const std::string token = absl::StrCat("token-", boot_id_, "-", tokens_.size());
      tokens_.insert(token);
      auto* opened = response.mutable_open_session();
      opened->set_version(1);
      opened->set_token(token);
      opened->set_node("fake-node");
      opened->set_boot_id(boot_id_);
      to_send = process_.get();
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
    SendWithDescriptor(connection, response.SerializeAsString(), to_send);
    return true;
  }

  const std::string directory_;
  const uint64_t boot_id_;
  std::set<std::string> tokens_;
  std::atomic<bool> close_sessions_{false};
  UniqueFd process_, stop_, listener_;
  std::unique_ptr<grpc::Server> server_;
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
void FakeDaemon::AnswerEarly(int count) {
  absl::MutexLock lock(&impl_->mutex);
  impl_->early_answers = count;
}
void FakeDaemon::FailWaits(int count, absl::Status status) {
  absl::MutexLock lock(&impl_->mutex);
  impl_->wait_failures = count;
  impl_->wait_failure = std::move(status);
}
void FakeDaemon::TellEnds() {
  absl::MutexLock lock(&impl_->mutex);
  impl_->telling = true;
}
void FakeDaemon::StopTelling() {
  absl::MutexLock lock(&impl_->mutex);
  impl_->telling = false;
}
void FakeDaemon::MissEnd(uint64_t seq) {
  absl::MutexLock lock(&impl_->mutex);
  impl_->missed.insert(seq);
}
void FakeDaemon::ForgetSessions() {
  absl::MutexLock lock(&impl_->mutex);
  impl_->ForgetTokens();
}
void FakeDaemon::RefuseJoins(absl::Status status) {
  absl::MutexLock lock(&impl_->mutex);
  impl_->join_refusal = std::move(status);
}
void FakeDaemon::HoldJoins(bool hold) {
  absl::MutexLock lock(&impl_->mutex);
  impl_->joins_held = hold;
}
void FakeDaemon::RefuseSegments(absl::Status status) {
  absl::MutexLock lock(&impl_->mutex);
  impl_->segment_refusal = std::move(status);
}
void FakeDaemon::HoldSegments(bool hold) {
  absl::MutexLock lock(&impl_->mutex);
  impl_->segments_held = hold;
}
void FakeDaemon::FinishJob(uint64_t seq, absl::Status status) {
  absl::MutexLock lock(&impl_->mutex);
  impl_->finished[seq] = std::move(status);
}

void FakeDaemon::EndEpoch() {
  absl::MutexLock lock(&impl_->mutex);
  ++impl_->epoch;
}

#define RAILS_FAKE_GETTER(type, name)    \
  type FakeDaemon::name() const {        \
    absl::MutexLock lock(&impl_->mutex); \
    return impl_->name;                  \
  }
RAILS_FAKE_GETTER(std::vector<v1::SubmitAllToAllRequest>, submissions)
RAILS_FAKE_GETTER(std::vector<uint64_t>, accepted)
RAILS_FAKE_GETTER(std::vector<uint64_t>, joins)
RAILS_FAKE_GETTER(std::vector<FakeDaemon::WaitCall>, waits)
RAILS_FAKE_GETTER(std::vector<uint64_t>, cancelled)
using SegmentMap = std::map<uint32_t, FakeDaemon::SharedSegment>;
RAILS_FAKE_GETTER(SegmentMap, segments)
using ReservationMap = std::map<uint32_t, uint64_t>;
RAILS_FAKE_GETTER(ReservationMap, reservations)
RAILS_FAKE_GETTER(int, leaves)
RAILS_FAKE_GETTER(int, sessions_open)
RAILS_FAKE_GETTER(int, calls_without_token)
#undef RAILS_FAKE_GETTER

}  // namespace rails::testing
