// Whether the buffers of all ranks fit into this machine, asked before they are touched page by page. Pure.
#ifndef RAILS_RAILSCTL_REPLAY_MEMORY_CHECK_H_
#define RAILS_RAILSCTL_REPLAY_MEMORY_CHECK_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace rails::ctl {

// ranks * (send + receive), or the largest number when that is larger.
uint64_t BuffersOfAll(uint64_t ranks, uint64_t send_bytes, uint64_t receive_bytes);

// Whether `needed_bytes` fit into what `meminfo`, the text of /proc/meminfo, says is available; OK when it does not
// say. Error: RESOURCE_EXHAUSTED with both numbers.
absl::Status FitsMemory(absl::string_view meminfo, uint64_t needed_bytes);

}  // namespace rails::ctl

#endif  // RAILS_RAILSCTL_REPLAY_MEMORY_CHECK_H_
