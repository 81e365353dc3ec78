// Reads structures that carry their size, and times.
#ifndef RAILS_CLIENT_C_SRC_OPTIONS_H_
#define RAILS_CLIENT_C_SRC_OPTIONS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "rails/rails.h"

namespace rails::c {

// A copy of `given`, which may come from a program that was compiled with an older or a newer header. NULL: all fields
// are 0.
template <typename Options>
absl::StatusOr<Options> Read(const Options* given, const char* name) {
  Options options{};
  if (given == nullptr) return options;
  size_t size = 0;
  std::memcpy(&size, given, sizeof(size));
  if (size < sizeof(size)) {
    return absl::InvalidArgumentError(absl::StrCat(name, "->size is ", size, ": begin with the structure's _INIT"));
  }
  const auto* const bytes = reinterpret_cast<const unsigned char*>(given);
  for (size_t i = sizeof(Options); i < size; ++i) {
    if (bytes[i] == 0) continue;
    return absl::InvalidArgumentError(absl::StrCat(name, " sets a field at byte ", i, ", which version ",
                                                   rails_version(), " of librails.so does not know"));
  }
  std::memcpy(&options, given, std::min(size, sizeof(Options)));
  return options;
}

// The duration; `otherwise` for 0.
inline absl::Duration Time(int64_t nanoseconds, absl::Duration otherwise) {
  if (nanoseconds == 0) return otherwise;
  return nanoseconds == RAILS_FOREVER ? absl::InfiniteDuration() : absl::Nanoseconds(nanoseconds);
}

inline const char* Text(const char* given, const char* otherwise) { return given != nullptr ? given : otherwise; }

}  // namespace rails::c

#endif  // RAILS_CLIENT_C_SRC_OPTIONS_H_
