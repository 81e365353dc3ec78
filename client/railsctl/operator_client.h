// Calls of OperatorService on a daemon's operator socket.
#ifndef RAILS_RAILSCTL_OPERATOR_CLIENT_H_
#define RAILS_RAILSCTL_OPERATOR_CLIENT_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rails/v1/operator.pb.h"

namespace rails::ctl {

// One daemon. Safe to use from several threads.
// Errors of all calls name the socket: UNAVAILABLE when nothing answers there or the socket is missing,
// PERMISSION_DENIED when it may not be opened, DEADLINE_EXCEEDED after `timeout`, or what the daemon answered.
class OperatorClient {
 public:
  // `timeout` bounds each call. Opens nothing yet.
  OperatorClient(const std::string& socket_dir, absl::Duration timeout);
  ~OperatorClient();

  absl::StatusOr<v1::GetStatusResponse> GetStatus();
  absl::StatusOr<v1::ListRailsResponse> ListRails();
  absl::StatusOr<v1::ListPeersResponse> ListPeers();
  absl::StatusOr<v1::ListJobsResponse> ListJobs(uint32_t finished_limit);
  absl::StatusOr<v1::GetOverviewResponse> GetOverview(uint32_t finished_limit);
  absl::StatusOr<v1::ExplainJobResponse> ExplainJob(const v1::ExplainJobRequest& request);
  // Answers when the node's jobs have ended; `limit` bounds that, zero: as long as its configuration says.
  absl::Status DrainNode(absl::Duration limit);
  absl::Status UndrainNode();
  absl::StatusOr<v1::ReloadResponse> Reload();
  // `rail`: its name or its index. Answers with the rail as it is afterwards.
  absl::StatusOr<v1::RailStatus> DrainRail(const std::string& rail);
  absl::StatusOr<v1::RailStatus> UndrainRail(const std::string& rail);
  // Ends the connection to a peer; the daemon dials a new one.
  absl::Status RedialPeer(const std::string& node);
  // An empty `level` changes nothing. Answers with the level before.
  absl::StatusOr<std::string> SetLogLevel(const std::string& level);

  // Calls that are under way, and all later ones, end at once with CANCELLED.
  void Cancel();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rails::ctl

#endif  // RAILS_RAILSCTL_OPERATOR_CLIENT_H_
