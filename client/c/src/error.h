// Errors of the C interface, and what keeps exceptions inside it.
#ifndef RAILS_CLIENT_C_SRC_ERROR_H_
#define RAILS_CLIENT_C_SRC_ERROR_H_

#include <exception>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "rails/rails.h"

namespace rails::c {

// Node of each rank of a group.
using Members = std::vector<std::string>;

// Makes an error from `status`, which the caller frees. NULL if it is OK. Out of memory: an error that says so.
// `members`: of the group, if there is one.
rails_error* ToError(const absl::Status& status, const Members* members) noexcept;
rails_error* OutOfMemory() noexcept;

// Runs a call that returns absl::Status, and keeps its exceptions inside. Every function that can fail uses it.
template <typename Call>
rails_error* Guard(const Members* members, Call&& call) noexcept {
  try {
    return ToError(call(), members);
  } catch (const std::bad_alloc&) {
    return OutOfMemory();
  } catch (const std::exception& e) {
    return ToError(absl::InternalError(e.what()), nullptr);
  }
}
template <typename Call>
rails_error* Guard(Call&& call) noexcept {
  return Guard(nullptr, std::forward<Call>(call));
}

// INVALID_ARGUMENT if `pointer` is NULL.
inline absl::Status Require(const void* pointer, const char* name) {
  return pointer != nullptr ? absl::OkStatus() : absl::InvalidArgumentError(absl::StrCat(name, " is NULL"));
}

}  // namespace rails::c

#endif  // RAILS_CLIENT_C_SRC_ERROR_H_
