// Checks that the buffers of all ranks fit into this machine, before their pages are touched. Pure.
#ifndef RAILS_RAILSCTL_REPLAY_MEMORY_CHECK_H_
#define RAILS_RAILSCTL_REPLAY_MEMORY_CHECK_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace rails::ctl {

// ranks * (send + receive), saturated at the largest number.
uint64_t BuffersOfAll(uint64_t ranks, uint64_t send_bytes, uint64_t receive_bytes);

// Checks that `needed_bytes` fit into the available memory in `meminfo`, the text of /proc/meminfo. OK if `meminfo`
// does not give it. RESOURCE_EXHAUSTED: names both numbers.
absl::Status FitsMemory(absl::string_view meminfo, uint64_t needed_bytes);

}  // namespace rails::ctl

#endif  // RAILS_RAILSCTL_REPLAY_MEMORY_CHECK_H_
