// The version of this build, one source for every program and package (version.cmake says where it comes from).
#ifndef RAILSD_COMMON_VERSION_VERSION_H_
#define RAILSD_COMMON_VERSION_VERSION_H_

#include "absl/strings/string_view.h"

namespace railsd {

// As in "0.1.0", or "0.1.0+12.gabc1234" twelve commits after that tag.
absl::string_view Version();

// Day of the newest version in CHANGELOG.md, as in "2026-11-22".
absl::string_view ReleaseDate();

}  // namespace railsd

#endif  // RAILSD_COMMON_VERSION_VERSION_H_
