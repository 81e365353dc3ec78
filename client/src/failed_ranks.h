// The failed ranks that the daemon names with an error, as a payload of the status.
#ifndef RAILS_CLIENT_SRC_FAILED_RANKS_H_
#define RAILS_CLIENT_SRC_FAILED_RANKS_H_

#include <google/protobuf/repeated_field.h>

#include <cstdint>

#include "absl/status/status.h"

namespace rails::internal {

absl::Status WithFailedRanks(absl::Status status, const google::protobuf::RepeatedField<uint32_t>& ranks);

}  // namespace rails::internal

#endif  // RAILS_CLIENT_SRC_FAILED_RANKS_H_
