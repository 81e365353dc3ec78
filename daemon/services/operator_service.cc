#include "absl/strings/str_cat.h"
#include "daemon/lifecycle/logging.h"
#include "daemon/lifecycle/readiness.h"
#include "daemon/lifecycle/reloader.h"
#include "daemon/rpc/deferred_call.h"
#include "daemon/services/overview.h"
#include "daemon/services/services.h"
#include "rails/v1/operator.grpc.pb.h"

namespace railsd {
namespace {

using grpc::CallbackServerContext;
using grpc::ServerUnaryReactor;

constexpr double kLongestDrainSeconds = 24 * 3600;

class OperatorService final : public rails::v1::OperatorService::CallbackService {
 public:
  explicit OperatorService(std::shared_ptr<const ServiceContext> context) : context_(std::move(context)) {}

  ServerUnaryReactor* GetStatus(CallbackServerContext*, const rails::v1::GetStatusRequest*,
                                rails::v1::GetStatusResponse* response) override {
    return FromSnapshot("OperatorService/GetStatus", [response, context = context_](const AgentSnapshot& snapshot) {
      StatusTo(snapshot, *context, response);
    });
  }

  ServerUnaryReactor* ListRails(CallbackServerContext*, const rails::v1::ListRailsRequest*,
                                rails::v1::ListRailsResponse* response) override {
    return FromSnapshot("OperatorService/ListRails", [response, context = context_](const AgentSnapshot& snapshot) {
      RailsTo(snapshot, *context, response);
      response->set_eager_sent_bytes(snapshot.counters.eager_sent_bytes);
      response->set_eager_received_bytes(snapshot.counters.eager_received_bytes);
    });
  }

  ServerUnaryReactor* ListPeers(CallbackServerContext*, const rails::v1::ListPeersRequest*,
                                rails::v1::ListPeersResponse* response) override {
    return FromSnapshot("OperatorService/ListPeers", [response, context = context_](const AgentSnapshot& snapshot) {
      for (const PeerView& peer : AllPeers(snapshot, *context)) PeerTo(peer, response->add_peers());
    });
  }

  ServerUnaryReactor* ListJobs(CallbackServerContext*, const rails::v1::ListJobsRequest* request,
                               rails::v1::ListJobsResponse* response) override {
    return FromSnapshot("OperatorService/ListJobs",
                        [response, limit = request->finished_limit()](const AgentSnapshot& snapshot) {
                          JobsTo(snapshot, limit, response);
                        });
  }

  ServerUnaryReactor* GetOverview(CallbackServerContext*, const rails::v1::GetOverviewRequest* request,
                                  rails::v1::GetOverviewResponse* response) override {
    return FromSnapshot("OperatorService/GetOverview",
                        [response, limit = request->finished_limit(), context = context_](const auto& snapshot) {
                          OverviewTo(snapshot, *context, limit, response);
                        });
  }

  ServerUnaryReactor* ExplainJob(CallbackServerContext*, const rails::v1::ExplainJobRequest* request,
                                 rails::v1::ExplainJobResponse* response) override {
    const auto call = DeferredCall::Make(*context_, "OperatorService/ExplainJob");
    context_->agent->Explain({request->tenant(), request->group(), JobSeq(request->seq())},
                             [call, response, context = context_](absl::StatusOr<JobExplanation> explanation) {
                               if (!explanation.ok()) {
                                 call->Answer(explanation.status());
                                 return;
                               }
                               call->Answer(absl::OkStatus(),
                                            [&](auto*) { ExplanationTo(*explanation, *context, response); });
                             });
    return call.get();
  }

  ServerUnaryReactor* SetLogLevel(CallbackServerContext*, const rails::v1::SetLogLevelRequest* request,
                                  rails::v1::SetLogLevelResponse* response) override {
    const absl::StatusOr<std::string> before = request->level().empty()
                                                   ? LogLevelOf(*context_->log)
                                                   : railsd::SetLogLevel(context_->log.get(), request->level());
    if (before.ok()) response->set_level_before(*before);
    return AnswerNow("OperatorService/SetLogLevel", before.status());
  }

  ServerUnaryReactor* DrainNode(CallbackServerContext*, const rails::v1::DrainNodeRequest* request,
                                rails::v1::DrainNodeResponse*) override {
    const double seconds = request->timeout_seconds();
    if (!(seconds >= 0) || seconds > kLongestDrainSeconds) {
      return AnswerNow("OperatorService/DrainNode",
                       absl::InvalidArgumentError(
                           absl::StrCat("timeout_seconds: ", seconds, ": outside 0 to ", kLongestDrainSeconds)));
    }
    if (context_->readiness->stopping()) return AnswerNow("OperatorService/DrainNode", Stopping());
    context_->readiness->SetDrained(true);
    const auto call = DeferredCall::Make(*context_, "OperatorService/DrainNode");
    const absl::Duration limit = seconds > 0 ? absl::Seconds(seconds) : context_->reloader->config().timeouts.drain;
    context_->agent->Drain(limit, [call](const absl::Status& status) { call->Answer(status); });
    return call.get();
  }

