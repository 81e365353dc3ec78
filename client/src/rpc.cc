#include "client/src/rpc.h"

#include <grpcpp/grpcpp.h>
#include <pthread.h>
#include <signal.h>

#include <thread>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "rails/v1/group.grpc.pb.h"
#include "rails/v1/job.grpc.pb.h"
#include "rails/v1/session.grpc.pb.h"

namespace rails::internal {
namespace {

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& socket_path) {
  grpc::ChannelArguments arguments;
  // Each client has its own connection, so that it does not inherit a back-off of another client or an earlier daemon.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
  // No retries by gRPC: the library knows which calls may be repeated.
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  return grpc::CreateCustomChannel(absl::StrCat("unix:", socket_path), grpc::InsecureChannelCredentials(), arguments);
}

// A deadline by gRPC's steady clock: gRPC takes those of std::chrono::system_clock for times of the wall clock.
gpr_timespec GrpcDeadline(absl::Duration timeout) {
  if (timeout == absl::InfiniteDuration()) return gpr_inf_future(GPR_CLOCK_MONOTONIC);
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                      gpr_time_from_nanos(absl::ToInt64Nanoseconds(timeout), GPR_TIMESPAN));
}

class GrpcRpc final : public Rpc {
 public:
  GrpcRpc(std::string socket_path, std::string token)
      : socket_path_(std::move(socket_path)),
        token_(std::move(token)),
        channel_(MakeChannel(socket_path_)),
        sessions_(v1::SessionService::NewStub(channel_)),
        groups_(v1::GroupService::NewStub(channel_)),
        jobs_(v1::JobService::NewStub(channel_)) {}

  ~GrpcRpc() override {
    CancelAll();
    Drain();
    if (watch_thread_.joinable()) watch_thread_.join();
  }

  bool WaitConnected(absl::Duration timeout) override { return channel_->WaitForConnected(GrpcDeadline(timeout)); }

  absl::StatusOr<v1::GetSessionResponse> GetSession(absl::Duration timeout) override {
    v1::GetSessionResponse response;
    absl::Status status = Call(timeout, [&](grpc::ClientContext* context) {
      return sessions_->GetSession(context, v1::GetSessionRequest(), &response);
    });
    if (!status.ok()) return status;
    return response;
  }

  absl::StatusOr<v1::JoinGroupResponse> Join(const v1::JoinGroupRequest& request, absl::Duration timeout) override {
    v1::JoinGroupResponse response;
    const absl::Status status = Call(timeout, [&](grpc::ClientContext* context) {
      {
        absl::MutexLock lock(&mutex_);
        joins_[context] = {request.name(), request.rank()};
      }
      const grpc::Status joined = groups_->JoinGroup(context, request, &response);
      absl::MutexLock lock(&mutex_);
      joins_.erase(context);
      return joined;
    });
    if (!status.ok()) return status;
    return response;
  }

  void CancelJoins(const std::string& group, uint32_t rank) override {
    absl::MutexLock lock(&mutex_);
    for (const auto& [context, of] : joins_) {
      if (of == std::pair(group, rank)) context->TryCancel();
    }
  }

  absl::Status Leave(const v1::LeaveGroupRequest& request, absl::Duration timeout) override {
    v1::LeaveGroupResponse response;
    return Call(timeout,
                [&](grpc::ClientContext* context) { return groups_->LeaveGroup(context, request, &response); });
  }

  absl::Status Submit(const v1::SubmitAllToAllRequest& request, absl::Duration timeout, Refused* refused) override {
    v1::SubmitAllToAllResponse response;
    *refused = Refused::kUnknown;
    return Call(timeout, [&](grpc::ClientContext* context) {
      const grpc::Status status = jobs_->SubmitAllToAll(context, request, &response);
      const auto& metadata = context->GetServerTrailingMetadata();
      if (const auto found = metadata.find("rails-refused"); found != metadata.end()) {
        if (found->second == "job") *refused = Refused::kJob;
        if (found->second == "attempt") *refused = Refused::kThisAttempt;
      }
      return status;
    });
  }

  absl::Status CancelJob(const v1::JobId& job, absl::Duration timeout) override {
    v1::CancelJobRequest request;
    *request.mutable_job() = job;
    v1::CancelJobResponse response;
    return Call(timeout, [&](grpc::ClientContext* context) { return jobs_->CancelJob(context, request, &response); });
  }

  absl::StatusOr<v1::JobReport> WaitJob(const v1::JobId& job, absl::Duration wait, absl::Duration grace) override {
    v1::WaitJobRequest request;
    *request.mutable_job() = job;
    request.set_timeout_milliseconds(WholeMilliseconds(wait));
    v1::WaitJobResponse response;
    absl::Status status =
        Call(wait + grace, [&](grpc::ClientContext* context) { return jobs_->WaitJob(context, request, &response); });
    if (!status.ok()) return status;
    return std::move(*response.mutable_report());
  }

  void WaitJobAsync(const v1::JobId& job, absl::Duration wait, absl::Duration grace,
                    std::function<void(absl::StatusOr<v1::JobReport>)> done) override {
    auto* call = new AsyncCall<v1::WaitJobRequest, v1::WaitJobResponse>;
    *call->request.mutable_job() = job;
    call->request.set_timeout_milliseconds(WholeMilliseconds(wait));
    call->done = [done = std::move(done)](absl::Status status, v1::WaitJobResponse& response) {
      if (status.ok()) {
        done(std::move(*response.mutable_report()));
      } else {
        done(std::move(status));
      }
    };
    Start(call, wait + grace, [this](auto* started, auto finished) {
      jobs_->async()->WaitJob(&started->context, &started->request, &started->response, std::move(finished));
    });
  }

