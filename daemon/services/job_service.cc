#include "absl/strings/str_cat.h"
#include "daemon/rpc/deferred_call.h"
#include "daemon/services/conversion.h"
#include "daemon/services/services.h"
#include "rails/v1/job.grpc.pb.h"

namespace railsd {
namespace {

using grpc::CallbackServerContext;
using grpc::ServerUnaryReactor;

constexpr char kWatchJobs[] = "JobService/WatchJobs";
constexpr size_t kWatchCapacity = 1024;

// One WatchJobs call. At most one write is in flight; later reports stay in the watch.
class WatchReactor final : public grpc::ServerWriteReactor<rails::v1::WatchJobsResponse> {
 public:
  // Null: the session has reached its limit of watches.
  static WatchReactor* Make(SessionId session, const ServiceContext& context) {
    auto reactor = std::make_shared<WatchReactor>();
    reactor->calls_ = context.calls;
    reactor->watch_ = std::make_shared<JobWatch>(kWatchCapacity, [weak = std::weak_ptr(reactor)] {
      if (const auto alive = weak.lock()) alive->WriteNext();
    });
    if (!context.feed->AddWatch(session, reactor->watch_)) return nullptr;
    reactor->self_ = reactor;
    reactor->StartSendInitialMetadata();  // tells the client that it gets every report from now on
    return reactor.get();
  }

  void OnWriteDone(bool ok) override {
    {
      absl::MutexLock lock(&mutex_);
      writing_ = false;
    }
    if (ok) WriteNext();
  }
  void OnCancel() override {
    absl::MutexLock lock(&mutex_);
    if (finished_) return;
    finished_ = true;
    calls_->Count(kWatchJobs, absl::StatusCode::kCancelled);
    Finish(grpc::Status(grpc::StatusCode::CANCELLED, "the client cancelled the call"));
  }
  void OnDone() override { const std::shared_ptr<WatchReactor> last = std::move(self_); }

 private:
  void WriteNext() {
    absl::MutexLock lock(&mutex_);
    if (writing_ || finished_) return;
    std::optional<JobWatch::Item> item = watch_->Pop();
    if (!item) return;
    writing_ = true;
    message_.Clear();
    ReportTo(*item->report, message_.mutable_report());
    message_.set_missed(item->missed);
    StartWrite(&message_);
  }

  std::shared_ptr<CallCounters> calls_;
  absl::Mutex mutex_;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  rails::v1::WatchJobsResponse message_;  // of the write in flight
  std::shared_ptr<JobWatch> watch_;
  std::shared_ptr<WatchReactor> self_;
};

// Ends a stream at once with a status.
class RefusedWatch final : public grpc::ServerWriteReactor<rails::v1::WatchJobsResponse> {
 public:
  RefusedWatch(const absl::Status& status, CallCounters* calls) {
    calls->Count(kWatchJobs, status.code());
    Finish(ToGrpc(status));
  }
  void OnDone() override { delete this; }
};

class JobService final : public rails::v1::JobService::CallbackService {
 public:
  explicit JobService(std::shared_ptr<const ServiceContext> context) : context_(std::move(context)) {}

  ServerUnaryReactor* SubmitAllToAll(CallbackServerContext* call_context,
                                     const rails::v1::SubmitAllToAllRequest* request,
                                     rails::v1::SubmitAllToAllResponse* response) override {
    return Run(kSubmitAllToAll, context_, call_context, request, response);
  }

  ServerUnaryReactor* PrepareAllToAll(CallbackServerContext* call_context,
                                      const rails::v1::PrepareAllToAllRequest* request,
                                      rails::v1::PrepareAllToAllResponse* response) override {
    return Run(kPrepareAllToAll, context_, call_context, request, response);
  }

  ServerUnaryReactor* SubmitPrepared(CallbackServerContext* call_context,
                                     const rails::v1::SubmitPreparedRequest* request,
                                     rails::v1::SubmitPreparedResponse* response) override {
    return Run(kSubmitPrepared, context_, call_context, request, response);
  }

  ServerUnaryReactor* ReleasePrepared(CallbackServerContext* call_context,
                                      const rails::v1::ReleasePreparedRequest* request,
                                      rails::v1::ReleasePreparedResponse* response) override {
    return Run(kReleasePrepared, context_, call_context, request, response);
  }

  ServerUnaryReactor* WaitJob(CallbackServerContext* call_context, const rails::v1::WaitJobRequest* request,
                              rails::v1::WaitJobResponse* response) override {
    return Run(kWaitJob, context_, call_context, request, response);
  }

  grpc::ServerWriteReactor<rails::v1::WatchJobsResponse>* WatchJobs(CallbackServerContext* call_context,
                                                                    const rails::v1::WatchJobsRequest*) override {
    const auto caller = CallerOf(*call_context, *context_);
    if (!caller) return new RefusedWatch(NoSession(), context_->calls.get());
    if (WatchReactor* watch = WatchReactor::Make(caller->id, *context_)) return watch;
    const absl::Status status = context_->refused->Refuse(
        Limit::kWatchesPerSession, absl::StrCat("the session watches its jobs ", context_->feed->max_watches(),
                                                " times already; end a watch, or use one for all of its jobs"));
    return new RefusedWatch(status, context_->calls.get());
  }

  ServerUnaryReactor* CancelJob(CallbackServerContext* call_context, const rails::v1::CancelJobRequest* request,
                                rails::v1::CancelJobResponse* response) override {
    return Run(kCancelJob, context_, call_context, request, response);
  }

 private:
  const std::shared_ptr<const ServiceContext> context_;
};

}  // namespace

std::shared_ptr<grpc::Service> MakeJobService(std::shared_ptr<const ServiceContext> context) {
  return std::make_shared<JobService>(std::move(context));
}

}  // namespace railsd
