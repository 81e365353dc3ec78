// Renders the findings of `railsctl doctor`.
#ifndef RAILS_RAILSCTL_DOCTOR_RENDER_H_
#define RAILS_RAILSCTL_DOCTOR_RENDER_H_

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "client/railsctl/doctor/facts.h"
#include "client/railsctl/doctor/finding.h"

namespace rails::ctl::doctor {

// "ok", "note", "warning", "error".
const char* LevelName(Level level);
size_t Count(const Findings& findings, Level level);

// Text for people: one line a finding; below notes, warnings and errors their meaning and what to do. The last line
// counts them.
std::string Render(const Findings& findings, bool color);
// {"errors", "warnings", "notes", "findings"}.
nlohmann::ordered_json FindingsJson(const Findings& findings);
nlohmann::ordered_json ToJson(const Facts& facts, const Findings& findings);

}  // namespace rails::ctl::doctor

#endif  // RAILS_RAILSCTL_DOCTOR_RENDER_H_
