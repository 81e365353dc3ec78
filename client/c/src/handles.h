// The handles of the C interface, each of which holds an object of the C++ client.
#ifndef RAILS_CLIENT_C_SRC_HANDLES_H_
#define RAILS_CLIENT_C_SRC_HANDLES_H_

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/c/src/end_signal.h"
#include "client/src/owner_process.h"
#include "rails/client.h"
#include "rails/cuda.h"
#include "rails/rails.h"

namespace rails::c {

// Facts of a group and its client that jobs need after the handles of both have been freed.
struct GroupFacts {
  std::vector<std::string> members;  // node of each rank
  std::shared_ptr<EndSignal> ends;
};

}  // namespace rails::c

struct rails_client {
  std::unique_ptr<rails::Client> client;
  const rails::internal::OwnerProcess owner{};
  const std::shared_ptr<rails::c::EndSignal> ends = std::make_shared<rails::c::EndSignal>();
};

struct rails_segment {
  std::shared_ptr<rails::Segment> segment;
};

struct rails_device {
  std::shared_ptr<rails::cuda::Device> device;
  std::weak_ptr<rails::c::EndSignal> client;  // that of the client which has opened it
};

struct rails_group {
  std::shared_ptr<rails::Group> group;
  std::shared_ptr<const rails::c::GroupFacts> facts;
};

struct rails_prepared {
  std::shared_ptr<rails::Prepared> prepared;
  std::weak_ptr<rails::Group> group;
  std::shared_ptr<const rails::c::GroupFacts> facts;
  size_t send_count, receive_count;  // flows in each direction
};

struct rails_job {
  std::shared_ptr<rails::Job> job;
  std::shared_ptr<const rails::c::GroupFacts> facts;
  std::mutex mutex{};
  std::optional<rails::JobReport> report{};  // set once, when the job has ended and its report is asked for
};

#endif  // RAILS_CLIENT_C_SRC_HANDLES_H_
