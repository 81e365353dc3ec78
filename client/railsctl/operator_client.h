// Calls of OperatorService on a daemon's operator socket.
#ifndef RAILS_RAILSCTL_OPERATOR_CLIENT_H_
#define RAILS_RAILSCTL_OPERATOR_CLIENT_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rails/v1/operator.pb.h"

namespace rails::ctl {

// A client of one daemon. Thread-safe.
// Errors of all calls name the socket. UNAVAILABLE: no answer, or no socket. PERMISSION_DENIED: the socket may not be
// opened. DEADLINE_EXCEEDED: no answer within `timeout`. Other errors come from the daemon unchanged.
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
  // Returns when the node's jobs have ended, or after `limit`. Zero: the limit of the daemon's configuration.
  absl::Status DrainNode(absl::Duration limit);
  absl::Status UndrainNode();
  absl::StatusOr<v1::ReloadResponse> Reload();
  // `rail`: name or index. Returns the rail's state afterwards.
  absl::StatusOr<v1::RailStatus> DrainRail(const std::string& rail);
  absl::StatusOr<v1::RailStatus> UndrainRail(const std::string& rail);
  // Ends the connection to a peer; the daemon dials a new one.
  absl::Status RedialPeer(const std::string& node);
  // Returns the level before. An empty `level` changes nothing.
  absl::StatusOr<std::string> SetLogLevel(const std::string& level);

  // Ends calls under way, and all later ones, at once with CANCELLED.
  void Cancel();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rails::ctl

#endif  // RAILS_RAILSCTL_OPERATOR_CLIENT_H_
