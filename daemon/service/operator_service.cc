#include <algorithm>

#include "absl/strings/str_cat.h"
#include "daemon/service/conversion.h"
#include "daemon/service/deferred_call.h"
#include "daemon/service/services.h"
#include "rails/v1/operator.grpc.pb.h"

namespace railsd {
namespace {

using grpc::CallbackServerContext;
using grpc::ServerUnaryReactor;

class OperatorService final : public rails::v1::OperatorService::CallbackService {
 public:
  explicit OperatorService(std::shared_ptr<const ServiceContext> context) : context_(std::move(context)) {}

  ServerUnaryReactor* GetStatus(CallbackServerContext*, const rails::v1::GetStatusRequest*,
                                rails::v1::GetStatusResponse* response) override {
    return FromSnapshot([response, context = context_](const AgentSnapshot& snapshot) {
      response->set_node(context->node);
      response->set_version(context->version);
      response->set_boot_id(context->boot.value());
      response->set_uptime_seconds(absl::ToDoubleSeconds(absl::Now() - context->started));
      response->set_config_hash(context->config_hash);
      response->set_tls(context->tls);
      StatusTo(snapshot, response);
    });
  }

  ServerUnaryReactor* ListRails(CallbackServerContext*, const rails::v1::ListRailsRequest*,
                                rails::v1::ListRailsResponse* response) override {
    return FromSnapshot([response](const AgentSnapshot& snapshot) {
      for (const RailView& rail : snapshot.rails) RailTo(rail, response->add_rails());
    });
  }

  ServerUnaryReactor* ListPeers(CallbackServerContext*, const rails::v1::ListPeersRequest*,
                                rails::v1::ListPeersResponse* response) override {
    return FromSnapshot([response, context = context_](const AgentSnapshot& snapshot) {
      for (const PeerView& peer : MergePeers(snapshot.peers, context->peers ? context->peers() : snapshot.peers)) {
        PeerTo(peer, response->add_peers());
      }
    });
  }

  ServerUnaryReactor* ListJobs(CallbackServerContext*, const rails::v1::ListJobsRequest* request,
                               rails::v1::ListJobsResponse* response) override {
    return FromSnapshot([response, limit = request->finished_limit()](const AgentSnapshot& snapshot) {
      for (const JobReport& job : snapshot.active_jobs) ReportTo(job, response->add_active());
      const size_t count = std::min<size_t>(limit, snapshot.finished_jobs.size());
      for (size_t i = 0; i < count; ++i) ReportTo(snapshot.finished_jobs[i], response->add_finished());
    });
  }

  ServerUnaryReactor* DrainRail(CallbackServerContext*, const rails::v1::DrainRailRequest* request,
                                rails::v1::DrainRailResponse* response) override {
    return SetDrained(request->rail(), true, response);
  }

  ServerUnaryReactor* UndrainRail(CallbackServerContext*, const rails::v1::UndrainRailRequest* request,
                                  rails::v1::UndrainRailResponse* response) override {
    return SetDrained(request->rail(), false, response);
  }

 private:
  // Answers with the rail as it is afterwards.
  template <typename Response>
  ServerUnaryReactor* SetDrained(const std::string& rail, bool drained, Response* response) {
    const auto call = DeferredCall::Make();
    context_->agent->DrainRail(rail, drained, [call, rail, response, context = context_](const absl::Status& status) {
      if (!status.ok()) {
        call->Answer(status);
        return;
      }
      context->agent->Snapshot([call, rail, response](const AgentSnapshot& snapshot) {
        call->Answer(absl::OkStatus(), [&] {
          const RailView* found = FindRail(snapshot, rail);
          if (found != nullptr) RailTo(*found, response->mutable_rail());
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
  ServerUnaryReactor* FromSnapshot(Fill fill) {
    const auto call = DeferredCall::Make();
    context_->agent->Snapshot([call, fill = std::move(fill)](AgentSnapshot snapshot) {
      call->Answer(absl::OkStatus(), [&] { fill(snapshot); });
    });
    return call.get();
  }

  // By name. The agent knows the rails of peers that were up, the control streams why others are not, or are silent.
  static std::vector<PeerView> MergePeers(std::vector<PeerView> known, const std::vector<PeerView>& configured) {
    for (const PeerView& peer : configured) {
      const auto it = std::find_if(known.begin(), known.end(), [&](const PeerView& k) { return k.node == peer.node; });
      if (it == known.end()) {
        known.push_back(peer);
      } else if (!peer.why.empty()) {
        it->why = peer.why;
      }
    }
    std::sort(known.begin(), known.end(), [](const PeerView& a, const PeerView& b) { return a.node < b.node; });
    return known;
  }

  const std::shared_ptr<const ServiceContext> context_;
};

}  // namespace

std::shared_ptr<grpc::Service> MakeOperatorService(std::shared_ptr<const ServiceContext> context) {
  return std::make_shared<OperatorService>(std::move(context));
}

}  // namespace railsd