  void WatchJobs(JobFeed feed) override {
    watch_context_ = std::make_unique<grpc::ClientContext>();
    if (!Prepare(watch_context_.get(), absl::InfiniteDuration())) return feed.on_end();
    // Blocks signals: the program's own threads handle them.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    watch_thread_ = std::thread([this, feed = std::move(feed)] { ReadFeed(feed); });
    pthread_setname_np(watch_thread_.native_handle(), "rails-feed");
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  void RemoveSegmentAsync(uint32_t segment_id, absl::Duration timeout,
                          std::function<void(absl::Status)> done) override {
    auto* call = new AsyncCall<v1::RemoveSegmentRequest, v1::RemoveSegmentResponse>;
    call->request.set_segment_id(segment_id);
    call->done = [done = std::move(done)](absl::Status status, v1::RemoveSegmentResponse&) { done(std::move(status)); };
    Start(call, timeout, [this](auto* started, auto finished) {
      sessions_->async()->RemoveSegment(&started->context, &started->request, &started->response, std::move(finished));
    });
  }

  void CancelAll() override {
    absl::MutexLock lock(&mutex_);
    closed_ = true;
    for (grpc::ClientContext* context : under_way_) context->TryCancel();
  }

  void Drain() override {
    absl::MutexLock lock(&mutex_);
    const auto idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return under_way_.empty() && callbacks_ == 0; };
    mutex_.Await(absl::Condition(&idle));
  }

 private:
  template <typename Request, typename Response>
  struct AsyncCall {
    grpc::ClientContext context;
    Request request;
    Response response;
    std::function<void(absl::Status, Response&)> done;
  };

  // Reads the stream on its own thread. gRPC 1.51's threads for callbacks sleep 100 ms after each idle second, which
  // would delay waits for jobs.
  void ReadFeed(const JobFeed& feed) {
    const auto reader = jobs_->WatchJobs(watch_context_.get(), v1::WatchJobsRequest());
    reader->WaitForInitialMetadata();
    feed.on_live();
    v1::WatchJobsResponse message;
    while (reader->Read(&message)) feed.on_report(message);
    (void)reader->Finish();  // the status does not matter: waiting threads ask for their jobs from now on
    feed.on_end();
    Forget(watch_context_.get());
  }

  static absl::Status Closed() { return absl::CancelledError("the session is closed"); }

  // Sets token and deadline and registers the call. False: the object is closed, and the call must not start.
  bool Prepare(grpc::ClientContext* context, absl::Duration timeout) {
    context->AddMetadata("rails-session-token", token_);
    context->set_deadline(GrpcDeadline(timeout));
    absl::MutexLock lock(&mutex_);
    if (closed_) return false;
    under_way_.insert(context);
    return true;
  }

  void Forget(grpc::ClientContext* context) {
    absl::MutexLock lock(&mutex_);
    under_way_.erase(context);
  }

  template <typename Function>
  absl::Status Call(absl::Duration timeout, Function function) {
    grpc::ClientContext context;
    if (!Prepare(&context, timeout)) return Closed();
    const grpc::Status status = function(&context);
    Forget(&context);
    return ToAbsl(status);
  }

  template <typename Request, typename Response, typename Function>
  void Start(AsyncCall<Request, Response>* call, absl::Duration timeout, Function function) {
    if (!Prepare(&call->context, timeout)) {
      call->done(Closed(), call->response);
      delete call;
      return;
    }
    {
      absl::MutexLock lock(&mutex_);
      ++callbacks_;
    }
    function(call, [this, call](grpc::Status status) {
      call->done(ToAbsl(status), call->response);
      Forget(&call->context);
      // Frees the context before Drain() returns: it holds the channel, whose destructor joins this thread, so it must
      // not hold the last reference. Frees `done` too, because its captures may need this object.
      delete call;
      absl::MutexLock lock(&mutex_);
      --callbacks_;
    });
  }

  absl::Status ToAbsl(const grpc::Status& status) const {
    if (status.ok()) return absl::OkStatus();
    const auto code = static_cast<absl::StatusCode>(status.error_code());
    if (code == absl::StatusCode::kUnavailable || code == absl::StatusCode::kInternal) {
      return absl::Status(code, absl::StrCat("railsd at ", socket_path_, ": ", status.error_message()));
    }
    return absl::Status(code, status.error_message());
  }

  const std::string socket_path_;
  const std::string token_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::SessionService::Stub> sessions_;
  const std::unique_ptr<v1::GroupService::Stub> groups_;
  const std::unique_ptr<v1::JobService::Stub> jobs_;
  absl::Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  absl::flat_hash_set<grpc::ClientContext*> under_way_ ABSL_GUARDED_BY(mutex_);
  // Maps a join under way to the group's name and the rank.
  absl::flat_hash_map<grpc::ClientContext*, std::pair<std::string, uint32_t>> joins_ ABSL_GUARDED_BY(mutex_);
  uint32_t callbacks_ ABSL_GUARDED_BY(mutex_) = 0;      // asynchronous calls whose callbacks have not returned
  std::unique_ptr<grpc::ClientContext> watch_context_;  // of the WatchJobs call
  std::thread watch_thread_;
};

}  // namespace

std::unique_ptr<Rpc> Rpc::Create(std::string socket_path, std::string token) {
  return std::make_unique<GrpcRpc>(std::move(socket_path), std::move(token));
}

}  // namespace rails::internal
