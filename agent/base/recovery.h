// A group's reaction to the loss of a node. Its ranks choose it when they join, and all choose the same.
#ifndef RAILSD_AGENT_BASE_RECOVERY_H_
#define RAILSD_AGENT_BASE_RECOVERY_H_

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace railsd {

// The values are those on the wire, of clients and of peers.
enum class RecoveryPolicy : uint8_t {
  kFail = 1,     // its jobs fail and the group is broken, at once
  kWait = 2,     // its jobs go on when the same daemon is heard of again within the limit; else as kFail
  kDegrade = 3,  // the others go on without it: bytes from and to its ranks are left out, and reports say so
};

struct Recovery {
  RecoveryPolicy policy = RecoveryPolicy::kFail;
  absl::Duration wait_limit;  // of kWait; else zero

  friend bool operator==(const Recovery&, const Recovery&) = default;
  std::string ToString() const {
    switch (policy) {
      case RecoveryPolicy::kFail:
        return "fail";
      case RecoveryPolicy::kWait:
        return absl::StrCat("wait ", absl::FormatDuration(wait_limit));
      case RecoveryPolicy::kDegrade:
        return "degrade";
    }
    return "?";
  }
};

}  // namespace railsd

#endif  // RAILSD_AGENT_BASE_RECOVERY_H_
