// Groups: a rank's membership, and the numbers of its jobs.
#ifndef RAILS_CLIENT_SRC_GROUP_H_
#define RAILS_CLIENT_SRC_GROUP_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "client/src/job.h"
#include "client/src/segment.h"
#include "client/src/session.h"
#include "rails/client.h"
#include "rails/v1/group.pb.h"

namespace rails::internal {

class GroupImpl final : public Group {
 public:
  // Blocks until every rank has joined. `options` have been checked.
  static absl::StatusOr<std::unique_ptr<Group>> Join(const GroupOptions& options, std::shared_ptr<Session> session,
                                                     std::shared_ptr<SegmentTable> segments);
  ~GroupImpl() override;

  uint32_t rank() const override { return rank_; }
  uint32_t world_size() const override { return static_cast<uint32_t>(members_.size()); }
  const std::vector<std::string>& members() const override { return members_; }
  absl::StatusOr<std::shared_ptr<Job>> Submit(const AllToAllv& exchange, absl::Duration timeout) override;
  absl::Status Leave() override;

 private:
  GroupImpl(std::string name, uint32_t rank, const v1::JoinGroupResponse& joined, std::shared_ptr<Session> session,
            std::shared_ptr<SegmentTable> segments);

  const std::string name_;
  const uint32_t rank_;
  const v1::Epoch epoch_;
  const std::vector<std::string> members_;
  const std::shared_ptr<Session> session_;
  const std::shared_ptr<SegmentTable> segments_;
  absl::Mutex mutex_;  // held during a submission: jobs take numbers in order, and only when accepted
  uint64_t next_seq_ ABSL_GUARDED_BY(mutex_) = 1;
  absl::Status broken_ ABSL_GUARDED_BY(mutex_);  // why there can be no more jobs
};

}  // namespace rails::internal

#endif  // RAILS_CLIENT_SRC_GROUP_H_
