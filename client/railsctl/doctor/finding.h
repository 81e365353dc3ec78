// A result of one check.
#ifndef RAILS_RAILSCTL_DOCTOR_FINDING_H_
#define RAILS_RAILSCTL_DOCTOR_FINDING_H_

#include <cstdint>
#include <string>
#include <vector>

namespace rails::ctl::doctor {

// From good to bad. kNote: correct, and worth knowing. kWarning: works, but worse than it could. kError: the node does
// not work as it should.
enum class Level : uint8_t { kOk, kNote, kWarning, kError };

struct Finding {
  std::string check;  // "memlock"; one word, the same for all findings of a check
  Level level = Level::kOk;
  std::string found;  // with the value
  std::string means;  // why it matters; empty if kOk
  std::string fix;    // what to do, with a command if there is one; empty if kOk
};

using Findings = std::vector<Finding>;

}  // namespace rails::ctl::doctor

#endif  // RAILS_RAILSCTL_DOCTOR_FINDING_H_