  ServerUnaryReactor* UndrainNode(CallbackServerContext*, const rails::v1::UndrainNodeRequest*,
                                  rails::v1::UndrainNodeResponse*) override {
    if (context_->readiness->stopping()) return AnswerNow("OperatorService/UndrainNode", Stopping());
    const auto call = DeferredCall::Make(*context_, "OperatorService/UndrainNode");
    context_->agent->Undrain([call, context = context_](const absl::Status& status) {
      if (status.ok()) context->readiness->SetDrained(false);
      call->Answer(status);
    });
    return call.get();
  }

  ServerUnaryReactor* Reload(CallbackServerContext*, const rails::v1::ReloadRequest*,
                             rails::v1::ReloadResponse* response) override {
    const absl::StatusOr<ReloadReport> report = context_->reloader->Reload();
    if (report.ok()) {
      for (const ConfigDifference& change : report->applied) ChangeTo(change, response->add_applied());
      for (const ConfigDifference& change : report->needs_restart) ChangeTo(change, response->add_needs_restart());
      response->set_config_hash(report->config_hash);
    }
    return AnswerNow("OperatorService/Reload", report.status());
  }

  ServerUnaryReactor* DrainRail(CallbackServerContext*, const rails::v1::DrainRailRequest* request,
                                rails::v1::DrainRailResponse* response) override {
    return SetDrained("OperatorService/DrainRail", request->rail(), true, response);
  }

  ServerUnaryReactor* UndrainRail(CallbackServerContext*, const rails::v1::UndrainRailRequest* request,
                                  rails::v1::UndrainRailResponse* response) override {
    return SetDrained("OperatorService/UndrainRail", request->rail(), false, response);
  }

  ServerUnaryReactor* RedialPeer(CallbackServerContext*, const rails::v1::RedialPeerRequest* request,
                                 rails::v1::RedialPeerResponse*) override {
    return AnswerNow("OperatorService/RedialPeer", context_->redial(request->node()));
  }

 private:
  ServerUnaryReactor* AnswerNow(absl::string_view method, const absl::Status& status) {
    const auto call = DeferredCall::Make(*context_, method);
    call->Answer(status);
    return call.get();
  }

  absl::Status Stopping() const {
    return absl::FailedPreconditionError(absl::StrCat("node ", context_->node, " is stopping"));
  }

  static void ChangeTo(const ConfigDifference& change, rails::v1::ConfigChange* out) {
    out->set_key(change.key);
    out->set_before(change.before);
    out->set_after(change.after);
  }

  // Answers with the rail's state after the change.
  template <typename Response>
  ServerUnaryReactor* SetDrained(absl::string_view method, const std::string& rail, bool drained, Response* response) {
    const auto call = DeferredCall::Make(*context_, method);
    context_->agent->DrainRail(rail, drained, [call, rail, response, context = context_](const absl::Status& status) {
      if (!status.ok()) {
        call->Answer(status);
        return;
      }
      context->agent->Snapshot([call, rail, response, context](const AgentSnapshot& snapshot) {
        call->Answer(absl::OkStatus(), [&](auto*) {
          const RailView* found = FindRail(snapshot, rail);
          if (found != nullptr) RailTo(*found, *context, response->mutable_rail());
        });
      });
    });
    return call.get();
  }

  static const RailView* FindRail(const AgentSnapshot& snapshot, const std::string& rail) {
    for (const RailView& view : snapshot.rails) {
      if (view.name == rail) return &view;
    }
    for (const RailView& view : snapshot.rails) {
      if (absl::StrCat(view.index.value()) == rail) return &view;
    }
    return nullptr;
  }

  template <typename Fill>
  ServerUnaryReactor* FromSnapshot(absl::string_view method, Fill fill) {
    const auto call = DeferredCall::Make(*context_, method);
    context_->agent->Snapshot([call, fill = std::move(fill)](AgentSnapshot snapshot) {
      call->Answer(absl::OkStatus(), [&](auto*) { fill(snapshot); });
    });
    return call.get();
  }

  const std::shared_ptr<const ServiceContext> context_;
};

}  // namespace

std::shared_ptr<grpc::Service> MakeOperatorService(std::shared_ptr<const ServiceContext> context) {
  return std::make_shared<OperatorService>(std::move(context));
}

}  // namespace railsd
