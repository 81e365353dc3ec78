// What one check says.
#ifndef RAILS_RAILSCTL_DOCTOR_FINDING_H_
#define RAILS_RAILSCTL_DOCTOR_FINDING_H_

#include <cstdint>
#include <string>
#include <vector>

namespace rails::ctl::doctor {

// In order of badness. kNote is right and worth knowing; kWarning works, but worse than it could; with a kError the
// node does not do what it is for.
enum class Level : uint8_t { kOk, kNote, kWarning, kError };

struct Finding {
  std::string check;  // "memlock"; one word, the same for all findings of a check
  Level level = Level::kOk;
  std::string found;  // with its value
  std::string means;  // why that matters; empty when kOk
  std::string fix;    // what to do about it, with a command where there is one; empty when kOk
};

using Findings = std::vector<Finding>;

}  // namespace rails::ctl::doctor

#endif  // RAILS_RAILSCTL_DOCTOR_FINDING_H_
